"""How calls of tools are spelled.

Models differ in the marks around a call, in where the name stands, and in whether several calls
are a list. All of that is data here; nothing goes by a model's name. A format is learned from
what a template makes of a call (:mod:`edgewise.run.tools.detect`), or is :data:`PROMPT_FORMAT`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from edgewise.core.outcome import Event
from edgewise.run.tools.spellings import MarkedArguments, PythonCalls

__all__ = ["PROMPT_FORMAT", "RawCall", "ToolFormat", "atoms"]

# The name and the arguments of one call.
RawCall: TypeAlias = tuple[str, Mapping[str, Any]]

_ATOM: Final = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]|\s+|\w+|.", re.DOTALL)
_TAG: Final = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


def atoms(text: str) -> list[str]:
    """Return the tags, words, spaces and signs that make up a text."""
    return _ATOM.findall(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a model spells calls, and how its template takes them.

    Attributes:
        begin: What stands before a call, spaces included; empty when a call is bare JSON that
            makes up the whole answer.
        end: What stands behind it; may be empty.
        between: What stands between two calls.
        before_all: What stands before the first call only.
        after_all: What stands behind the last one only.
        separator: Where the name stands outside the JSON: the texts between name and arguments.
            Between two of these texts stands an id. ``None`` when the name is in the JSON.
        also_begin: Other marks that models with this format are known to put before a call.
        listed: Whether the JSON is a list of calls.
        nested: Whether name and arguments are in an object under ``function``.
        name_key: Key of the name in the JSON.
        arguments_key: Key of the arguments.
        text_arguments: Whether the arguments in the JSON are JSON text.
        marked: How arguments are spelled that stand between marks each, behind the name.
        python: How calls are spelled that are Python's.
        takes_text: Whether the template takes arguments as JSON text, not as an object.
        takes_short_ids: Whether the template takes only ids of nine letters and digits.
        by_prompt: Whether the format is Edgewise's own, explained to the model in the prompt.
        instead_of: The spelling that the model was trained on and that is not read, if known.
        system_turn: Whether the template has a turn of the system's to explain it in.
        control: Those marks that are control tokens of the model.
        token_ids: Marks that are one token of the model each, with its id.
    """

    begin: str
    end: str = ""
    between: str = ""
    before_all: str = ""
    after_all: str = ""
    separator: tuple[str, ...] | None = None
    also_begin: tuple[str, ...] = ()
    listed: bool = False
    nested: bool = False
    name_key: str = "name"
    arguments_key: str = "arguments"
    text_arguments: bool = False
    marked: MarkedArguments | None = None
    python: PythonCalls | None = None
    takes_text: bool = False
    takes_short_ids: bool = False
    by_prompt: bool = False
    instead_of: str | None = None
    system_turn: bool = True
    control: tuple[str, ...] = ()
    token_ids: tuple[tuple[str, int], ...] = ()

    @property
    def bare(self) -> bool:
        """Return whether a call is JSON with nothing before it."""
        return not self.begin.strip()

    @property
    def typed_by_schema(self) -> bool:
        """Return whether arguments are read as texts, which the tool's schema has to type."""
        return self.marked is not None and not self.marked.quoted

    @property
    def together(self) -> tuple[tuple[str, str], str] | None:
        """Return the brackets around several calls and what joins them, if they share marks."""
        if self.python is not None and self.python.join is not None:
            return (self.python.opening, self.python.closing), self.python.join
        return (("[", "]"), ", ") if self.listed else None

    @property
    def held(self) -> tuple[str, ...]:
        """Return the marks that no value between marks may hold: they would end it."""
        if self.marked is None:
            return ()
        marked = (self.marked.opening, self.marked.middle, self.marked.closing)
        texts = (*self.starts, self.end, self.after_all, *marked)
        words = dict.fromkeys(word for text in texts for word in text.split())
        return tuple(word for word in words if "<" in word or "[" in word)

    @property
    def opens(self) -> tuple[str, ...]:
        """Return the marks a call begins with, without spaces."""
        return tuple(t for t in (self.begin.strip(), *self.also_begin) if t)

    @property
    def starts(self) -> tuple[str, ...]:
        """Return the marks that tell that calls begin."""
        first = self.before_all.strip()
        return (first, *self.opens) if first else self.opens

    @property
    def marks(self) -> tuple[str, ...]:
        """Return every tag that takes part in the spelling of calls."""
        spelled = (
            self.before_all,
            self.begin,
            *(self.separator or ()),
            *((m.opening, m.middle, m.closing) if (m := self.marked) is not None else ()),
            self.end,
            self.between,
            self.after_all,
            *self.also_begin,
        )
        found = [tag for text in spelled for tag in _TAG.findall(text)]
        return tuple(dict.fromkeys(found))

    @property
    def events(self) -> tuple[Event, ...]:
        """Return what a caller that gives tools has to be told."""
        if not self.by_prompt:
            return ()
        why = "the model's template knows no tools, or not how calls are spelled"
        if self.instead_of is not None:
            why = f"the model's template spells calls as {self.instead_of}, which is not read"
        return (
            Event(
                code="tools-by-prompt",
                message=f"{why}; they are explained to the model in the prompt",
                context={} if self.instead_of is None else {"spelling": self.instead_of},
            ),
        )

    def marker_tokens(self, tokenize: Callable[..., list[int]]) -> dict[int, str]:
        """Return the text of every mark that is one token of the model.

        Control tokens have no bytes of their own in an answer; a decode loop spells those that
        are listed here as this text.

        Args:
            tokenize: The engine's.
        """
        found: dict[int, str] = {}
        for mark in self.marks:
            ids = tokenize(mark, add_special=False, parse_special=True)
            if len(ids) == 1:
                found[ids[0]] = mark
        return found

    def spell(self, calls: Sequence[RawCall]) -> str:
        """Return calls as the model is expected to write them."""
        if self.together is not None:
            (opening, closing), join = self.together
            body = f"{opening}{join.join(map(self._one, calls))}{closing}"
            return f"{self.before_all}{self.begin}{body}{self.end}{self.after_all}"
        spelled = [f"{self.begin}{self._one(call)}{self.end}" for call in calls]
        return f"{self.before_all}{self.between.join(spelled)}{self.after_all}"

    def _one(self, call: RawCall) -> str:
        name, arguments = call
        if self.python is not None:
            return self.python.spell(name, arguments)
        if self.marked is not None:
            return f"{name}{''.join(self.separator or ())}{self.marked.spell(arguments)}"
        if self.separator is not None:
            return f"{name}{'000000000'.join(self.separator)}{_json(arguments)}"
        given = _json(arguments) if self.text_arguments else arguments
        inner: dict[str, Any] = {self.name_key: name, self.arguments_key: given}
        return _json({"type": "function", "function": inner} if self.nested else inner)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# What many models have seen in training, and a tag that no vocabulary here has as a control token.
PROMPT_FORMAT: Final = ToolFormat(
    begin="<tool_call>\n", end="\n</tool_call>", between="\n", by_prompt=True
)
