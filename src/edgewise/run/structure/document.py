"""A JSON Schema document: read strictly, indexed, its references resolved inside it only."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgewise.core import strict_json
from edgewise.errors import UnsupportedError
from edgewise.run.structure.library import DOCUMENTATION, malformed, too_large, unsupported

if TYPE_CHECKING:
    from referencing._core import Resolver

__all__ = ["Document", "read"]

_NODES_MAX = 100_000
_LEVELS_MAX = 120  # the library's own reader of JSON stops at 128

# Read as 2020-12. Keywords that mean something else in them are refused by name.
_DIALECTS = {
    "https://json-schema.org/draft/2020-12/schema": False,
    "https://json-schema.org/draft/2019-09/schema": False,
    "http://json-schema.org/draft-07/schema": True,
    "http://json-schema.org/draft-06/schema": True,
}
_BESIDE_REFERENCE = frozenset({"$ref", "title", "description", "default", "examples", "$comment"})


@dataclass(slots=True)
class _Index:
    pointers: dict[int, str] = field(default_factory=dict)
    multiples: set[Any] = field(default_factory=set)
    anchored: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class Document:
    """A schema, and where each of its parts stands.

    Attributes:
        root: The schema, an object or a boolean, without ``$schema``.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        self._index = _Index()
        self._walk(root)

    def pointer(self, node: dict[str, Any]) -> str:
        """Return the JSON pointer of a part; empty for the root."""
        return self._index.pointers[id(node)]

    @property
    def multiples(self) -> frozenset[Any]:
        """Return every number that stands under a key ``multipleOf``, used or not."""
        return frozenset(self._index.multiples)

    def dynamically_anchored(self, name: str) -> list[dict[str, Any]]:
        """Return the parts with this ``$dynamicAnchor``."""
        return self._index.anchored.get(name, [])

    @cached_property
    def resolver(self) -> Resolver[Any]:
        """Return what resolves the root's references, without ever leaving the document.

        Raises:
            UnsupportedError: the package that does so is missing.
        """
        try:
            from referencing import Registry  # noqa: PLC0415 - comes with jsonschema
            from referencing.jsonschema import DRAFT202012  # noqa: PLC0415
        except ImportError as error:
            raise UnsupportedError(
                "structure-library-missing",
                "JSON Schema needs the package jsonschema, which is not installed here",
                hint="pip install jsonschema",
            ) from error
        try:
            return Registry().resolver_with_root(DRAFT202012.create_resource(self.root))
        except (ValueError, AttributeError, TypeError) as error:
            raise malformed(f"its $id cannot be read: {error}") from error

    def lookup(self, resolver: Resolver[Any], reference: str, pointer: str) -> Any:
        """Return what a reference names, with the ``contents`` and the ``resolver`` there.

        Raises:
            InputError: nothing is there.
            UnsupportedError: it leaves the document.
        """
        from referencing.exceptions import (  # noqa: PLC0415 - comes with jsonschema
            InvalidAnchor,
            NoSuchAnchor,
            PointerToNowhere,
            Unresolvable,
        )

        try:
            found = resolver.lookup(reference)
        except (PointerToNowhere, NoSuchAnchor, InvalidAnchor) as error:
            raise malformed(f"{pointer} refers to {reference!r}, which is not there") from error
        except (Unresolvable, ValueError, TypeError) as error:
            raise unsupported(
                f"{pointer} refers to {reference!r}, outside of the schema",
                hint="put what it refers to under $defs",
                keyword="$ref",
                pointer=pointer,
            ) from error
        if isinstance(found.contents, bool):
            return found
        if not isinstance(found.contents, dict) or id(found.contents) not in self._index.pointers:
            raise malformed(f"{pointer} refers to {reference!r}, which is no schema of this text")
        return found

    def _walk(self, root: Any) -> None:
        pending: list[tuple[Any, str, int]] = [(root, "", 0)]
        while pending:
            node, pointer, level = pending.pop()
            if level > _LEVELS_MAX or len(self._index.pointers) > _NODES_MAX:
                raise too_large(f"more than {_LEVELS_MAX} levels or {_NODES_MAX} objects")
            if isinstance(node, dict):
                self._note(node, pointer)
                pending += [
                    (child, f"{pointer}/{_escaped(key)}", level + 1)
                    for key, child in node.items()
                    if isinstance(child, dict | list)
                ]
            elif isinstance(node, list):
                pending += [
                    (child, f"{pointer}/{place}", level + 1)
                    for place, child in enumerate(node)
                    if isinstance(child, dict | list)
                ]

    def _note(self, node: dict[str, Any], pointer: str) -> None:
        self._index.pointers[id(node)] = pointer
        multiple = node.get("multipleOf")
        if isinstance(multiple, int | float) and not isinstance(multiple, bool):
            self._index.multiples.add(multiple)
        anchor = node.get("$dynamicAnchor")
        if isinstance(anchor, str):
            self._index.anchored.setdefault(anchor, []).append(node)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def read(source: str) -> Document:
    """Return a schema that was written as JSON text.

    Raises:
        InputError: it is no JSON, or no schema.
        UnsupportedError: it declares a dialect that is not read.
        ResourceError: it is nested too deeply or holds too much.
    """
    try:
        root = strict_json.parse(source)
    except strict_json.StrictJsonError as error:
        raise malformed(f"its schema cannot be read: {error}") from error
    if not isinstance(root, dict | bool):
        raise malformed("a schema is an object, true or false")
    if isinstance(root, dict) and "$schema" in root:
        root = dict(root)
        _require_dialect(root.pop("$schema"), root)
    return Document(root)


def _require_dialect(dialect: Any, root: dict[str, Any]) -> None:
    name = dialect.rstrip("#") if isinstance(dialect, str) else json.dumps(dialect)[:80]
    if name not in _DIALECTS:
        raise unsupported(
            f"/$schema declares {name!r}",
            hint="write the schema for draft 2020-12",
            keyword="$schema",
            pointer="/$schema",
        )
    if not _DIALECTS[name]:
        return
    # Up to draft 7 what stands beside a reference is ignored; since then it counts.
    pending: list[Any] = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str) and not _BESIDE_REFERENCE.issuperset(node):
                raise unsupported(
                    "keywords beside a $ref mean nothing in the dialect that /$schema declares",
                    hint="write the schema for draft 2020-12; " + DOCUMENTATION,
                    keyword="$ref",
                    pointer="/$schema",
                )
            pending += node.values()
        elif isinstance(node, list):
            pending += node
