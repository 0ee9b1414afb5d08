"""Evidence on disk: found by the start of its digest, and refused once it has changed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.unit.core.values import evidence

from edgewise.core.canonical import canonical_json
from edgewise.core.evidence import Evidence
from edgewise.errors import EdgewiseError, InputError, IntegrityError
from edgewise.store import EvidenceStore, Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def store(home: Home) -> EvidenceStore:
    return EvidenceStore(home)


def fails(store: EvidenceStore, prefix: str) -> EdgewiseError:
    with pytest.raises(EdgewiseError) as caught:
        store.get(prefix)
    return caught.value


def test_an_empty_home(home: Home, store: EvidenceStore) -> None:
    assert store.find() == []
    assert store.latest(kind="smoke", subject="a", device="b") is None
    assert fails(store, "abcd").code == "evidence-not-found"
    assert not home.root.exists()


def test_add_and_get(home: Home, store: EvidenceStore) -> None:
    piece = evidence(figures={"rate": 1e16, "deep": [{"\u20ac": None}]})
    digest = store.add(piece)
    path = home.root / "evidence" / f"{digest}.json"
    assert digest == piece.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    before = path.stat()
    assert store.add(piece) == digest
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    for prefix in (digest, digest[:4], digest[:12], digest[:9].upper()):
        found, back = store.get(prefix)
        assert found == digest
        assert back == piece


def test_a_figure_without_json_form_is_refused(home: Home, store: EvidenceStore) -> None:
    with pytest.raises(InputError) as caught:
        store.add(evidence(figures={"rate": float("nan")}))
    assert caught.value.code == "not-canonical"
    assert not home.root.exists()


@pytest.mark.parametrize("prefix", ["", "a", "abc"])
def test_a_short_prefix(store: EvidenceStore, prefix: str) -> None:
    error = fails(store, prefix)
    assert isinstance(error, InputError)
    assert error.code == "evidence-prefix-short"


@pytest.mark.parametrize("prefix", ["../../etc/passwd", "zzzz", "0" * 65, "....", "\ud800" * 4])
def test_a_prefix_that_matches_nothing(store: EvidenceStore, prefix: str) -> None:
    store.add(evidence())
    error = fails(store, prefix)
    assert isinstance(error, InputError)
    assert error.code == "evidence-not-found"
    assert "no evidence" in error.message
    assert error.hint


def test_an_ambiguous_prefix(home: Home, store: EvidenceStore) -> None:
    folder = home.folder("evidence")
    for last in "01":
        (folder / f"{'a' * 63}{last}.json").touch()
    error = fails(store, "aaaa")
    assert isinstance(error, InputError)
    assert "2 pieces" in error.message


def test_find_is_oldest_first_and_filters(store: EvidenceStore) -> None:
    late = evidence(created="2026-11-30T12:00:01Z")
    early = evidence(created="2026-11-30T11:59:59Z", kind="bench")
    other = evidence(created="2026-11-30T12:00:00Z", subject="c" * 64)
    for piece in (late, early, other):
        store.add(piece)
    assert [piece for _, piece in store.find()] == [early, other, late]
    assert all(digest == piece.digest for digest, piece in store.find())
    assert [piece for _, piece in store.find(kind="smoke")] == [other, late]
    assert [piece for _, piece in store.find(subject="a" * 8)] == [early, late]
    assert [piece for _, piece in store.find(kind="smoke", subject="a")] == [late]
    assert store.find(kind="none") == []


def test_latest_is_of_one_device(store: EvidenceStore) -> None:
    def add(**fields: str) -> Evidence:
        piece = evidence(**fields)
        store.add(piece)
        return piece

    add(created="2026-11-30T10:00:00Z")
    new = add(created="2026-11-30T11:00:00Z")
    add(created="2026-11-30T12:00:00Z", device="c" * 64)
    add(created="2026-11-30T13:00:00Z", kind="bench")
    assert store.latest(kind="smoke", subject="a" * 64, device="b" * 64) == (new.digest, new)
    assert store.latest(kind="smoke", subject="a" * 64, device="d" * 64) is None


def test_same_second_has_a_fixed_order(store: EvidenceStore) -> None:
    digests = [store.add(evidence(figures={"n": n})) for n in range(9)]
    assert [digest for digest, _ in store.find()] == sorted(digests)


@pytest.mark.parametrize(
    "how", ["value", "spaces", "twice", "truncated", "empty", "swapped", "key"]
)
def test_tampering_is_noticed(home: Home, store: EvidenceStore, how: str) -> None:
    digest = store.add(evidence())
    path = home.root / "evidence" / f"{digest}.json"
    data = path.read_bytes()
    changed = {
        "value": data.replace(b"true", b"false"),
        "spaces": json.dumps(json.loads(data)).encode(),
        "twice": data.replace(b'"kind"', b'"kind":"bench","kind"'),
        "truncated": data[:-1],
        "empty": b"",
        "swapped": canonical_json(evidence(kind="bench")),
        "key": data.replace(b'"kind"', b'"more":1,"kind"'),
    }[how]
    assert changed != data
    path.write_bytes(changed)
    with pytest.raises(IntegrityError) as caught:
        store.get(digest)
    assert caught.value.code in {"evidence-corrupt", "evidence-unreadable"}
    assert str(path) in caught.value.message
    reported: list[IntegrityError] = []
    other = EvidenceStore(home, reported.append)
    sound = other.add(evidence(kind="plan"))
    assert [d for d, _ in other.find()] == [sound]
    assert [e.code for e in reported] == [caught.value.code]
    assert (path.parent / "damaged" / path.name).read_bytes() == changed
    assert other.latest(kind="smoke", subject="a" * 64, device="b" * 64) is None
    assert len(reported) == 1


def test_a_form_of_the_future(home: Home, store: EvidenceStore) -> None:
    data = canonical_json({"schema_version": 2, "kind": "smoke"})
    digest = hashlib.sha256(data).hexdigest()
    home.write(home.root / "evidence" / f"{digest}.json", data)
    error = fails(store, digest)
    assert isinstance(error, IntegrityError)
    assert error.code == "evidence-unreadable"


def test_other_files_are_not_evidence(home: Home, store: EvidenceStore) -> None:
    digest = store.add(evidence())
    folder = home.root / "evidence"
    (folder / "notes.json").write_text("{}")
    (folder / f"{digest}.json.bak").write_text("{}")
    (folder / f".{digest}.json").write_text("{}")
    (folder / f"{digest.upper()[:-1]}G.json").write_text("{}")
    assert [found for found, _ in store.find()] == [digest]


def test_a_dangling_link_is_not_read_as_nothing(home: Home, store: EvidenceStore) -> None:
    (home.folder("evidence") / f"{'a' * 64}.json").symlink_to("nowhere")
    assert fails(store, "aaaa").code == "evidence-unreadable"
