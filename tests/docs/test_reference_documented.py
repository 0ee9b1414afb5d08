"""Environment variables, public names, tiers, models, ADRs and links: documented and whole."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import edgewise
from edgewise.core.request import DataClass
from edgewise.models import KNOWN_ARCHITECTURES
from edgewise.models.sources import registry_models
from edgewise.planner import Verdict
from edgewise.runtimes.llamacpp.formats import KV_TYPES, WEIGHT_FORMATS
from tests.docs.pages import DOCS, ROOT, anchors, links, pages, prose

_VARIABLE = re.compile(
    r"(?:EDGEWISE|HF|SSL|REQUESTS|CURL|PIP|GLIBC|PYTHON|CMAKE)[A-Z_]+|NO_COLOR|CXX"
)


def variables() -> set[str]:
    """Return every environment variable that the code names in a string of its own."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
    files.append(ROOT / "tests" / "conftest.py")
    return {
        node.value
        for path in files
        if "environ" in (text := path.read_text(encoding="utf-8")) or "VARIABLE" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _VARIABLE.fullmatch(node.value)
    }


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_environment_variable_is_documented() -> None:
    found = variables()
    assert {"EDGEWISE_HOME", "GLIBC_TUNABLES", "NO_COLOR", "SSL_CERT_FILE"} <= found
    page = text_of("reference/environment.md")
    assert sorted(name for name in found if f"`{name}`" not in page) == []


def test_no_documented_variable_of_ours_is_stale() -> None:
    page = text_of("reference/environment.md")
    assert set(re.findall(r"`(EDGEWISE_[A-Z_]+)`", page)) <= variables()


def test_every_public_name_is_in_the_reference() -> None:
    page = text_of("reference/api.md")
    names = [n for n in edgewise.__all__ if not re.search(rf"edgewise\.{re.escape(n)}\b", page)]
    assert names == []


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("models.md", sorted(registry_models())),
        ("models.md", list(KNOWN_ARCHITECTURES)),
        ("planning.md", [str(v) for v in Verdict]),
        ("concepts.md", [str(c) for c in DataClass]),
        ("runtime-llamacpp.md", [*WEIGHT_FORMATS, *map(str, KV_TYPES)]),
    ],
)
def test_names_from_data_are_on_their_page(page: str, words: list[str]) -> None:
    text = text_of(page)
    assert [word for word in words if f"`{word}`" not in text] == []


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_internal_links_resolve(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {link}"


def guides() -> list[Path]:
    """Pages with a reader: not the decisions, which have a form of their own, nor plain lists."""
    lists = {ROOT / "CHANGELOG.md", DOCS / "index.md"}
    return [
        page
        for page in pages()
        if page not in lists and (page.parent.name != "adr" or page.name == "index.md")
    ]


@pytest.mark.parametrize("page", guides(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_pages_say_who_they_are_for(page: Path) -> None:
    lines = [line for line in prose(page).splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith("For "), lines[0]


def test_every_decision_has_the_form_and_is_in_the_index() -> None:
    index = text_of("adr/index.md")
    records = sorted(p for p in (DOCS / "adr").glob("[0-9]*.md"))
    assert [int(p.name[:4]) for p in records] == list(range(1, len(records) + 1))
    parts = ("Context", "Options", "Outcome", "Consequences", "Revisit when")
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert f"({record.name})" in index
        assert text.startswith(f"# {record.name[:4]}: ")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(parts)
