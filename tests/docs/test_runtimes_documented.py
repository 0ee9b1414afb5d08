"""Runtimes, formats, contract checks and gates are documented as they are in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools import documentation_tables as tables

from edgewise.qualify.parity_gate import GATES
from edgewise.runtimes import registry
from edgewise.testing import contract
from tests.docs.pages import DOCS, table_rows

RUNTIMES = DOCS / "runtimes.md"
RECIPES = DOCS / "recipes.md"
NO_ENGINE = {"coreml", "qnn"}


@pytest.mark.parametrize("name", registry.names())
def test_every_runtime_is_in_the_tables(name: str) -> None:
    rows = [row for row in table_rows(RUNTIMES) if row[0] == f"`{name}`"]
    assert rows, f"{name} is not on {RUNTIMES.name}"
    assert rows[0][2].lower() == registry.adapter(name).source_form
    assert len(rows) >= (1 if name in NO_ENGINE else 2)


def test_every_runtime_has_a_table_of_formats_or_a_reason_not_to() -> None:
    assert tables.covered() == set(registry.names())


@pytest.mark.parametrize("table", tables.OFFERS)
def test_a_table_of_formats_is_included_and_complete(table: str) -> None:
    assert f"_generated/formats-{table}.md" in RECIPES.read_text(encoding="utf-8")
    text = tables.formats_table(table)
    names = re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)
    assert names
    assert len(names) == len(set(names))


def test_the_environments_are_included_with_every_requirement() -> None:
    assert "_generated/environments.md" in RUNTIMES.read_text(encoding="utf-8")
    text = tables.environments_table()
    for name in registry.names():
        spec = registry.adapter(name).environment
        for requirement in () if spec is None else (*spec.run, *spec.export):
            assert f"`{requirement}`" in text


def test_tables_are_written_where_the_pages_look(tmp_path: Path) -> None:
    folder = tmp_path / "generated"
    tables.write_tables(folder)
    written = {f"_generated/{path.name}" for path in folder.iterdir()}
    pages = RUNTIMES.read_text("utf-8") + RECIPES.read_text("utf-8")
    assert set(re.findall(r"\{include\} (_generated/\S+)", pages)) == written


def test_every_contract_check_is_documented() -> None:
    source = Path(contract.__file__).read_text(encoding="utf-8")
    checks = set(re.findall(r"\(\"([a-z0-9-]+)\", suite\.", source))
    assert len(checks) > 10, "the pattern finds no check any more"
    text = RUNTIMES.read_text(encoding="utf-8")
    assert {check for check in checks if f"`{check}`" not in text} == set()


def test_the_gates_are_documented_with_their_limits() -> None:
    found = [row for row in table_rows(DOCS / "comparing.md") if len(row) == 4]
    rows = {row[0].strip("`"): row for row in found}
    for gate in GATES.values():
        _, _, divergence, agreement = rows[gate.name]
        assert gate.kl_mean_nats == float(divergence.removesuffix(" nats"))
        assert gate.top1_agreement == float(agreement)
