"""Whether a call is one of a tool that there is, with arguments that the tool takes.

Arguments are checked against the tool's JSON Schema (draft 2020-12), by the checker that
structured output has: patterns are matched in linear time, and a schema that points outside of
itself is never fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from edgewise.core.tools import Tool, ToolChoice
from edgewise.errors import InputError, UnsupportedError
from edgewise.run.tools.formats import ToolFormat
from edgewise.run.tools.typing_arguments import UntypedError, typed

__all__ = ["ToolChecker"]

# What holds data, not schemas, and what holds schemas by names that are no keywords.
_DATA: Final = frozenset({"enum", "const", "default", "examples"})
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "dependentSchemas"})


class ToolChecker:
    """Checks calls against the tools of one request."""

    def __init__(self, tools: Sequence[Tool], choice: ToolChoice) -> None:
        """Read the tools' schemas.

        Raises:
            InputError: the parameters of a tool are no valid JSON Schema (``tool-invalid``).
            UnsupportedError: a pattern in them cannot be checked, or the library that checks
                them is not installed.
            ResourceError: a pattern is too long.
        """
        self._validators = {tool.name: _validator(tool) for tool in tools}
        self._only = choice.name

    def checked(
        self, name: str, arguments: Mapping[str, Any], form: ToolFormat
    ) -> tuple[Mapping[str, Any], str | None]:
        """Return the arguments with their types, and why the call cannot be made, if so."""
        validator = self._validators.get(name)
        if validator is None:
            return arguments, f"there is no tool called {name[:80]!r}"
        if self._only is not None and name != self._only:
            return arguments, f"the tool {name!r} is called, and {self._only!r} has to be"
        from referencing.exceptions import Unresolvable  # noqa: PLC0415 - with jsonschema

        try:
            if form.marked is not None and form.typed_by_schema:
                arguments = typed(arguments, validator, pythonic=form.marked.pythonic)
            error = next(validator.iter_errors(arguments), None)
        except UntypedError as unknown:
            return arguments, f"of the call of {name!r} {unknown}"
        except RecursionError:
            return arguments, f"the arguments of {name!r} are nested too deeply for its schema"
        except Unresolvable as missing:
            why = str(missing)[:200]
            return arguments, f"the schema of {name!r} refers to what is not in it: {why}"
        if error is None:
            return arguments, None
        where = error.json_path
        return arguments, f"the arguments of {name!r} break its schema at {where}: {_short(error)}"


def _short(error: Any) -> str:
    return f"{error.message[:200]}"


def _validator(tool: Tool) -> Any:
    from edgewise.run.structure.library import GrammarError  # noqa: PLC0415 - as below

    try:
        return _sound_validator(tool.parameters)
    except _UnsoundError as error:
        raise InputError(
            "tool-invalid",
            f"the parameters of the tool {tool.name!r} are no valid JSON Schema: {error}",
            hint="correct the tool's declaration; the dialect is draft 2020-12",
        ) from error
    except GrammarError as error:
        raise UnsupportedError(
            "structure-unsupported",
            f"a pattern of the tool {tool.name!r} cannot be checked: {error}",
            context={"keyword": "pattern", "tool": tool.name},
            hint="leave it out, or write it without look-around and back references",
        ) from error


class _UnsoundError(Exception):
    """A schema is none, for the reason given."""


@lru_cache(maxsize=64)
def _sound_validator(parameters: str) -> Any:
    # It takes 100 ms to import, and only answers with tools need it.
    from edgewise.run.structure.library import GrammarError  # noqa: PLC0415
    from edgewise.run.structure.patterns import require_pattern  # noqa: PLC0415
    from edgewise.run.structure.validate import checker  # noqa: PLC0415

    schema = json.loads(parameters)
    validator = checker(schema, formats_hold=False)
    from jsonschema import FormatChecker, SchemaError  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        # Without formats: patterns are not Python's, and are looked at below.
        validator.check_schema(schema, format_checker=FormatChecker(()))
    except SchemaError as error:
        raise _UnsoundError(f"{error.json_path}: {_short(error)}") from error
    except RecursionError as error:
        raise _UnsoundError("it is nested too deeply") from error
    for pattern in dict.fromkeys(_patterns(schema)):
        try:
            require_pattern(pattern)
        except GrammarError:
            _require_well_formed(pattern)
            raise
    return validator


def _require_well_formed(pattern: str) -> None:
    """Tell a pattern that is none from one that only the engine does not take."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise _UnsoundError(f"the pattern {pattern[:80]!r} is malformed: {error}") from error


def _patterns(schema: Any) -> Iterator[str]:
    """Yield every pattern of a schema and of the schemas in it."""
    left = [schema]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left += node
        if not isinstance(node, dict):
            continue
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        for keyword, value in node.items():
            if keyword == "patternProperties" and isinstance(value, dict):
                yield from value
            if keyword in _NAMED and isinstance(value, dict):
                left += value.values()
            elif keyword not in _DATA:
                left.append(value)
