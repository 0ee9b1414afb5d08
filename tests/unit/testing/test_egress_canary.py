"""The canary: found in every form it can take, and nowhere by chance."""

from __future__ import annotations

import base64
import json
import os
import urllib.parse
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import InputError
from edgewise.testing.egress import Canary
from edgewise.testing.egress.hook import find_in, search_file

CANARY = Canary.mint()
PATTERNS = CANARY.patterns()

FORMS: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "JSON": lambda text: json.dumps({"prompt": text}).encode(),
    "repr": lambda text: repr(text).encode(),
    "URL": lambda text: urllib.parse.quote(text).encode(),
    "form": lambda text: urllib.parse.urlencode({"q": text}).encode(),
    "hex": lambda text: text.encode().hex().encode(),
    "HEX": lambda text: text.encode().hex().upper().encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16BE": lambda text: text.encode("utf-16-be"),
    "UTF-32": lambda text: text.encode("utf-32"),
    "base64": lambda text: base64.b64encode(text.encode()),
    "base64 in lines": lambda text: base64.encodebytes(text.encode()),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()),
    "upper case": lambda text: text.upper().encode(),
    "reversed": lambda text: text[::-1].encode(),
    "escaped": lambda text: "".join(f"\\u{ord(c):04x}" for c in text).encode(),
    "percent": lambda text: "".join(f"%{ord(c):02X}" for c in text).encode(),
    "msgpack": lambda text: msgspec.msgpack.encode({"messages": [text]}),
}


@pytest.mark.parametrize("form", FORMS)
@given(before=st.text(max_size=7), after=st.text(max_size=7))
def test_every_form_is_found_wherever_it_stands(form: str, before: str, after: str) -> None:
    before, after = (t.encode("utf-8", "ignore").decode() for t in (before, after))
    assert find_in(FORMS[form](before + CANARY.text + after), PATTERNS)


@pytest.mark.parametrize("form", FORMS)
def test_one_word_of_it_is_enough(form: str) -> None:
    for word in CANARY.words:
        assert find_in(FORMS[form](f"it began: {word}"), PATTERNS)


def test_two_canaries_differ_and_chance_finds_neither() -> None:
    other = Canary.mint()
    assert not find_in(other.text.encode(), PATTERNS)
    assert not find_in(os.urandom(1 << 20), PATTERNS)
    assert len(set(CANARY.words)) == 5


def test_it_is_found_across_the_borders_of_chunks(tmp_path) -> None:
    path = tmp_path / "large"
    for before in range((1 << 20) - 15, (1 << 20) + 1, 5):
        path.write_bytes(bytes(before) + CANARY.words[0].encode() + bytes(100))
        assert search_file(str(path), PATTERNS) == "plain"
    path.write_bytes(bytes(3 << 20))
    assert search_file(str(path), PATTERNS) == ""


def test_what_cannot_be_searched_is_not_clean(tmp_path) -> None:
    assert search_file(str(tmp_path), PATTERNS) is None
    assert search_file(str(tmp_path / "absent"), PATTERNS) is None
    os.mkfifo(tmp_path / "pipe")
    assert search_file(str(tmp_path / "pipe"), PATTERNS) is None


TOKENS = [198, 4093, 28, 30021, 101, 7, 45000, 900, 222, 65000]


@pytest.mark.parametrize(
    "data",
    [
        msgspec.msgpack.encode(tuple(TOKENS)),
        json.dumps(TOKENS).encode(),
        json.dumps(TOKENS, separators=(",", ":")).encode(),
        b"".join(t.to_bytes(4, "little") for t in TOKENS),
        b"".join(t.to_bytes(8, "little") for t in TOKENS),
    ],
)
def test_its_tokens_are_found(data: bytes) -> None:
    assert find_in(data, CANARY.with_tokens(TOKENS).patterns()).startswith("tokens")
    assert not find_in(data, PATTERNS)


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        CANARY.with_tokens(TOKENS[:7])
    assert caught.value.code == "egress-canary-invalid"


@pytest.mark.parametrize(
    "text",
    ["", "hello", "UPPERCASEWORDS", CANARY.words[0] + "  x"],
    ids=["empty", "short", "capitals", "spaced"],  # of a canary's own: another one each time
)
def test_a_canary_that_chance_could_write_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        Canary(text=text)
    assert caught.value.code == "egress-canary-invalid"


def test_it_is_masked_in_what_is_shown() -> None:
    shown = CANARY.mask(f"/tmp/{CANARY.words[2]}/x?{base64.b64encode(CANARY.text.encode())!r}")
    assert not find_in(shown.encode(), PATTERNS)
    assert shown.startswith("/tmp/[canary:plain]/x")
