"""What an answer has to look like, from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgewise.cli.structure import structure_from
from edgewise.core.structure import Structure, StructureKind
from edgewise.errors import InputError


def options(**given: Any) -> dict[str, Any]:
    return {"schema": None, "regex": None, "choice": (), "grammar": None, **given}


def test_nothing_asked_is_no_structure() -> None:
    asked = options()
    assert structure_from(asked) is None
    assert asked == {}


def test_each_kind(tmp_path: Path) -> None:
    schema, lark, gbnf = (tmp_path / name for name in ("s.json", "g.lark", "g.gbnf"))
    for path in (schema, lark, gbnf):
        path.write_text("{}", encoding="utf-8")
    assert structure_from(options(schema=str(schema))) == Structure(
        kind=StructureKind.JSON_SCHEMA, source="{}"
    )
    assert structure_from(options(regex="a+")) == Structure(kind=StructureKind.REGEX, source="a+")
    assert structure_from(options(choice=("a", "b"))) == Structure(
        kind=StructureKind.CHOICE, choices=("a", "b")
    )
    kinds = [structure_from(options(grammar=str(path))) for path in (lark, gbnf)]
    assert [one.kind for one in kinds if one] == [StructureKind.LARK, StructureKind.GBNF]


def test_two_at_once_are_refused() -> None:
    with pytest.raises(InputError, match="structure-contradiction"):
        structure_from(options(regex="a", choice=("a",)))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b" " * ((1 << 20) + 1))
    for name in ("missing", "latin", "large", "."):
        with pytest.raises(InputError, match="structure-unreadable"):
            structure_from(options(schema=str(tmp_path / name)))
