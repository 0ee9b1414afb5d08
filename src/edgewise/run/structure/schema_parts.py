"""Keywords that apply schemas: to parts of a value, or once more to the same one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from edgewise.run.structure import keywords
from edgewise.run.structure.ecma import translated
from edgewise.run.structure.parts import Part, Relaxation
from edgewise.run.structure.translator import Handler, Translator

__all__ = ["PARTS"]


def _schemas(work: Translator, part: Part, keyword: str) -> None:
    children = part.node[keyword]
    for child in children:
        work.edge(part, child)
    made = [work.schema(child, part.place) for child in children]
    if keyword == "oneOf" and Relaxation.ONE_OF in work.relaxed:
        part.apply("allOf", [{"anyOf": made}])
        work.note(part, keyword, enforced=False)
    else:
        part.apply(keyword, made)
        work.note(part, keyword, enforced=True)


def _prefix(work: Translator, part: Part, keyword: str) -> None:
    part.simple[keyword] = [work.schema(one, part.place) for one in part.node[keyword]]
    work.note(part, keyword, enforced=True)


def _single(work: Translator, part: Part, keyword: str) -> None:
    part.simple[keyword] = work.schema(part.node[keyword], part.place)
    work.note(part, keyword, enforced=True)


def _properties(work: Translator, part: Part, keyword: str) -> None:
    made = {name: work.schema(one, part.place) for name, one in part.node[keyword].items()}
    part.simple[keyword] = made
    work.note(part, keyword, enforced=True)


def _pattern_properties(work: Translator, part: Part, keyword: str) -> None:
    work.keyed = work.keyed or f"{part.pointer}/{keyword}"
    for pattern in part.node[keyword]:
        work.require_pattern(part, keyword, pattern)
    if Relaxation.PATTERN_PROPERTIES in work.relaxed:
        work.survey(part, list(part.node[keyword].values()))
        work.note(part, keyword, enforced=False)
        return
    made: dict[str, Any] = {}
    for pattern, one in part.node[keyword].items():
        regex = translated(pattern)
        while regex in made:  # two that differ in spelling only
            regex += "(?:)"
        made[regex] = work.schema(one, part.place)
    part.simple[keyword] = made
    work.note(part, keyword, enforced=True)


def _additional(work: Translator, part: Part, keyword: str) -> None:
    # Alone it would speak of the names that the patterns left out had spoken of.
    left_out = Relaxation.PATTERN_PROPERTIES in work.relaxed
    if left_out and "patternProperties" in part.node:
        work.check(part, keyword)
    else:
        _single(work, part, keyword)


def _not(work: Translator, part: Part, keyword: str) -> None:
    if part.node[keyword] in ({}, True):
        part.apply("allOf", [False])
        work.note(part, keyword, enforced=True)
    else:
        work.check(part, keyword)


def _if(work: Translator, part: Part, _: str) -> None:
    for one in ("if", "then", "else"):
        if one in part.node:
            work.check(part, one)


def _skip(_: Translator, __: Part, ___: str) -> None:
    """Leave a keyword to the handler of the one that it belongs to."""


def _contains(work: Translator, part: Part, keyword: str) -> None:
    work.check(part, keyword)
    for one in ("minContains", "maxContains"):
        if one in part.node:
            work.note(part, one, enforced=False)


def _unevaluated_rest(work: Translator, part: Part, keyword: str) -> None:
    own = "items" if keyword == "unevaluatedItems" else "additionalProperties"
    if keyword == "unevaluatedProperties":
        work.unevaluated = work.unevaluated or f"{part.pointer}/{keyword}"
    if part.node[keyword] is True:
        return
    alone = keywords.IN_PLACE.isdisjoint(part.node) and "contains" not in part.node
    if alone and own not in part.node and "patternProperties" not in part.node:
        # Nothing else can have looked at the rest: it is the same as its adjacent keyword.
        part.simple[own] = work.schema(part.node[keyword], part.place)
        work.note(part, keyword, enforced=True)
    else:
        work.check(part, keyword)


def _reference(work: Translator, part: Part, keyword: str) -> None:
    pointer = f"{part.pointer}/{keyword}"
    found = work.document.lookup(part.place.resolver, part.node[keyword], pointer)
    target, name = found.contents, part.node[keyword].rpartition("#")[2]
    if keyword == "$dynamicRef" and isinstance(target, dict):
        rivals = work.document.dynamically_anchored(name)
        if target.get("$dynamicAnchor") == name and len(rivals) > 1:
            _survey_rivals(work, part, keyword, rivals)
            return
    work.note(part, keyword, enforced=True)
    if isinstance(target, bool):
        part.apply("allOf", [target])
        return
    work.edge(part, target)
    reference = work.define(target, replace(part.place, resolver=found.resolver))
    if keyword == "$ref":
        part.apply(keyword, reference)
    else:
        part.apply("allOf", [{"$ref": reference}])


def _survey_rivals(
    work: Translator, part: Part, keyword: str, rivals: list[dict[str, Any]]
) -> None:
    """Which one is meant depends on the way there; the grammar allows anything instead."""
    for rival in rivals:
        work.edge(part, rival)
        work.define(rival, replace(part.place, silent=True))
    work.note(part, keyword, enforced=False)


PARTS: Final[dict[str, Handler]] = {
    "prefixItems": _prefix,
    "items": _single,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "allOf": _schemas,
    "anyOf": _schemas,
    "oneOf": _schemas,
    "$ref": _reference,
    "$dynamicRef": _reference,
    "not": _not,
    "if": _if,
    "then": _skip,
    "else": _skip,
    "contains": _contains,
    "minContains": _skip,
    "maxContains": _skip,
    "unevaluatedItems": _unevaluated_rest,
    "unevaluatedProperties": _unevaluated_rest,
    "propertyNames": Translator.check,
    "dependentSchemas": Translator.check,
}
