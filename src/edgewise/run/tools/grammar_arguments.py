"""Grammar rules for arguments that are no JSON object: between marks each, or Python's.

Arguments come in the order in which the schema declares them. What of the schema these rules
cannot say is left to the check of the call; what would make every call fail it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool
from edgewise.errors import InputError, UnsupportedError
from edgewise.run.tools.python_literals import is_keyword
from edgewise.run.tools.spellings import MarkedArguments

__all__ = ["json_schema", "marked_arguments", "python_arguments"]

# Keywords with which ``properties`` does not say what the arguments are.
_ELSEWHERE: Final = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf"})
# Counted out in an automaton; above it the check alone holds.
_COUNTED_CHARACTERS_MAX: Final = 4096
_REFERENCES_MAX: Final = 20
# What says nothing about a value.
_NOTES: Final = frozenset({"title", "description", "default", "examples", "$comment"})

Terminals = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class _Argument:
    name: str
    schema: Any
    required: bool


def json_schema(tool: Tool, source: str) -> str:
    """Return a schema as the grammar library takes it, options included.

    Raises:
        InputError: it is malformed.
        UnsupportedError: it can be neither enforced nor checked, or the library is missing.
        ResourceError: it is too large.
    """
    from edgewise.run.structure.grammar import prepare  # noqa: PLC0415 - few requests need it

    try:
        prepared, _ = prepare(Structure(kind=StructureKind.JSON_SCHEMA, source=source))
    except InputError as error:
        error.context.setdefault("tool", tool.name)
        raise
    (grammar,) = json.loads(prepared.grammar)["grammars"]
    return json.dumps(grammar["json_schema"])


def marked_arguments(
    rule: str, tool: Tool, form: MarkedArguments, held: Sequence[str], text: Terminals
) -> list[str]:
    """Return rules for arguments between marks; the first one is called ``rule``.

    Args:
        rule: Its name, and the beginning of the other names.
        tool: The tool.
        form: The marks.
        held: Texts that no value may hold, since they would end it.
        text: Makes terminals of a text.

    Raises:
        InputError: a part of the schema is malformed.
        UnsupportedError: the arguments cannot be spelled this way.
        ResourceError: the schema is too large.
    """
    parts: list[str] = []
    lines: list[str] = []
    root = json.loads(tool.parameters)
    for index, argument in enumerate(_arguments(tool, root, lambda _: True)):
        name = f"{rule}_{index}"
        value, more = _marked_value(name, tool, argument, root, form, held)
        whole = f"{text(form.opening + argument.name + form.middle)} {value}"
        parts.append(whole if argument.required else f"({whole})?")
        lines += more
    return [f"{rule}: {' '.join(parts) or _quoted('')}", *lines]


def python_arguments(rule: str, tool: Tool, *, pythonic: bool) -> list[str]:
    """Return rules for arguments as Python's; parameters and errors are those of the other.

    Args:
        rule: Name of the first rule, and the beginning of the other names.
        tool: The tool.
        pythonic: Whether constants are Python's.
    """
    root = json.loads(tool.parameters)
    arguments = list(_arguments(tool, root, is_keyword))
    first: list[str] = []
    tails: list[str] = []
    lines: list[str] = []
    for index, argument in enumerate(arguments):
        value = f"{rule}_{index}"
        spelled = f"{_quoted(argument.name + '=')} {value}"
        lines += _python_value(value, tool, argument.schema, root, pythonic=pythonic)
        one = f"{_quoted(', ')} {spelled}"
        follows = f"{rule}_after_{index + 1}"
        tails.append(f"{rule}_after_{index}: {one if argument.required else f'({one})?'} {follows}")
        or_later = "" if argument.required else f" | {rule}_from_{index + 1}"
        first.append(f"{rule}_from_{index}: {spelled} {follows}{or_later}")
    count = len(arguments)
    ends = [f'{rule}_after_{count}: ""', f'{rule}_from_{count}: ""']
    return [f"{rule}: {rule}_from_0", *first, *tails, *ends, *lines]


def _python_value(
    rule: str, tool: Tool, schema: Any, root: Mapping[str, Any], *, pythonic: bool
) -> list[str]:
    """Return rules for a value: as JSON, and where the model writes Python as Python too."""
    alone = f"%json {json_schema(tool, _standing_alone(schema, root))}"
    schema = _resolved(schema, root)
    if not pythonic:
        return [f"{rule}: {alone}"]
    if _kinds(schema) == ["boolean"] and _fixed(schema) is None:
        return [f'{rule}: "True" | "False"']
    fixed = _fixed(schema)
    if fixed is not None and schema.keys() - _NOTES <= {"type", "enum", "const"}:
        return [f"{rule}: {' | '.join(_quoted(repr(value)) for value in fixed)}"]
    if _kinds(schema) == ["string"] and schema.keys() - _NOTES <= {
        "type",
        "minLength",
        "maxLength",
    }:
        single = rf"/'([^'\\\x00-\x1f\x7f]|\\['\\nrt]){_size(schema)}'/"
        return [
            f"{rule}: {rule}_json | {rule.upper()}",
            f"{rule}_json: {alone}",
            f"{rule.upper()}: {single}",
        ]
    return [f"{rule}: {alone}"]


def _arguments(tool: Tool, root: Any, can_name: Callable[[str], bool]) -> Iterator[_Argument]:
    elsewhere = sorted(_ELSEWHERE & root.keys())
    properties = root.get("properties", {})
    if elsewhere or not isinstance(properties, dict):
        keyword = elsewhere[0] if elsewhere else "properties"
        raise _refused(tool, f"/{keyword}", "says what the arguments are, and only /properties may")
    required = set(root.get("required", ()))
    lost = sorted(name for name in required if name not in properties or not can_name(name))
    if lost:
        raise _refused(tool, "/required", f"names {lost[0][:80]!r}, which cannot be written")
    for name, schema in properties.items():
        if can_name(name):
            yield _Argument(name, schema, name in required)


def _marked_value(
    rule: str,
    tool: Tool,
    argument: _Argument,
    root: Any,
    form: MarkedArguments,
    held: Sequence[str],
) -> tuple[str, list[str]]:
    """Return what a value and its closing mark are in a rule, and further rules."""
    if not form.quoted and _may_be_text(argument.schema, root):
        if len(argument.name) > 200 or any(mark in argument.name for mark in held):
            raise _refused(tool, "/properties", f"names {argument.name[:80]!r}")
        terminal = rule.upper()
        body = _text_terminals(terminal, _resolved(argument.schema, root), held)
        return terminal, [f"{terminal}: {terminal}_TEXT {_quoted(form.closing)}", body]
    source = _standing_alone(argument.schema, root)
    value = f"{rule}_value"
    return f"{value} {_quoted(form.closing)}", [f"{value}: %json {json_schema(tool, source)}"]


def _text_terminals(name: str, schema: Any, held: Sequence[str]) -> str:
    """Return the terminal of a text that no mark is in.

    The closing mark is part of the terminal around it: a lexer takes the longest match, and
    would run past the mark where the text alone ends anywhere.
    """
    fixed = _fixed(schema)
    if fixed is not None:
        spelled = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in fixed]
        sound = [text for text in spelled if not any(mark in text for mark in held)]
        if sound:
            return f"{name}_TEXT: {' | '.join(map(_regex_of, sound))}"
    without = "|".join(_escaped(mark) for mark in held)
    any_text = f"/(?s:.){_size(schema if isinstance(schema, dict) else {})}/"
    return f"{name}_TEXT: {any_text} & ~/(?s:.*)({without})(?s:.*)/"


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return what a schema refers to that is nothing but a reference."""
    for _ in range(_REFERENCES_MAX):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or schema.keys() - _NOTES != {"$ref"}:
            break
        target = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
        if target is None:
            break
        schema = target
    return schema


def _may_be_text(schema: Any, root: Mapping[str, Any], level: int = 0) -> bool:
    """Return whether a value may be a text, by what can be seen of its schema."""
    schema = _resolved(schema, root)
    if not isinstance(schema, dict) or level > _REFERENCES_MAX:
        return bool(schema)
    if "const" in schema:
        return isinstance(schema["const"], str)
    if isinstance(schema.get("enum"), list):
        return any(isinstance(value, str) for value in schema["enum"])
    if "type" in schema:
        return "string" in _kinds(schema)
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            return any(_may_be_text(one, root, level + 1) for one in schema[keyword])
    return True


def _kinds(schema: Any) -> list[str]:
    kinds = schema.get("type") if isinstance(schema, dict) else None
    return [kinds] if isinstance(kinds, str) else kinds or []


def _fixed(schema: Any) -> list[Any] | None:
    """Return the values that a schema lists, if it does."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else None


def _size(schema: Any) -> str:
    """Return how often a character may stand in a text."""
    least, most = (schema.get("minLength", 0), schema.get("maxLength")) if schema else (0, None)
    if _kinds(schema) != ["string"] or max(least, most or 0) > _COUNTED_CHARACTERS_MAX:
        return "*"
    return f"{{{int(least)},{'' if most is None else int(most)}}}"


def _standing_alone(schema: Any, root: Mapping[str, Any]) -> str:
    """Return the schema of one argument with what it may refer to."""
    if isinstance(schema, dict) and "$defs" in root and "$defs" not in schema:
        schema = {**schema, "$defs": root["$defs"]}
    return json.dumps(schema, ensure_ascii=False)


def _regex_of(text: str) -> str:
    return f"/{_escaped(text)}/" if text else '""'


def _escaped(text: str) -> str:
    """Return a text as a regular expression between slashes."""
    return "".join(one if one.isalnum() else f"\\x{{{ord(one):x}}}" for one in text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _refused(tool: Tool, pointer: str, why: str) -> UnsupportedError:
    return UnsupportedError(
        "structure-unsupported",
        f"a call of {tool.name!r} cannot be forced in this model's spelling of calls: "
        f"{pointer} {why}",
        context={"tool": tool.name, "pointer": pointer},
        hint="declare each argument under /properties, or do not require the call",
    )
