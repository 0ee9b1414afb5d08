"""What passes between the steps of translating a schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from referencing._core import Resolver

__all__ = ["Part", "Place", "Relaxation", "Translation"]


class Relaxation(StrEnum):
    """What may be left to the check when the library does not take a schema as a whole."""

    ONE_OF = "oneOf"
    PATTERN_PROPERTIES = "patternProperties"
    PROPERTY_COUNTS = "minProperties and maxProperties"
    LENGTHS = "minLength and maxLength beside a pattern"
    BESIDE_REFERENCES = "keywords beside $ref"


@dataclass(frozen=True, slots=True)
class Translation:
    """A schema as the grammar takes it.

    Attributes:
        grammar: The schema for the library.
        enforced: JSON pointers of the keywords that are in it.
        checked: Those that are not, and that the finished text is checked against.
    """

    grammar: Any
    enforced: tuple[str, ...]
    checked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """How a part was reached: with which references in force, how deep, and whether to speak."""

    resolver: Resolver[Any]
    level: int = 0
    silent: bool = False


@dataclass(slots=True)
class Part:
    """One object of the schema, and what becomes of it.

    Attributes:
        simple: Keywords about the value itself.
        before: Schemas that hold besides and that came before ``properties``.
        after: Those that came after. In this order the grammar has the properties of an object.
    """

    node: dict[str, Any]
    pointer: str
    place: Place
    simple: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)

    def apply(self, keyword: str, value: Any) -> None:
        """Add a keyword that applies schemas to the same value."""
        place = self.after if "properties" in self.simple else self.before
        if keyword == "allOf" and keyword in place:
            place[keyword] = [*place[keyword], *value]
        else:
            place[keyword] = value

    def schema(self) -> Any:
        """Return the whole as the library reads it."""
        if "allOf" in self.before and "allOf" in self.after:
            self.after["allOf"] = [*self.before.pop("allOf"), *self.after["allOf"]]
        return {**self.before, **self.simple, **self.after}
