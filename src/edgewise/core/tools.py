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
        _check_name(self.name)
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
        parallel: Whether an answer may hold several calls. ``None``: where the model is free it
            may, where it must call it makes one, since a small model that is held to calls
            repeats itself.
    """

    mode: str = "auto"
    name: str | None = None
    parallel: bool | None = None

    def __post_init__(self) -> None:
        known = self.mode in {"auto", "none", "required"}
        if not known or (self.name is not None and self.mode != "required"):
            raise InputError(
                "tool-choice-invalid",
                f"the tool choice {self.mode!r} is none that there is",
                hint="use auto, none or required; a name goes with required",
            )

    @property
    def forces_one(self) -> bool:
        """Return whether exactly one call has to be made."""
        return self.mode == "required" and not self.parallel


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that a model made.

    Attributes:
        id: What the answer to it refers to.
        name: The tool's: 1 to 64 letters, digits, dots, dashes and underscores.
        arguments: JSON text, valid against the tool's schema.
    """

    id: str
    name: str
    arguments: str

    def __post_init__(self) -> None:
        _check_name(self.name)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(
            "tool-invalid",
            f"a tool is called {name[:80]!r}",
            hint="use 1 to 64 letters, digits, dots, dashes and underscores",
        )
