"""Values out of arguments that stand in an answer as plain texts.

``5`` may be a number and may be a text. The tool's schema decides, by being asked: the text is
read in every way that it can be read, and the one reading that is valid is the value. Where two
are, nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewise.core import strict_json
from edgewise.run.tools.python_literals import literal
from edgewise.run.tools.reading import ARGUMENTS_DEPTH_MAX

__all__ = ["UntypedError", "typed"]

# An argument is one level below the arguments.
_DEPTH_MAX = ARGUMENTS_DEPTH_MAX - 1


class UntypedError(ValueError):
    """A text is no value of its argument's, or may be two."""


def typed(texts: Mapping[str, str], validator: Any, *, pythonic: bool) -> dict[str, Any]:
    """Return the arguments that texts stand for.

    Args:
        texts: The texts.
        validator: Of the whole schema of a tool.
        pythonic: Whether values may be spelled as Python's.

    Raises:
        UntypedError: a text fits no type, or several, or its argument is not declared.
    """
    return {
        name: _typed(name, text, _declared(name, validator), pythonic)
        for name, text in texts.items()
    }


def _declared(name: str, validator: Any) -> Any:
    schema = validator.schema
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(properties, dict) and name in properties:
        return validator.evolve(schema=properties[name])
    further = schema.get("additionalProperties") if isinstance(schema, dict) else None
    if isinstance(further, dict) and further:
        return validator.evolve(schema=further)
    raise UntypedError(f"the argument {name[:80]!r} is not declared, so its type is not known")


def _typed(name: str, text: str, validator: Any, pythonic: bool) -> Any:
    if _is_text(validator.schema):
        return text  # whatever it looks like; whether it is valid is seen later
    readings: list[Any] = [text]
    try:
        value = _read(text, pythonic)
    except ValueError as error:
        if text.lstrip().startswith(("[", "{", "(")):
            raise UntypedError(f"the argument {name[:80]!r} cannot be read: {error}") from error
    else:
        # A text would stand there as it is, without quotes.
        readings += [] if isinstance(value, str) else [value]
    valid = [reading for reading in readings if validator.is_valid(reading)]
    if len(valid) == 1:
        return valid[0]
    if valid:
        raise UntypedError(f"the argument {name[:80]!r} may be a text or a {_kind(valid[1])}")
    raise UntypedError(f"the argument {name[:80]!r} has no value that its schema takes")


def _is_text(schema: Any) -> bool:
    """Return whether nothing but a text is valid, as far as the schema says so itself."""
    if not isinstance(schema, dict):
        return False
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        return all(isinstance(value, str) for value in listed)
    return schema.get("type") == "string"


def _read(text: str, pythonic: bool) -> Any:
    try:
        return strict_json.parse(text, depth_max=_DEPTH_MAX)
    except strict_json.StrictJsonError:
        # Constants are Python's in many a template that writes the rest as JSON.
        if not pythonic and text not in {"True", "False", "None"}:
            raise
    return literal(text, depth_max=_DEPTH_MAX)


def _kind(value: Any) -> str:
    kinds = {bool: "boolean", type(None): "null", dict: "JSON object", list: "list"}
    return kinds.get(type(value), "number")
