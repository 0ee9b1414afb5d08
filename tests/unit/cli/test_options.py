"""What the options and standard input become."""

from __future__ import annotations

import io
from typing import Any

import pytest

from edgewise.cli.options import generation_defaults, model_size, read_prompt, request_from
from edgewise.core.request import ContextPolicy, DataClass, Message, Request, Sampling
from edgewise.errors import InputError

HELLO = (Message(role="user", content="Hello"),)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (None, None),
        ("0b", 0),
        ("1B", 1),
        ("64MiB", 64 << 20),
        ("64mib", 64 << 20),
        (" 64 MiB ", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("0.5kib", 512),
        ("0.1b", 0),
        ("8388607gib", 8388607 << 30),  # just below 2^53
    ],
)
def test_model_size(text: str | None, size: int | None) -> None:
    assert model_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "64",
        "MiB",
        "64MB",
        "64M",
        "-1MiB",
        "-0.5b",
        "nanMiB",
        "infGiB",
        "1e400b",
        "8388608gib",
        "64MiB MiB",
        "0x10b",
        "sixty MiB",
    ],
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InputError) as caught:
        model_size(text)
    assert caught.value.code == "size-invalid"
    assert "64MiB" in str(caught.value.hint)


class Stdin(io.TextIOWrapper):
    def __init__(self, data: bytes, *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data), encoding="ascii")  # the locale does not matter
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def prompt(monkeypatch: pytest.MonkeyPatch, argument: str | None, stdin: Stdin | None) -> str:
    monkeypatch.setattr("sys.stdin", stdin)
    return read_prompt(argument)


def test_an_argument_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prompt(monkeypatch, "Hello", Stdin(b"piped")) == "Hello"
    assert prompt(monkeypatch, "", Stdin(b"piped")) == ""
    assert prompt(monkeypatch, "Hello", None) == "Hello"


@pytest.mark.parametrize("argument", [None, "-"])
@pytest.mark.parametrize("text", ["", "Hello\r\n", "\U0001f600\x00 \u00e9", "a" * 100_000])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, argument: str | None, text: str) -> None:
    # One line end is the pipe's, not the prompt's.
    assert prompt(monkeypatch, argument, Stdin(text.encode())) == text.removesuffix("\r\n")


def test_a_terminal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as caught:
        prompt(monkeypatch, None, Stdin(b"", terminal=True))
    assert caught.value.code == "prompt-missing"
    assert "edgewise chat" in str(caught.value.hint)
    assert prompt(monkeypatch, "-", Stdin(b"typed", terminal=True)) == "typed"


@pytest.mark.parametrize("argument", [None, "-"])
def test_a_closed_standard_input(monkeypatch: pytest.MonkeyPatch, argument: str | None) -> None:
    with pytest.raises(InputError) as caught:
        prompt(monkeypatch, argument, None)
    assert caught.value.code == "prompt-missing"


@pytest.mark.parametrize(
    ("data", "offset", "shown"),
    [
        (b"\xff", 0, "0xff"),
        (b"abc\xe9def", 3, "0xe9"),
        (b"ok\xed\xa0\x80", 2, "0xed"),  # an encoded surrogate
        (b"\xf0\x9f\x98", 0, "0xf0"),  # cut in the middle
        (b"\xc0\xaf", 0, "0xc0"),  # overlong
    ],
)
def test_standard_input_that_is_not_utf8(
    monkeypatch: pytest.MonkeyPatch, data: bytes, offset: int, shown: str
) -> None:
    with pytest.raises(InputError) as caught:
        prompt(monkeypatch, None, Stdin(data))
    error = caught.value
    assert error.code == "stdin-not-utf8"
    assert int(error.exit_code) == 2
    assert error.context == {"offset_bytes": offset}
    assert shown in error.message
    assert "iconv" in str(error.hint)


def test_defaults_make_the_default_request() -> None:
    assert request_from(HELLO, generation_defaults()) == Request(messages=HELLO)


def test_every_option_arrives() -> None:
    options: dict[str, Any] = {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.75,
        "min_p": 0.25,
        "seed": 9,
        "stop": ["a", "b"],
        "deadline": 1.5,
        "data_class": "public",
        "task": "summary",
        "context_policy": "sliding-window",
        "no_speculation": True,
    }
    assert set(options) == set(generation_defaults())
    assert request_from(HELLO, options) == Request(
        messages=HELLO,
        max_tokens=5,
        sampling=Sampling(temperature=0.5, top_k=4, top_p=0.75, min_p=0.25, seed=9),
        stop=("a", "b"),
        deadline_s=1.5,
        data_class=DataClass.PUBLIC,
        task="summary",
        context_policy=ContextPolicy.SLIDING_WINDOW,
        speculate=False,
    )
