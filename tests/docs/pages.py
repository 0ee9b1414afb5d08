"""The documentation as the tests read it: pages, tables, links, headings, examples."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NEEDS_MODEL = "% needs-model"

_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(
    rf"^(?P<mark>{NEEDS_MODEL}\n)?```(?:python|\{{doctest\}})\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """Return every page that is written by hand, the contributor guide included."""
    found = [p for p in DOCS.rglob("*.md") if not {"_build", "_generated"} & set(p.parts)]
    return sorted([*found, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Return the targets of all inline links of a page."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as a forge and MyST make them."""
    return {
        _slug(line.lstrip("#").strip()) for line in prose(page).splitlines() if line.startswith("#")
    }


def table_rows(page: Path) -> Iterator[list[str]]:
    """Yield the cells of every table row of a page."""
    for line in prose(page).splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def sections(page: Path) -> dict[str, str]:
    """Return the text below each heading of the second level, by heading."""
    parts = re.split(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def examples(page: Path, *, with_model: bool) -> str:
    """Return a page's examples as one doctest, with or without those that need a model."""
    return "\n".join(
        match["code"]
        for match in _EXAMPLE.finditer(page.read_text(encoding="utf-8"))
        if with_model or not match["mark"]
    )


def _slug(heading: str) -> str:
    text = unicodedata.normalize("NFKC", heading).lower().replace("`", "")
    return re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
