"""A grammar that only calls of the given tools fit, spelled as the model spells them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolChoice
from edgewise.run.tools.formats import ToolFormat

__all__ = ["CALLS_MAX", "structure_for"]

# A small model that may go on calling does; a person would have stopped it by then.
CALLS_MAX: Final = 8


def structure_for(form: ToolFormat, tools: Sequence[Tool], choice: ToolChoice) -> Structure | None:
    """Return what an answer has to look like that must call a tool.

    A named tool is called once; otherwise there are 1 to :data:`CALLS_MAX` calls. What of a
    tool's schema no grammar can carry is left to the check of the calls that were made.

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
    most = 1 if choice.name is not None else CALLS_MAX
    return Structure(kind=StructureKind.LARK, source=writer.grammar(allowed, most))


def _schema(tool: Tool) -> str:
    """Return a tool's schema as the grammar library takes it, options included."""
    from edgewise.run.structure.grammar import prepare  # noqa: PLC0415 - few requests need it

    own = Structure(kind=StructureKind.JSON_SCHEMA, source=tool.parameters)
    (grammar,) = json.loads(prepare(own)[0].grammar)["grammars"]
    return json.dumps(grammar["json_schema"])


class _Writer:
    def __init__(self, form: ToolFormat, control: Mapping[str, int]) -> None:
        self._form = form
        self._control = control

    def grammar(self, tools: Sequence[Tool], most: int) -> str:
        form = self._form
        again = f" (again){{0,{most - 1}}}" if most > 1 else ""
        wrap = (form.begin, form.end) if form.listed else ("", "")
        each = ("", "") if form.listed else (form.begin, form.end)
        between = ", " if form.listed else form.between
        brackets = ("[", "]") if form.listed else ("", "")
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
        before, behind = self._around(tool.name)
        # A rule of its own, so that what the schema refers to is looked for in the schema.
        return [
            _rule(f"call_{index}", before, f"args_{index}", behind),
            f"args_{index}: %json {_schema(tool)}",
        ]

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
