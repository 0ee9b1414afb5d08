"""One pass over a schema: where it is, what it has seen, and the account of every keyword.

What is done with a keyword is a handler's: of :mod:`edgewise.run.structure.schema_values` for what
speaks of the value itself, of :mod:`edgewise.run.structure.schema_parts` for what applies schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from edgewise.run.structure import keywords, numbers
from edgewise.run.structure.document import Document
from edgewise.run.structure.library import GrammarError, too_large, unsupported
from edgewise.run.structure.loops import require_finite, require_no_loop
from edgewise.run.structure.parts import Part, Place, Relaxation, Translation
from edgewise.run.structure.patterns import require_pattern

__all__ = ["Handler", "Translator"]

_LEVELS_MAX = 100
_VISITS_MAX = 50_000  # the library's own bound on the parts of a schema
_PATTERNS_MAX = 1000


class Translator:
    """Translates one schema.

    Attributes:
        document: The schema.
        relaxed: What may be left to the check.
        multiples: Whether the grammar carries its ``multipleOf``.
        unevaluated: Pointer of the first ``unevaluatedProperties``.
        keyed: Pointer of the first ``patternProperties``.
    """

    def __init__(
        self,
        document: Document,
        relaxed: frozenset[Relaxation],
        handlers: Mapping[str, Handler],
    ) -> None:
        self.document = document
        self.relaxed = relaxed
        self.multiples = numbers.multiples_fit(document.multiples)
        self._handlers = handlers
        self._enforced: dict[str, None] = {}
        self._checked: dict[str, None] = {}
        self._names: dict[tuple[int, bool], str] = {}
        self._definitions: dict[str, Any] = {}
        self._edges: dict[str, set[str]] = {}
        self._patterns: set[str] = set()
        self._visits = 0
        self.unevaluated: str | None = None
        self.keyed: str | None = None

    def run(self) -> Translation:
        """Return the whole schema for the library, and the account of its keywords."""
        root = self.schema(self.document.root, Place(self.document.resolver))
        require_no_loop(self._edges)
        if self.unevaluated is not None and self.keyed is not None:
            raise unsupported(
                f"{self.keyed} beside {self.unevaluated}",
                hint="use one of the two",
                keyword="patternProperties",
                pointer=self.keyed,
            )
        require_finite(root, self._definitions)
        grammar = root
        if self._definitions:
            grammar = {**root, "$defs": self._definitions}
        checked = tuple(self._checked)
        enforced = tuple(one for one in self._enforced if one not in self._checked)
        return Translation(grammar=grammar, enforced=enforced, checked=checked)

    def schema(self, node: Any, place: Place) -> Any:
        """Return a part for the library."""
        if isinstance(node, bool):
            return node
        self._visits += 1
        if self._visits > _VISITS_MAX:
            raise too_large(f"more than {_VISITS_MAX} schemas, those referred to counted each time")
        if place.level >= _LEVELS_MAX:
            raise too_large(f"more than {_LEVELS_MAX} levels, references counted")
        pointer = self.document.pointer(node)
        for keyword, value in node.items():
            keywords.require_sound(keyword, value, f"{pointer}/{keyword}")
        part = Part(node, pointer, self._enter(node, place))
        names = [one for one in node if not keywords.without_effect(one, node)]
        if Relaxation.BESIDE_REFERENCES in self.relaxed and "$ref" in names:
            self._set_aside(part, [one for one in names if one != "$ref"])
            names = ["$ref"]
        for keyword in names:
            self._handlers[keyword](self, part, keyword)
        return part.schema()

    def _set_aside(self, part: Part, names: list[str]) -> None:
        """Leave everything beside a reference to the check."""
        silent = Part(part.node, part.pointer, replace(part.place, silent=True))
        for keyword in names:
            self._handlers[keyword](self, silent, keyword)
            self.note(part, keyword, enforced=False)

    def _enter(self, node: dict[str, Any], place: Place) -> Place:
        if "$id" not in node or node is self.document.root:
            return replace(place, level=place.level + 1)
        from referencing.jsonschema import DRAFT202012  # noqa: PLC0415 - comes with jsonschema

        resolver = place.resolver.in_subresource(DRAFT202012.create_resource(node))
        return replace(place, level=place.level + 1, resolver=resolver)

    def note(self, part: Part, keyword: str, *, enforced: bool) -> None:
        """Record what became of a keyword."""
        if not part.place.silent:
            (self._enforced if enforced else self._checked)[f"{part.pointer}/{keyword}"] = None

    def edge(self, part: Part, child: Any) -> None:
        """Record that a part applies another to the same value."""
        if isinstance(child, dict):
            self._edges.setdefault(part.pointer, set()).add(self.document.pointer(child))

    def survey(self, part: Part, children: list[Any]) -> None:
        """Look through schemas that are checked only: a typo in them is refused all the same."""
        for child in children:
            self.schema(child, replace(part.place, silent=True))

    def check(self, part: Part, keyword: str) -> None:
        """Leave a keyword out of the grammar and look through the schemas in it."""
        value = part.node[keyword]
        if keyword == "dependentSchemas":
            children = list(value.values())
        elif isinstance(value, dict | bool) and keyword not in {"dependentRequired", "uniqueItems"}:
            children = [value]
        else:
            children = []
        if keyword in keywords.IN_PLACE:
            for child in children:
                self.edge(part, child)
        self.survey(part, children)
        self.note(part, keyword, enforced=False)

    def unsupported(
        self, part: Part, keyword: str, why: str, *, hint: str = "leave it out"
    ) -> Exception:
        """Return the refusal of a keyword, by its name and place."""
        pointer = f"{part.pointer}/{keyword}"
        return unsupported(f"{pointer} {why}", hint=hint, keyword=keyword, pointer=pointer)

    def keep(self, part: Part, keyword: str) -> None:
        """Hand a keyword to the grammar as it is."""
        part.simple[keyword] = part.node[keyword]
        self.note(part, keyword, enforced=True)

    def define(self, target: Any, place: Place) -> str:
        """Return the reference to a part, which is translated once."""
        key = (id(target), place.silent)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"d{len(self._names)}"
            made = self.schema(target, place)
            if not place.silent:
                self._definitions[name] = made
        return f"#/$defs/{name}"

    def require_pattern(self, part: Part, keyword: str, pattern: str) -> None:
        """Refuse a pattern that the engine does not take, or one too many."""
        if pattern in self._patterns:
            return
        if len(self._patterns) >= _PATTERNS_MAX:
            raise too_large(f"more than {_PATTERNS_MAX} patterns")
        self._patterns.add(pattern)
        try:
            require_pattern(pattern)
        except GrammarError as error:
            if error.is_limit:
                raise too_large(f"the pattern at {part.pointer}/{keyword}") from error
            if "nsatisfiable" not in error.message:
                raise self.unsupported(part, keyword, f"has {pattern[:80]!r}, {error}") from error


Handler: TypeAlias = Callable[[Translator, Part, str], None]
