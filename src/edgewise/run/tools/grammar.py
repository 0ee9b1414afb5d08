"""A grammar that only calls of the given tools fit, spelled as the model spells them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolChoice
from edgewise.errors import UnsupportedError
from edgewise.run.tools.formats import ToolFormat
from edgewise.run.tools.grammar_arguments import (
    json_schema,
    marked_arguments,
    python_arguments,
)
from edgewise.run.tools.spellings import MarkedArguments

__all__ = ["CALLS_MAX", "structure_for"]

# A small model that may go on calling does; a person would have stopped it by then.
CALLS_MAX: Final = 8


def structure_for(form: ToolFormat, tools: Sequence[Tool], choice: ToolChoice) -> Structure | None:
    """Return what an answer has to look like that must call a tool.

    There is one call; where parallel calls were asked for there are 1 to :data:`CALLS_MAX`. What
    of a tool's schema no grammar can carry is left to the check of the calls that were made.

    Returns:
        A grammar in Lark's notation for llguidance, which unlike a caller's may hold schemas and
        control tokens. ``None`` when nothing is required, or a mark is a control token whose id
        the format does not have: no text can spell it.

    Raises:
        InputError: a tool's schema is malformed.
        UnsupportedError: a tool's schema can be neither enforced nor checked, or the grammar
            library is missing.
        ResourceError: a tool's schema is too large.
    """
    ids = dict(form.token_ids)
    if choice.mode != "required" or any(mark not in ids for mark in form.control):
        return None
    allowed = [t for t in tools if choice.name is None or t.name == choice.name]
    writer = _Writer(form, {mark: ids[mark] for mark in form.control})
    most = 1 if choice.forces_one else CALLS_MAX
    return Structure(kind=StructureKind.LARK, source=writer.grammar(allowed, most))


class _Writer:
    def __init__(self, form: ToolFormat, control: Mapping[str, int]) -> None:
        self._form = form
        self._control = control

    def grammar(self, tools: Sequence[Tool], most: int) -> str:
        form = self._form
        again = f" (again){{0,{most - 1}}}" if most > 1 else ""
        together = form.together
        wrap = (form.begin, form.end) if together is not None else ("", "")
        each = ("", "") if together is not None else (form.begin, form.end)
        brackets, between = (("", ""), form.between) if together is None else together
        lines = [
            _rule(
                "start",
                self._text(form.before_all + wrap[0] + brackets[0]),
                f"call{again}",
                self._text(brackets[1] + wrap[1] + form.after_all),
            )
        ]
        if most > 1:
            lines.append(_rule("again", self._text(between), "call"))
        names = " | ".join(f"call_{index}" for index in range(len(tools)))
        lines.append(_rule("call", self._text(each[0]), f"({names})", self._text(each[1])))
        for index, tool in enumerate(tools):
            lines += self._call(index, tool)
        return "\n".join(lines) + "\n"

    def _call(self, index: int, tool: Tool) -> list[str]:
        form, rule = self._form, f"args_{index}"
        name = _quoted(tool.name)
        if form.python is not None:
            rules = python_arguments(rule, tool, pythonic=form.python.pythonic)
            return [_rule(f"call_{index}", name, _quoted("("), rule, _quoted(")")), *rules]
        if form.marked is not None:
            self._require_text_marks(form.marked)
            separator = self._text("".join(form.separator or ()))
            rules = marked_arguments(rule, tool, form.marked, form.held, self._text)
            return [_rule(f"call_{index}", name, separator, rule), *rules]
        before, behind = self._around(tool.name)
        # A rule of its own, so that what the schema refers to is looked for in the schema.
        return [
            _rule(f"call_{index}", before, rule, behind),
            f"args_{index}: %json {json_schema(tool, tool.parameters)}",
        ]

    def _require_text_marks(self, marked: MarkedArguments) -> None:
        """Refuse marks that are control tokens: no terminal could run up to one."""
        lost = [mark for mark in self._control if mark in marked.middle + marked.closing]
        if lost:
            raise UnsupportedError(
                "structure-unsupported",
                f"a call cannot be forced where {lost[0]!r} around arguments is a control token",
                context={"mark": lost[0]},
                hint="do not require the call",
            )

    def _around(self, name: str) -> tuple[str, str]:
        """Return what stands before and behind the arguments of a call."""
        form = self._form
        if form.separator is not None:
            pieces = [self._text(piece) for piece in form.separator]
            return f"{_quoted(name)} {' /[A-Za-z0-9]{9}/ '.join(pieces)}", ""
        before = f"{_quoted_json(form.name_key)}: {_quoted_json(name)}, "
        before += f"{_quoted_json(form.arguments_key)}: "
        if form.nested:
            head = '{"type": "function", "function": {'
            return _quoted(head + before), _quoted("}}")
        return _quoted("{" + before), _quoted("}")

    def _text(self, text: str) -> str:
        """Return a text as terminals, with control tokens by their ids."""
        if not self._control:
            return _quoted(text)
        split = re.split("(" + "|".join(map(re.escape, self._control)) + ")", text)
        parts = [
            f"<[{self._control[part]}]>" if part in self._control else _quoted(part)
            for part in split
        ]
        return " ".join(part for part in parts if part)


def _rule(name: str, *parts: str) -> str:
    return f"{name}: {' '.join(part for part in parts if part)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _quoted_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
