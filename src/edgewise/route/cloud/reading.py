"""Answers in OpenAI's form, read strictly: whole and valid, or broken.

Nothing is repaired. A stream counts as whole when the model's reason to end has come; text that
arrived before a break has been shown and stays what it is: partial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from edgewise.core.outcome import FinishReason
from edgewise.core.strict_json import StrictJsonError, parse
from edgewise.core.tools import ToolCall
from edgewise.route.cloud import faults
from edgewise.route.cloud.faults import FaultError

__all__ = ["Said", "read_stream", "read_whole"]

_EVENT_BYTES_MAX = 1 << 20
_CALLS_MAX = 128
_DEPTH_MAX = 64
_FIELDS = {b"data", b"event", b"id", b"retry", b""}
_FINISHES = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
}
_COUNT_MAX = 2**40


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Words(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Words | None = None
    message: _Words | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    model: str | None = None


@dataclass(slots=True)
class Said:
    """What a server has said so far.

    Attributes:
        pieces: Its text, as it came.
        finish: Why it ended; ``None`` while it has not.
        prompt_tokens: As the server states.
        completion_tokens: As the server states.
        model: As the server states.
        refused: Whether the text, or a part of it, is a refusal by the model.
        done: Whether the stream's last mark came.
    """

    pieces: list[str] = field(default_factory=list, repr=False)
    finish: FinishReason | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str | None = None
    refused: bool = False
    done: bool = False
    _calls: dict[int, _Call] = field(default_factory=dict, repr=False)

    @property
    def text(self) -> str:
        """Return the text so far."""
        return "".join(self.pieces)

    def calls(self, offered: set[str]) -> tuple[ToolCall, ...]:
        """Return the calls of tools, whole and valid; none of a cut answer.

        Raises:
            FaultError: one is not whole, or calls what was not offered.
        """
        if self.finish is FinishReason.LENGTH:
            return ()
        if bool(self._calls) != (self.finish is FinishReason.TOOL_CALLS):
            # A forced call ends with "stop" on OpenAI's own servers.
            if not self._calls or self.finish is not FinishReason.STOP:
                _broken("it ends with tool calls and holds none")
            self.finish = FinishReason.TOOL_CALLS
        return tuple(_whole(self._calls[index], offered) for index in sorted(self._calls))

    def add(self, words: _Words, on_text: Callable[[str], None]) -> None:
        """Take a piece of the answer in."""
        self.refused |= bool(words.refusal)
        text = (words.content or "") + (words.refusal or "")
        if self.finish is not None and (text or words.tool_calls):
            _broken("it goes on after its end")
        for place, call in enumerate(words.tool_calls or ()):
            self._add_call(place if call.index is None else call.index, call)
        if text:
            self.pieces.append(text)
            on_text(text)

    def _add_call(self, index: int, call: _Call) -> None:
        if not 0 <= index < _CALLS_MAX:
            _broken("it numbers a tool call as none can be")
        known = self._calls.setdefault(index, _Call(function=_Function(arguments="")))
        assert known.function is not None
        known.id = known.id or call.id
        if call.function is not None:
            known.function.name = known.function.name or call.function.name
            arguments = (known.function.arguments or "") + (call.function.arguments or "")
            known.function.arguments = arguments


def read_stream(pieces: Iterable[bytes], said: Said, on_text: Callable[[str], None]) -> None:
    """Read an answer that comes as server-sent events; ``said`` holds what came, also at a break.

    Raises:
        FaultError: it breaks off, or is not what it should be.
    """
    for data in _events(pieces):
        if data == b"[DONE]":
            said.done = True
            break
        _take(_reply(data), said, on_text, streamed=True)
    if said.finish is None:
        _broken("it ended before the model did")


def read_whole(pieces: Iterable[bytes], said: Said, on_text: Callable[[str], None]) -> None:
    """Read an answer that comes in one piece.

    Raises:
        FaultError: it breaks off, or is not what it should be.
    """
    _take(_reply(b"".join(pieces)), said, on_text, streamed=False)
    if said.finish is None:
        _broken("it does not say why it ended")
    said.done = True


def _events(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the data of each server-sent event (WHATWG HTML, 9.2)."""
    data: list[bytes] = []
    size = 0
    for line in _lines(pieces):
        if not line:
            if data:
                yield b"\n".join(data)
            data, size = [], 0
            continue
        name, _, value = line.partition(b":")
        if name not in _FIELDS:  # a reader of events skips it; here it shows that something is off
            _broken("something else is mixed into its stream")
        if name == b"data":
            data.append(value.removeprefix(b" "))
            size += len(value)
            _require_event(size)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines that end in LF or CRLF; what stands after the last one is no line."""
    rest = bytearray()
    for piece in pieces:
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            rest += piece[start:end]
            line, rest = bytes(rest), bytearray()
            yield line.removesuffix(b"\r")
            start = end + 1
        rest += piece[start:]
        _require_event(len(rest))


def _require_event(size: int) -> None:
    if size > _EVENT_BYTES_MAX:
        _broken(f"an event of it has more than {_EVENT_BYTES_MAX} bytes")


def _reply(data: bytes) -> _Reply:
    try:
        value: Any = parse(data.decode(), depth_max=_DEPTH_MAX)
    except UnicodeDecodeError:
        _broken("it holds bytes that are no UTF-8")
    except StrictJsonError as error:
        _broken(f"it holds no valid JSON: {error.flaw.value}")
    if isinstance(value, dict) and value.get("error"):
        word = faults.server_word(value)
        raise FaultError(faults.broken("it is an error in the form of an answer", code=word))
    try:
        return msgspec.convert(value, _Reply)
    except msgspec.ValidationError:
        _broken("its JSON is none of a chat completion")


def _take(reply: _Reply, said: Said, on_text: Callable[[str], None], *, streamed: bool) -> None:
    said.model = said.model or reply.model
    if reply.usage is not None:
        said.prompt_tokens = _count(reply.usage.prompt_tokens)
        said.completion_tokens = _count(reply.usage.completion_tokens)
    for choice in reply.choices:
        words = choice.delta if streamed else choice.message
        if choice.index != 0 or (words is None and (not streamed or choice.message)):
            _broken("it holds no answer, or more than the one that was asked for")
        if words is not None:
            said.add(words, on_text)
        if choice.finish_reason is not None:
            said.finish = _finish(choice.finish_reason)


def _finish(word: str) -> FinishReason:
    if word == "content_filter":
        raise FaultError(faults.filtered())
    if word not in _FINISHES:
        _broken("the reason why it ended is none of the API's")
    return _FINISHES[word]


def _whole(call: _Call, offered: set[str]) -> ToolCall:
    function = call.function
    if function is None or not call.id or not function.name:
        _broken("a tool call has no id or no name")
    if function.name not in offered:
        _broken("it calls a tool that was not offered")
    arguments = function.arguments or "{}"
    try:
        value = parse(arguments, depth_max=_DEPTH_MAX)
    except StrictJsonError:
        value = None
    if not isinstance(value, dict):
        _broken("the arguments of a tool call are no JSON object")
    return ToolCall(id=call.id, name=function.name, arguments=arguments)


def _count(number: int | None) -> int | None:
    return number if number is not None and 0 <= number < _COUNT_MAX else None


def _broken(why: str) -> NoReturn:
    raise FaultError(faults.broken(why))
