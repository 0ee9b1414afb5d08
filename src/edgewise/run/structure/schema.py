"""From a JSON schema to the schema of the grammar, with an account of every keyword.

Each keyword ends in one of three ways. It is handed to the grammar (*enforced*). It is left out
because what remains allows more and never less, and the finished text is checked (*checked*). Or
the schema is refused, by the keyword's name and place. The grammar's schema is written anew: only
what is understood here gets into it, its references are renamed, and no identifier, dialect or
option of the caller's reaches the library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from edgewise.run.structure import formats, keywords, numbers
from edgewise.run.structure.document import Document
from edgewise.run.structure.ecma import translated
from edgewise.run.structure.library import GrammarError, too_large, unsupported
from edgewise.run.structure.loops import require_finite, require_no_loop
from edgewise.run.structure.parts import Part, Place, Relaxation, Translation
from edgewise.run.structure.patterns import require_pattern

__all__ = ["translate"]

_LEVELS_MAX = 100
_VISITS_MAX = 50_000  # the library's own bound on the parts of a schema
_ITEMS_MAX = 4096  # it writes out every item up to maxItems
_LENGTH_MAX = 2**31  # and counts characters in 32 bits
_PATTERNS_MAX = 1000


def translate(document: Document, relaxed: frozenset[Relaxation]) -> Translation:
    """Return a schema for the library, and what became of each keyword.

    Raises:
        InputError: the schema is malformed, or no value is valid.
        UnsupportedError: a keyword can be neither enforced nor checked.
        ResourceError: it is too deep or too large.
    """
    return _Translator(document, relaxed).run()


class _Translator:
    def __init__(self, document: Document, relaxed: frozenset[Relaxation]) -> None:
        self._document = document
        self._relaxed = relaxed
        self._multiples = numbers.multiples_fit(document.multiples)
        self._enforced: dict[str, None] = {}
        self._checked: dict[str, None] = {}
        self._names: dict[tuple[int, bool], str] = {}
        self._definitions: dict[str, Any] = {}
        self._edges: dict[str, set[str]] = {}
        self._patterns: set[str] = set()
        self._visits = 0
        self._unevaluated: str | None = None
        self._keyed: str | None = None

    def run(self) -> Translation:
        root = self._schema(self._document.root, Place(self._document.resolver))
        require_no_loop(self._edges)
        if self._unevaluated is not None and self._keyed is not None:
            raise unsupported(
                f"{self._keyed} beside {self._unevaluated}",
                hint="use one of the two",
                keyword="patternProperties",
                pointer=self._keyed,
            )
        require_finite(root, self._definitions)
        grammar = root
        if self._definitions:
            grammar = {**root, "$defs": self._definitions}
        checked = tuple(self._checked)
        enforced = tuple(one for one in self._enforced if one not in self._checked)
        return Translation(grammar=grammar, enforced=enforced, checked=checked)

    def _schema(self, node: Any, place: Place) -> Any:
        if isinstance(node, bool):
            return node
        self._visits += 1
        if self._visits > _VISITS_MAX:
            raise too_large(f"more than {_VISITS_MAX} schemas, those referred to counted each time")
        if place.level >= _LEVELS_MAX:
            raise too_large(f"more than {_LEVELS_MAX} levels, references counted")
        pointer = self._document.pointer(node)
        for keyword, value in node.items():
            keywords.require_sound(keyword, value, f"{pointer}/{keyword}")
        part = Part(node, pointer, self._enter(node, place))
        names = [one for one in node if not keywords.without_effect(one, node)]
        if Relaxation.BESIDE_REFERENCES in self._relaxed and "$ref" in names:
            self._set_aside(part, [one for one in names if one != "$ref"])
            names = ["$ref"]
        for keyword in names:
            _HANDLERS[keyword](self, part, keyword)
        return part.schema()

    def _set_aside(self, part: Part, names: list[str]) -> None:
        """Leave everything beside a reference to the check."""
        silent = Part(part.node, part.pointer, replace(part.place, silent=True))
        for keyword in names:
            _HANDLERS[keyword](self, silent, keyword)
            self._note(part, keyword, enforced=False)

    def _enter(self, node: dict[str, Any], place: Place) -> Place:
        if "$id" not in node or node is self._document.root:
            return replace(place, level=place.level + 1)
        from referencing.jsonschema import DRAFT202012  # noqa: PLC0415 - comes with jsonschema

        resolver = place.resolver.in_subresource(DRAFT202012.create_resource(node))
        return replace(place, level=place.level + 1, resolver=resolver)

    def _note(self, part: Part, keyword: str, *, enforced: bool) -> None:
        if not part.place.silent:
            (self._enforced if enforced else self._checked)[f"{part.pointer}/{keyword}"] = None

    def _edge(self, part: Part, child: Any) -> None:
        if isinstance(child, dict):
            self._edges.setdefault(part.pointer, set()).add(self._document.pointer(child))

    def _survey(self, part: Part, children: list[Any]) -> None:
        """Look through schemas that are checked only: a typo in them is refused all the same."""
        for child in children:
            self._schema(child, replace(part.place, silent=True))

    # Each handler below takes one keyword of one part.

    def _keep(self, part: Part, keyword: str) -> None:
        part.simple[keyword] = part.node[keyword]
        self._note(part, keyword, enforced=True)

    def _check(self, part: Part, keyword: str) -> None:
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
                self._edge(part, child)
        self._survey(part, children)
        self._note(part, keyword, enforced=False)

    def _count(self, part: Part, keyword: str) -> None:
        part.simple[keyword] = keywords.count(part.node[keyword])
        self._note(part, keyword, enforced=True)

    def _length(self, part: Part, keyword: str) -> None:
        beside = "pattern" in part.node or "format" in part.node
        if beside and Relaxation.LENGTHS in self._relaxed:
            self._check(part, keyword)
        else:
            self._bounded_count(part, keyword, _LENGTH_MAX)

    def _items_count(self, part: Part, keyword: str) -> None:
        self._bounded_count(part, keyword, _ITEMS_MAX)

    def _bounded_count(self, part: Part, keyword: str, most: int) -> None:
        if (keywords.count(part.node[keyword]) or 0) <= most:
            self._count(part, keyword)
        elif keyword.startswith("max"):
            self._check(part, keyword)
        else:
            raise self._unsupported(part, keyword, f"asks for more than {most}")

    def _property_count(self, part: Part, keyword: str) -> None:
        if Relaxation.PROPERTY_COUNTS in self._relaxed:
            self._check(part, keyword)
        else:
            self._bounded_count(part, keyword, _ITEMS_MAX)

    def _bound(self, part: Part, keyword: str) -> None:
        if numbers.is_exact(part.node[keyword]):
            self._keep(part, keyword)
        else:
            self._check(part, keyword)

    def _multiple(self, part: Part, keyword: str) -> None:
        (self._keep if self._multiples else self._check)(part, keyword)

    def _literal(self, part: Part, keyword: str) -> None:
        if not part.place.silent:
            for value in part.node[keyword] if keyword == "enum" else [part.node[keyword]]:
                if not _can_be_written(value):
                    raise self._unsupported(
                        part, keyword, "holds a control character or a number beyond 2^53"
                    )
        part.apply(keyword, part.node[keyword])
        self._note(part, keyword, enforced=True)

    def _require_pattern(self, part: Part, keyword: str, pattern: str) -> None:
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
                raise self._unsupported(part, keyword, f"has {pattern[:80]!r}, {error}") from error

    def _pattern(self, part: Part, keyword: str) -> None:
        pattern = part.node[keyword]
        self._require_pattern(part, keyword, pattern)
        part.simple[keyword] = translated(pattern)
        self._note(part, keyword, enforced=True)

    def _format(self, part: Part, keyword: str) -> None:
        name = part.node[keyword]
        if not formats.is_known(name):
            known = ", ".join(formats.names())
            raise self._unsupported(part, keyword, f"is {name!r}", hint=f"these are known: {known}")
        pattern = formats.as_pattern(name)
        if pattern is not None:
            part.apply("allOf", [{"pattern": translated(pattern)}])
        else:
            part.simple[keyword] = name
        self._note(part, keyword, enforced=formats.is_exact(name))

    def _schemas(self, part: Part, keyword: str) -> None:
        children = part.node[keyword]
        for child in children:
            self._edge(part, child)
        made = [self._schema(child, part.place) for child in children]
        if keyword == "oneOf" and Relaxation.ONE_OF in self._relaxed:
            part.apply("allOf", [{"anyOf": made}])
            self._note(part, keyword, enforced=False)
        else:
            part.apply(keyword, made)
            self._note(part, keyword, enforced=True)

    def _prefix(self, part: Part, keyword: str) -> None:
        part.simple[keyword] = [self._schema(one, part.place) for one in part.node[keyword]]
        self._note(part, keyword, enforced=True)

    def _single(self, part: Part, keyword: str) -> None:
        part.simple[keyword] = self._schema(part.node[keyword], part.place)
        self._note(part, keyword, enforced=True)

    def _properties(self, part: Part, keyword: str) -> None:
        made = {name: self._schema(one, part.place) for name, one in part.node[keyword].items()}
        part.simple[keyword] = made
        self._note(part, keyword, enforced=True)

    def _pattern_properties(self, part: Part, keyword: str) -> None:
        self._keyed = self._keyed or f"{part.pointer}/{keyword}"
        for pattern in part.node[keyword]:
            self._require_pattern(part, keyword, pattern)
        if Relaxation.PATTERN_PROPERTIES in self._relaxed:
            self._survey(part, list(part.node[keyword].values()))
            self._note(part, keyword, enforced=False)
            return
        made: dict[str, Any] = {}
        for pattern, one in part.node[keyword].items():
            regex = translated(pattern)
            while regex in made:  # two that differ in spelling only
                regex += "(?:)"
            made[regex] = self._schema(one, part.place)
        part.simple[keyword] = made
        self._note(part, keyword, enforced=True)

    def _additional(self, part: Part, keyword: str) -> None:
        # Alone it would speak of the names that the patterns left out had spoken of.
        left_out = Relaxation.PATTERN_PROPERTIES in self._relaxed
        if left_out and "patternProperties" in part.node:
            self._check(part, keyword)
        else:
            self._single(part, keyword)

    def _not(self, part: Part, keyword: str) -> None:
        if part.node[keyword] in ({}, True):
            part.apply("allOf", [False])
            self._note(part, keyword, enforced=True)
        else:
            self._check(part, keyword)

    def _if(self, part: Part, _: str) -> None:
        for one in ("if", "then", "else"):
            if one in part.node:
                self._check(part, one)

    def _skip(self, _: Part, __: str) -> None:
        """Leave a keyword to the handler of the one that it belongs to."""

    def _contains(self, part: Part, keyword: str) -> None:
        self._check(part, keyword)
        for one in ("minContains", "maxContains"):
            if one in part.node:
                self._note(part, one, enforced=False)

    def _unevaluated_rest(self, part: Part, keyword: str) -> None:
        own = "items" if keyword == "unevaluatedItems" else "additionalProperties"
        if keyword == "unevaluatedProperties":
            self._unevaluated = self._unevaluated or f"{part.pointer}/{keyword}"
        if part.node[keyword] is True:
            return
        alone = keywords.IN_PLACE.isdisjoint(part.node) and "contains" not in part.node
        if alone and own not in part.node and "patternProperties" not in part.node:
            # Nothing else can have looked at the rest: it is the same as its adjacent keyword.
            part.simple[own] = self._schema(part.node[keyword], part.place)
            self._note(part, keyword, enforced=True)
        else:
            self._check(part, keyword)

    def _reference(self, part: Part, keyword: str) -> None:
        pointer = f"{part.pointer}/{keyword}"
        found = self._document.lookup(part.place.resolver, part.node[keyword], pointer)
        target, name = found.contents, part.node[keyword].rpartition("#")[2]
        if keyword == "$dynamicRef" and isinstance(target, dict):
            rivals = self._document.dynamically_anchored(name)
            if target.get("$dynamicAnchor") == name and len(rivals) > 1:
                self._survey_rivals(part, keyword, rivals)
                return
        self._note(part, keyword, enforced=True)
        if isinstance(target, bool):
            part.apply("allOf", [target])
            return
        self._edge(part, target)
        reference = self._define(target, replace(part.place, resolver=found.resolver))
        if keyword == "$ref":
            part.apply(keyword, reference)
        else:
            part.apply("allOf", [{"$ref": reference}])

    def _survey_rivals(self, part: Part, keyword: str, rivals: list[dict[str, Any]]) -> None:
        """Which one is meant depends on the way there; the grammar allows anything instead."""
        for rival in rivals:
            self._edge(part, rival)
            self._define(rival, replace(part.place, silent=True))
        self._note(part, keyword, enforced=False)

    def _define(self, target: Any, place: Place) -> str:
        key = (id(target), place.silent)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"d{len(self._names)}"
            made = self._schema(target, place)
            if not place.silent:
                self._definitions[name] = made
        return f"#/$defs/{name}"

    def _unsupported(
        self, part: Part, keyword: str, why: str, *, hint: str = "leave it out"
    ) -> Exception:
        pointer = f"{part.pointer}/{keyword}"
        return unsupported(f"{pointer} {why}", hint=hint, keyword=keyword, pointer=pointer)


def _can_be_written(value: Any) -> bool:
    """Whether the grammar has a spelling for a constant, and the right one."""
    if isinstance(value, dict):
        return all(_can_be_written(one) for one in value.values())
    if isinstance(value, list):
        return all(map(_can_be_written, value))
    if isinstance(value, str):
        return all((one >= " " and one != "\x7f") or one in "\b\f\n\r\t" for one in value)
    return value is None or numbers.is_exact(value)


_Handler = Callable[[_Translator, Part, str], None]

# ruff: noqa: SLF001 - the table belongs to the class above it
_HANDLERS: dict[str, _Handler] = {
    "type": _Translator._keep,
    "required": _Translator._keep,
    "const": _Translator._literal,
    "enum": _Translator._literal,
    "minLength": _Translator._length,
    "maxLength": _Translator._length,
    "pattern": _Translator._pattern,
    "format": _Translator._format,
    "minimum": _Translator._bound,
    "maximum": _Translator._bound,
    "exclusiveMinimum": _Translator._bound,
    "exclusiveMaximum": _Translator._bound,
    "multipleOf": _Translator._multiple,
    "minItems": _Translator._items_count,
    "maxItems": _Translator._items_count,
    "prefixItems": _Translator._prefix,
    "items": _Translator._single,
    "minProperties": _Translator._property_count,
    "maxProperties": _Translator._property_count,
    "properties": _Translator._properties,
    "patternProperties": _Translator._pattern_properties,
    "additionalProperties": _Translator._additional,
    "allOf": _Translator._schemas,
    "anyOf": _Translator._schemas,
    "oneOf": _Translator._schemas,
    "$ref": _Translator._reference,
    "$dynamicRef": _Translator._reference,
    "not": _Translator._not,
    "if": _Translator._if,
    "then": _Translator._skip,
    "else": _Translator._skip,
    "contains": _Translator._contains,
    "minContains": _Translator._skip,
    "maxContains": _Translator._skip,
    "unevaluatedItems": _Translator._unevaluated_rest,
    "unevaluatedProperties": _Translator._unevaluated_rest,
    "uniqueItems": _Translator._check,
    "propertyNames": _Translator._check,
    "dependentRequired": _Translator._check,
    "dependentSchemas": _Translator._check,
}
