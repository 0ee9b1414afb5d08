"""What an answer has to look like: a schema, a pattern, a choice, or a grammar."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from edgewise.errors import InputError

__all__ = ["Structure", "StructureKind"]

_SOURCE_CHARACTERS_MAX = 1 << 20
_CHOICES_MAX = 1024


class StructureKind(StrEnum):
    """In which language a structure is written.

    ``JSON_SCHEMA``: draft 2020-12. ``JSON``: any one JSON value that is an object. ``REGEX``: a
    regular expression for the whole answer, without look-around and back references. ``CHOICE``:
    one of several texts. ``LARK``: a context-free grammar in Lark's notation. ``GBNF``: one in
    llama.cpp's.
    """

    JSON_SCHEMA = "json-schema"
    JSON = "json"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"
    GBNF = "gbnf"


class Structure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A structure that an answer has to have.

    Attributes:
        kind: The language.
        source: The schema as JSON text, the regular expression or the grammar; empty otherwise.
        choices: The texts of a ``CHOICE``.
    """

    kind: StructureKind
    source: str = ""
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kind: object = self.kind  # msgspec checks what it decodes, not what Python makes
        source: object = self.source
        if not isinstance(kind, StructureKind):
            raise _invalid(f"its kind is of type {type(kind).__name__}; it must be StructureKind")
        if not isinstance(source, str):
            found = type(source).__name__
            raise _invalid(f"its source is of type {found}; it must be text, a schema as JSON text")
        if (self.kind is StructureKind.CHOICE) != bool(self.choices):
            raise _invalid("choices belong to the kind 'choice', which needs at least one")
        if len(self.choices) > _CHOICES_MAX or not all(self.choices):
            raise _invalid(f"a choice is one of 1 to {_CHOICES_MAX} texts, none of them empty")
        sourced = self.kind not in {StructureKind.CHOICE, StructureKind.JSON}
        if sourced != bool(self.source.strip()):
            raise _invalid(f"the kind {self.kind.value!r} takes {'a' if sourced else 'no'} source")
        if len(self.source) > _SOURCE_CHARACTERS_MAX:
            raise _invalid(f"its source has more than {_SOURCE_CHARACTERS_MAX} characters")


def _invalid(why: str) -> InputError:
    return InputError(
        "structure-invalid",
        f"this structure cannot be used: {why}",
        hint="see the documentation on structured output",
    )
