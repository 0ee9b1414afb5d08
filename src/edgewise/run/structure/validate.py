"""Whether a finished text has its structure: the last gate, whatever was enforced before.

It does not trust the grammar: a JSON text is read again and held against the caller's own schema
by another implementation, jsonschema, with formats asserted, with patterns matched by an engine
that cannot be made to backtrack, and with multiples counted in decimals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from edgewise.core import strict_json
from edgewise.core.structure import Structure, StructureKind
from edgewise.errors import UnsupportedError
from edgewise.run.structure import formats
from edgewise.run.structure.document import read
from edgewise.run.structure.grammar import prepare
from edgewise.run.structure.library import accepts
from edgewise.run.structure.numbers import is_multiple
from edgewise.run.structure.patterns import matches_pattern

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["checker", "validate"]

_REPORTED_MAX = 20
_MESSAGE_CHARACTERS_MAX = 200


def validate(structure: Structure, text: str) -> tuple[str, ...]:
    """Return what is wrong with a finished text; empty when it has the structure.

    At most 20 things are reported. What they say may quote the text.

    Raises:
        InputError: the structure is malformed, or no text fits it.
        UnsupportedError: a part of it can be neither enforced nor checked, or a library is
            missing.
        ResourceError: the structure is too large.
    """
    prepared = _prepared(structure)
    if structure.kind in {StructureKind.JSON_SCHEMA, StructureKind.JSON}:
        return _json(structure, text)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return ("it holds a lone surrogate",)
    return () if accepts(prepared.grammar, data) else (f"it is no text of its {structure.kind}",)


@lru_cache(maxsize=32)
def _prepared(structure: Structure) -> Any:
    return prepare(structure)[0]


def _json(structure: Structure, text: str) -> tuple[str, ...]:
    try:
        value = strict_json.parse(text)
    except strict_json.StrictJsonError as error:
        return (str(error),)
    if structure.kind is StructureKind.JSON:
        return () if isinstance(value, dict) else ("it is no JSON object",)
    try:
        errors = islice(_validator(structure.source).iter_errors(value), _REPORTED_MAX)
        return tuple(_said(error) for error in errors)
    except RecursionError:
        return ("it is nested too deeply to be checked",)


def _said(error: Any) -> str:
    where = "".join(f"/{part}" for part in error.absolute_path)
    by = "/".join(str(part) for part in error.absolute_schema_path)
    return f"{where or '/'}: {error.message[:_MESSAGE_CHARACTERS_MAX]} (schema: /{by})"


@lru_cache(maxsize=32)
def _validator(source: str) -> Any:
    """Return the checker of a schema, which is known to be sound."""
    return checker(read(source).root)


def checker(root: Any, *, formats_hold: bool = True) -> Any:
    """Return jsonschema's validator of a schema, with the rules of this module.

    Its patterns have to be sound: one that the engine does not take is not told from one that
    nothing matches.

    Args:
        root: The schema.
        formats_hold: Whether ``format`` is asserted; else it is a note, as the draft has it.

    Raises:
        UnsupportedError: the package is missing.
    """
    jsonschema = _jsonschema()
    from referencing import Registry  # noqa: PLC0415 - comes with jsonschema

    own: dict[str, _Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "multipleOf": _multiple_of,
    }
    if formats_hold:
        own["format"] = _format
    kind = jsonschema.validators.extend(
        jsonschema.Draft202012Validator,
        {keyword: _with_error(function, jsonschema) for keyword, function in own.items()},
    )
    # A registry of its own: the default one would fetch what a reference names.
    return kind(root, registry=Registry())


def _jsonschema() -> ModuleType:
    try:
        import jsonschema  # type: ignore[import-untyped]  # noqa: PLC0415 - heavy
    except ImportError as error:
        raise UnsupportedError(
            "structure-library-missing",
            "JSON Schema needs the package jsonschema, which is not installed here",
            hint="pip install jsonschema",
        ) from error
    return jsonschema  # type: ignore[no-any-return]


_Found = Iterator[Any]
_Keyword = Callable[[Any, Any, Any, dict[str, Any]], _Found]


def _with_error(function: _Keyword, jsonschema: ModuleType) -> _Keyword:
    """Turn the texts that a keyword's function yields into the package's errors."""

    def run(validator: Any, value: Any, instance: Any, schema: dict[str, Any]) -> _Found:
        for found in function(validator, value, instance, schema):
            yield jsonschema.ValidationError(found) if isinstance(found, str) else found

    return run


def _pattern(_: Any, pattern: str, instance: Any, __: dict[str, Any]) -> _Found:
    if isinstance(instance, str) and not matches_pattern(pattern, instance):
        yield f"it does not match {pattern!r}"


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, _: dict[str, Any]
) -> _Found:
    if not isinstance(instance, dict):
        return
    for pattern, schema in patterns.items():
        for name, value in instance.items():
            if matches_pattern(pattern, name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, additional: Any, instance: Any, schema: dict[str, Any]
) -> _Found:
    if not isinstance(instance, dict):
        return
    patterns = schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in schema.get("properties", {}):
            continue
        if any(matches_pattern(pattern, name) for pattern in patterns):
            continue
        if additional is False:
            yield f"{name!r} is none of its properties"
        else:
            yield from validator.descend(value, additional, path=name)


def _multiple_of(_: Any, of: float, instance: Any, __: dict[str, Any]) -> _Found:
    is_number = isinstance(instance, int | float) and not isinstance(instance, bool)
    if is_number and not is_multiple(instance, of):
        yield f"{instance!r} is not a multiple of {of!r}"


def _format(_: Any, name: str, instance: Any, __: dict[str, Any]) -> _Found:
    if isinstance(instance, str) and not formats.is_right(name, instance):
        yield f"it is no {name}"
