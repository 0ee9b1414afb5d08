"""Every error code is documented with its type and exit code, and none is documented in vain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgewise.errors import EdgewiseError
from edgewise.models.sources import FetchCancelledError
from tests.docs.error_codes import ERROR_CLASSES, Raised, raised_codes
from tests.docs.pages import DOCS, sections, table_rows

PAGE = DOCS / "reference" / "errors.md"
TYPES: dict[str, type[EdgewiseError]] = {
    **ERROR_CLASSES,
    "FetchCancelledError": FetchCancelledError,
}


def documented() -> list[tuple[str, str, str]]:
    """Return code, type and exit code of each row, quotes removed."""
    rows = [row for row in table_rows(PAGE) if len(row) == 5 and row[0].startswith("`")]
    return [(row[0].strip("`"), row[1].strip("`"), row[2]) for row in rows]


def test_every_code_is_documented_with_its_type() -> None:
    known = {(code, error) for code, error, _ in documented()}
    missing = [r for r in sorted(raised_codes()) if (r.code, r.error) not in known]
    assert not missing, "add to docs/reference/errors.md: " + ", ".join(
        f"{r.code} ({r.error}, {r.place})" for r in missing
    )


def test_no_documented_code_is_stale() -> None:
    raised = {(r.code, r.error) for r in raised_codes()}
    stale = [(code, error) for code, error, _ in documented() if (code, error) not in raised]
    assert not stale, f"remove from docs/reference/errors.md: {stale}"


def test_no_code_is_documented_twice() -> None:
    rows = [(code, error) for code, error, _ in documented()]
    assert len(rows) == len(set(rows))


def test_exit_codes_are_those_of_the_types() -> None:
    for code, error, number in documented():
        assert int(number) == TYPES[error].exit_code, code


def test_codes_are_kebab_case() -> None:
    for raised in raised_codes():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", raised.code), raised


def test_every_event_is_documented() -> None:
    source = Path(__file__).parents[2] / "src" / "edgewise"
    found = {
        match
        for path in source.rglob("*.py")
        for match in re.findall(r"Event\(\s*code=\"([a-z0-9-]+)\"", path.read_text("utf-8"))
    }
    assert found, "the pattern finds no event any more"
    text = sections(PAGE)["Events"]
    assert {code for code in found if f"`{code}`" not in text} == set()


MODULE = """
from edgewise.errors import InputError, IntegrityError, RemoteError
class Stopped(InputError): ...
def plain(): raise InputError("plain-code", "…")
def either(x): raise RemoteError("one-code" if x else "other-code", "…")
def local(x):
    if x:
        code, hint = "tuple-code", "…"
    else:
        code = "name-code"
    raise RemoteError(code, hint)
def _inner(code, text): return IntegrityError(code, text)
def _outer(job, code): return _inner(code, job)
def uses(): raise _outer("job", code="far-code")
def stops(): raise Stopped("sub-code", "…")
class File:
    def fail(self, code, text): raise IntegrityError(f"{self._prefix}-{code}", text)
    def own(self): self.fail("bare", "…")
"""
READER = """
def read(path):
    with BoundedFile(path, prefix="thing") as file:
        file.fail("broken", "…")
"""


def test_the_reader_of_codes_follows_helpers_and_prefixes(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "thing.py").write_text(READER, encoding="utf-8")
    found = {(r.code, r.error) for r in raised_codes(tmp_path)}
    assert found == {
        ("plain-code", "InputError"),
        ("one-code", "RemoteError"),
        ("other-code", "RemoteError"),
        ("tuple-code", "RemoteError"),
        ("name-code", "RemoteError"),
        ("far-code", "IntegrityError"),
        ("sub-code", "Stopped"),
        ("thing-broken", "IntegrityError"),
        ("thing-bare", "IntegrityError"),
    }


def test_the_reader_of_codes_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    text = "def odd(): raise InputError(make_code(), '…')\n"
    (tmp_path / "module.py").write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError, match="cannot be read"):
        raised_codes(tmp_path)


def test_a_raised_code_knows_its_place() -> None:
    assert Raised("usage", "InputError", "cli/__init__.py") not in raised_codes()
    places = {r.place for r in raised_codes() if r.code == "usage"}
    assert all(place.startswith("cli/__init__.py:") for place in places)
