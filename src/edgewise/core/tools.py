"""Tools a model may call, and the calls it makes."""

from __future__ import annotations

import re

import msgspec

from edgewise.errors import InputError

__all__ = ["Tool", "ToolCall", "ToolChoice"]

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_PARAMETERS_CHARACTERS_MAX = 1 << 18


class Tool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function of the caller's.

    Attributes:
        name: 1 to 64 letters, digits, dots, dashes and underscores.
        description: What it does, for the model.
        parameters: JSON Schema of its arguments, as JSON text; an object's.
    """

    name: str
    description: str = ""
    parameters: str = '{"type": "object", "properties": {}}'

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(
                "tool-invalid",
                f"a tool is called {self.name[:80]!r}",
                hint="use 1 to 64 letters, digits, dots, dashes and underscores",
            )
        try:
            schema = msgspec.json.decode(self.parameters)
        except (msgspec.DecodeError, RecursionError):
            schema = None
        if not isinstance(schema, dict) or len(self.parameters) > _PARAMETERS_CHARACTERS_MAX:
            raise InputError(
                "tool-invalid",
                f"the parameters of the tool {self.name!r} are no JSON Schema of an object",
                hint='give an object such as {"type": "object", "properties": {...}}',
            )


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the model may, must or must not call a tool.

    Attributes:
        mode: ``auto``, ``none``, or ``required``.
        name: With ``required``: the tool that has to be called.
    """

    mode: str = "auto"
    name: str | None = None

    def __post_init__(self) -> None:
        known = self.mode in {"auto", "none", "required"}
        if not known or (self.name is not None and self.mode != "required"):
            raise InputError(
                "tool-choice-invalid",
                f"the tool choice {self.mode!r} is none that there is",
                hint="use auto, none or required; a name goes with required",
            )


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that a model made. ``arguments`` is JSON text, valid against the tool's schema."""

    id: str
    name: str
    arguments: str
