"""Calls out of an answer that is still being written.

Text goes on at once until something stands there that begins a call. From then on everything is
kept until the answer ends, since only then it is known whether the calls are whole and valid.

Invariant: where no calls are handed on, what was shown and what is returned at the end make up
the model's text to the last character.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from edgewise.core.outcome import Event
from edgewise.core.tools import Tool, ToolCall, ToolChoice
from edgewise.run.tools.formats import ToolFormat
from edgewise.run.tools.parse import looks_like_bare_call, parse_calls
from edgewise.run.tools.validate import ToolChecker

__all__ = ["CallParser"]

_NO_CALLS: tuple[ToolCall, ...] = ()


class CallParser:
    """Takes an answer piece by piece and gives back its text and its calls."""

    def __init__(self, form: ToolFormat, tools: Sequence[Tool], choice: ToolChoice) -> None:
        """Prepare for one answer.

        Args:
            form: How the model spells calls.
            tools: The tools it was given.
            choice: Whether it may, must or must not call one; with ``none``, all is text.

        Raises:
            InputError: the parameters of a tool are no valid JSON Schema (``tool-invalid``).
            UnsupportedError: a pattern in them cannot be checked, or the library that checks
                them is not installed.
            ResourceError: a pattern is too long.
        """
        self._form = form
        self._choice = choice
        self._starts = form.starts
        self._off = choice.mode == "none" or not tools
        self._checker = None if self._off else ToolChecker(tools, choice)
        self._maybe_bare = form.bare and not self._off
        self._held = ""
        self._kept: list[str] = []

    @property
    def token_texts(self) -> dict[int, str]:
        """Return the tokens that have to be pushed as these texts.

        Marks of calls may be control tokens, which have no bytes in an answer.
        """
        if self._off:
            return {}
        return {token: text for text, token in self._form.token_ids}

    def push(self, text: str) -> str:
        """Return the text that can be shown after one more piece."""
        if self._off:
            return text
        if self._kept:
            self._kept.append(text)
            return ""
        text = self._held + text
        self._held = ""
        if self._maybe_bare:
            bare = looks_like_bare_call(text, self._form)
            if bare:
                self._kept = [text]
                return ""
            if bare is None and not self._has_mark(text):
                self._held = text
                return ""
            self._maybe_bare = False
        return self._until_mark(text)

    def finish(self, *, cut: bool) -> tuple[str, tuple[ToolCall, ...], tuple[Event, ...]]:
        """Return the rest of the text, the calls, and what happened to calls.

        Args:
            cut: Whether the answer was cut off, by its token limit or from outside. Then nothing
                in it counts as a call.
        """
        rest = "".join(self._kept) or self._held
        began = bool(self._kept)
        self._kept, self._held = [], ""
        if self._off:
            return "", _NO_CALLS, ()
        if not began:
            return rest, _NO_CALLS, () if cut else self._missing()
        if cut:
            return rest, _NO_CALLS, (_truncated(),)
        return self._take(rest)

    def _take(self, rest: str) -> tuple[str, tuple[ToolCall, ...], tuple[Event, ...]]:
        assert self._checker is not None
        parsed = parse_calls(rest, self._form)
        problems = [parsed.problem] if parsed.problem is not None else []
        checked = [(n, *self._checker.checked(n, a, self._form)) for n, a in parsed.calls]
        problems += [why for *_, why in checked if why]
        if self._choice.parallel is False and len(parsed.calls) > 1:
            problems.append(f"one call was asked for at a time, and there are {len(parsed.calls)}")
        if problems:
            return rest, _NO_CALLS, (*map(_invalid, problems), *self._missing())
        if not parsed.calls:
            return rest, _NO_CALLS, self._missing()
        calls = tuple(
            ToolCall(
                id=f"call_{secrets.token_hex(12)}",
                name=name,
                arguments=json.dumps(arguments, ensure_ascii=False),
            )
            for name, arguments, _ in checked
        )
        return parsed.text, calls, ()

    def _missing(self) -> tuple[Event, ...]:
        if self._choice.mode != "required":
            return ()
        return (
            Event(
                code="tool-call-missing",
                message="a call of a tool was required and the model made none that can be used",
            ),
        )

    def _has_mark(self, text: str) -> bool:
        return any(mark in text for mark in self._starts)

    def _until_mark(self, text: str) -> str:
        """Return the text before the first mark of a call, and keep the rest."""
        found = [at for at in (text.find(mark) for mark in self._starts) if at >= 0]
        if found:
            self._kept = [text[min(found) :]]
            return text[: min(found)]
        keep = self._possible_mark(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _possible_mark(self, text: str) -> int:
        """Return the length of the longest end of a text that may begin a mark."""
        longest = 0
        for mark in self._starts:
            at = text.find(mark[0], max(0, len(text) - len(mark) + 1))
            while at >= 0 and not mark.startswith(text[at:]):
                at = text.find(mark[0], at + 1)
            longest = max(longest, len(text) - at if at >= 0 else 0)
        return longest


def _truncated() -> Event:
    return Event(
        code="tool-call-truncated",
        message="the answer was cut within or after a call of a tool; none of it counts as a call",
    )


def _invalid(why: str) -> Event:
    return Event(
        code="tool-call-invalid",
        message=f"what the model wrote as calls of tools is handed on as text: {why}",
        context={"reason": why},
    )
