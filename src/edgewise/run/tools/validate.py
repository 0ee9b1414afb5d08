"""Whether a call is one of a tool that there is, with arguments that the tool takes.

Arguments are checked against the tool's JSON Schema (draft 2020-12). A schema that points
outside of itself is never fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edgewise.core.tools import Tool, ToolChoice
from edgewise.errors import InputError, UnsupportedError

__all__ = ["ToolChecker"]


class ToolChecker:
    """Checks calls against the tools of one request."""

    def __init__(self, tools: Sequence[Tool], choice: ToolChoice) -> None:
        """Read the tools' schemas.

        Raises:
            InputError: the parameters of a tool are no valid JSON Schema (``tool-invalid``).
            UnsupportedError: the library that checks them is not installed.
        """
        self._validators = {tool.name: _validator(tool) for tool in tools}
        self._only = choice.name

    def problem(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return why a call cannot be made, or ``None`` when it can."""
        validator = self._validators.get(name)
        if validator is None:
            return f"there is no tool called {name[:80]!r}"
        if self._only is not None and name != self._only:
            return f"the tool {name!r} is called, and {self._only!r} has to be"
        from referencing.exceptions import Unresolvable  # noqa: PLC0415 - with jsonschema

        try:
            error = next(validator.iter_errors(arguments), None)
        except RecursionError:
            return f"the arguments of {name!r} are nested too deeply for its schema"
        except Unresolvable as missing:
            return f"the schema of {name!r} refers to what is not in it: {str(missing)[:200]}"
        if error is None:
            return None
        return f"the arguments of {name!r} break its schema at {error.json_path}: {_short(error)}"


def _short(error: Any) -> str:
    return f"{error.message[:200]}"


def _validator(tool: Tool) -> Any:
    try:
        # It takes 100 ms to import, and only answers with tools need it.
        import jsonschema  # type: ignore[import-untyped]  # noqa: PLC0415
        from referencing import Registry  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError(
            "structure-library-missing",
            "tools need the package jsonschema, which is not installed here",
            hint="pip install jsonschema",
        ) from error
    schema = json.loads(tool.parameters)
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise _invalid(tool, f"{error.json_path}: {_short(error)}") from error
    except RecursionError as error:
        raise _invalid(tool, "it is nested too deeply") from error
    # A registry of its own: the default one would fetch what a schema refers to.
    return jsonschema.Draft202012Validator(schema, registry=Registry())


def _invalid(tool: Tool, why: str) -> InputError:
    return InputError(
        "tool-invalid",
        f"the parameters of the tool {tool.name!r} are no valid JSON Schema: {why}",
        hint="correct the tool's declaration; the dialect is draft 2020-12",
    )
