"""The matcher: masks, ends, copies, and what happens when it is not obeyed."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from tests.unit.run.structure.toy import CONTROL, END, TOKENS, TURN, ToyEngine, schema

from edgewise.core.structure import Structure, StructureKind
from edgewise.errors import AdapterError, ResourceError, UnsupportedError
from edgewise.run.structure import Constrainer, Matcher, audit

SIZE = ToyEngine.vocab_size


def logits() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.linspace(-1, 1, SIZE, dtype=np.float32)


def allowed(matcher: Matcher) -> set[int]:
    return set(np.flatnonzero(np.isfinite(matcher.mask(logits()))).tolist())


def regex(source: str) -> Structure:
    return Structure(kind=StructureKind.REGEX, source=source)


def ids(text: bytes) -> set[int]:
    return {token for token, data in enumerate(TOKENS) if data == text}


def test_the_mask_keeps_allowed_logits_and_leaves_the_callers_alone(
    constrainer: Constrainer,
) -> None:
    given = logits()
    masked = constrainer.matcher(regex("x|y")).mask(given)
    assert np.array_equal(given, logits())
    assert masked[ord("x")] == given[ord("x")]
    assert np.isneginf(masked[ord("z")])
    assert masked.dtype == np.float32


def test_every_token_that_spells_what_may_follow_is_allowed(constrainer: Constrainer) -> None:
    assert allowed(constrainer.matcher(regex("A|foo|fx"))) == {
        *ids(b"A"),
        *ids(b"f"),
        *ids(b"foo"),
    }
    assert len(ids(b"A")) == 2  # two tokens of the same bytes


def test_the_ends_are_allowed_exactly_when_the_structure_may_end(constrainer: Constrainer) -> None:
    matcher = constrainer.matcher(regex("ab?"))
    assert not {END, TURN} & allowed(matcher)
    assert not matcher.complete
    matcher.accept(ord("a"))
    assert allowed(matcher) == {ord("b"), END, TURN}
    assert matcher.complete
    assert not matcher.exhausted
    matcher.accept(ord("b"))
    assert matcher.exhausted
    assert allowed(matcher) == {END, TURN}
    matcher.accept(TURN)
    assert matcher.complete
    assert matcher.exhausted
    assert allowed(matcher) == {END, TURN}


def test_control_tokens_and_padding_are_never_allowed(constrainer: Constrainer) -> None:
    matcher = constrainer.matcher(regex("(?s:.*)"))
    assert not {CONTROL, *range(len(TOKENS), SIZE)} & allowed(matcher)
    for token in (CONTROL, len(TOKENS), SIZE, -1):
        with pytest.raises(AdapterError):
            constrainer.matcher(regex("(?s:.*)")).accept(token)


@pytest.mark.parametrize("token", [ord("z"), END, CONTROL, 10**6])
def test_a_token_that_is_not_allowed_is_a_typed_failure(
    token: int, constrainer: Constrainer
) -> None:
    matcher = constrainer.matcher(regex("abc"))
    with pytest.raises(AdapterError) as caught:
        matcher.accept(token)
    assert caught.value.code == "structure-broken"


def test_nothing_follows_an_end(constrainer: Constrainer) -> None:
    matcher = constrainer.matcher(regex("a*"))
    matcher.accept(END)
    with pytest.raises(AdapterError):
        matcher.accept(ord("a"))


def test_a_character_may_be_spelled_by_several_tokens(constrainer: Constrainer) -> None:
    matcher = constrainer.matcher(schema({"type": "string", "maxLength": 1}))
    first, second = (ids("😀".encode()[:2]).pop(), ids("😀".encode()[2:]).pop())
    matcher.accept(ord('"'))
    matcher.accept(first)
    assert not matcher.complete
    assert second in allowed(matcher)
    assert ord('"') not in allowed(matcher)  # never half of a character
    matcher.accept(second)
    assert allowed(matcher) == {ord('"')}


def test_a_copy_goes_its_own_way(constrainer: Constrainer) -> None:
    matcher = constrainer.matcher(regex("ab|ac"))
    matcher.accept(ord("a"))
    copy = matcher.fork()
    copy.accept(ord("b"))
    assert copy.exhausted
    assert not matcher.complete
    assert allowed(matcher) == {ord("b"), ord("c")}
    matcher.accept(ord("c"))
    assert matcher.exhausted
    copy.accept(END)
    assert copy.fork().exhausted


def test_a_matcher_starts_anew_each_time(constrainer: Constrainer) -> None:
    first = constrainer.matcher(regex("ab"))
    first.accept(ord("a"))
    assert allowed(constrainer.matcher(regex("ab"))) == {ord("a")}


def test_a_long_text_within_a_large_bound_is_taken_and_one_beyond_is_not(
    constrainer: Constrainer,
) -> None:
    matcher = constrainer.matcher(schema({"type": "string", "maxLength": 3000}))
    matcher.accept(ord('"'))
    for _ in range(3000):
        matcher.accept(ord("x"))
    assert allowed(matcher) == {ord('"')}


def test_whitespace_is_at_most_one_space_after_a_comma_or_a_colon(constrainer: Constrainer) -> None:
    matcher = constrainer.matcher(schema({"type": "array", "items": {"type": "null"}}))
    spaces = {ord(one) for one in " \t\r\n"}
    assert not spaces & allowed(matcher)
    for byte in b"[null,":
        matcher.accept(byte)
    assert spaces & allowed(matcher) == {ord(" ")}
    matcher.accept(ord(" "))
    assert not spaces & allowed(matcher)


def test_a_step_beyond_the_librarys_limits_is_a_typed_failure(constrainer: Constrainer) -> None:
    structure = regex("((a{100}){100}){100}x|b")

    def go_on() -> None:
        matcher = constrainer.matcher(structure)
        for _ in range(20):
            matcher.mask(logits())
            matcher.accept(ord("a"))

    with pytest.raises((ResourceError, AdapterError)) as caught:
        go_on()
    assert caught.value.code in {"structure-too-large", "structure-broken"}


def test_logits_of_another_vocabulary_are_refused(constrainer: Constrainer) -> None:
    with pytest.raises(AdapterError):
        constrainer.matcher(regex("a")).mask(np.zeros(SIZE - 1, dtype=np.float32))


def test_a_model_without_an_end_token_is_refused() -> None:
    for ends in ([], [SIZE + 5]):
        with pytest.raises(UnsupportedError):
            Constrainer(ToyEngine(), ends).matcher(regex("a"))  # type: ignore[arg-type]


class PrefixingEngine(ToyEngine):
    """One whose tokenizer puts a space in front of every text, as some do."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [ord(" "), *text.encode()]


def test_a_tokenizer_that_adds_a_space_does_not_bring_it_into_the_answer() -> None:
    matcher = Constrainer(PrefixingEngine(), [END]).matcher(regex("foobar"))  # type: ignore[arg-type]
    seen = b""
    while not matcher.exhausted:
        token = max(allowed(matcher), key=lambda one: len(TOKENS[one]))
        matcher.accept(token)
        seen += TOKENS[token]
    assert seen == b"foobar"


@pytest.mark.parametrize(
    ("package", "structure"),
    [("llguidance", regex("a")), ("referencing", schema({"type": "string"}))],
)
def test_a_missing_library_is_said(
    package: str, structure: Structure, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError) as caught:
        audit(structure)
    assert caught.value.code == "structure-library-missing"
