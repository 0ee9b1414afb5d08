"""Saved states: used when they are right, thrown away on any doubt, within their quotas."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tests.unit.run.scripted_engine import ScriptedEngine

from edgewise.errors import UnsupportedError
from edgewise.run.prefix_files import PrefixFiles
from edgewise.run.prefixes import PrefixCache
from edgewise.store import Home

LONG = [1 + i % 30 for i in range(60)]
OTHER = [30 - i % 29 for i in range(60)]


def with_state(tokens: list[int]) -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.cache = list(tokens)
    return engine


def files(tmp_path: Path, *, fingerprint: str = "f" * 64, quota: int = 1 << 20) -> PrefixFiles:
    return PrefixFiles(Home(tmp_path), fingerprint, quota)


def test_the_state_that_shares_most_is_restored() -> None:
    cache = PrefixCache(1 << 20)
    for tokens in (LONG[:40], LONG, OTHER):
        cache.keep(tokens, with_state(tokens).save_state, to_disk=False)
    engine = ScriptedEngine()
    assert cache.restore(engine, [*LONG, 5], better_than=0) == (LONG, 0)
    assert engine.cache == LONG
    # A longer state serves a shorter prompt too: the caller cuts it.
    assert cache.restore(engine, [*LONG[:50], 39], better_than=0) == (LONG, 0)
    assert cache.restore(engine, [*OTHER, 1], better_than=30) is None


def test_short_ones_and_known_ones_are_not_saved() -> None:
    cache = PrefixCache(1 << 20)

    def never() -> bytes:
        raise AssertionError

    cache.keep(LONG[:31], never, to_disk=False)
    cache.keep(LONG, with_state(LONG).save_state, to_disk=False)
    cache.keep(LONG, never, to_disk=False)
    cache.displace(LONG, shared=40, save=never)


def test_the_one_used_longest_ago_goes_first() -> None:
    size = len(with_state(LONG).save_state())
    cache = PrefixCache(2 * size + 20)
    third = [*OTHER[:59], 7]
    for tokens in (LONG, OTHER):
        cache.keep(tokens, with_state(tokens).save_state, to_disk=False)
    cache.restore(ScriptedEngine(), [*LONG, 1], better_than=0)
    cache.keep(third, with_state(third).save_state, to_disk=False)
    assert cache.resident_bytes <= 2 * size + 20
    assert cache.restore(ScriptedEngine(), [*LONG, 1], better_than=0) == (LONG, 0)
    assert cache.restore(ScriptedEngine(), [*OTHER, 1], better_than=0) == (
        third,
        0,
    )  # 59 are shared


def test_an_engine_that_saves_nothing_is_asked_once() -> None:
    asked = []

    def refuse() -> bytes:
        asked.append(1)
        raise UnsupportedError("state-save-unsupported", "no")

    cache = PrefixCache(1 << 20)
    cache.keep(LONG, refuse, to_disk=True)
    cache.keep(OTHER, refuse, to_disk=True)
    assert asked == [1]


def test_another_process_restores_what_was_written(tmp_path: Path) -> None:
    first = PrefixCache(0, files(tmp_path))
    first.keep(LONG, with_state(LONG).save_state, to_disk=True)
    engine = ScriptedEngine()
    assert PrefixCache(0, files(tmp_path)).restore(engine, [*LONG, 2], better_than=0) == (LONG, 0)
    assert engine.cache == LONG
    (written,) = (tmp_path / "prefixes").rglob("*.prefix")
    assert written.stat().st_mode & 0o077 == 0


def test_another_deployment_never_sees_it(tmp_path: Path) -> None:
    PrefixCache(0, files(tmp_path)).keep(LONG, with_state(LONG).save_state, to_disk=True)
    other = PrefixCache(0, files(tmp_path, fingerprint="e" * 64))
    assert other.restore(ScriptedEngine(), [*LONG, 2], better_than=0) is None
    (written,) = (tmp_path / "prefixes").rglob("*.prefix")
    moved = tmp_path / "prefixes" / ("e" * 64) / written.name
    moved.parent.mkdir(exist_ok=True)
    os.link(written, moved)
    assert other.restore(ScriptedEngine(), [*LONG, 2], better_than=0) is None
    assert not moved.exists()


@pytest.mark.parametrize("at", [0, 8, 17, 25, 60, 120, 200, 300, -1])
def test_a_poisoned_file_is_thrown_away(tmp_path: Path, at: int) -> None:
    PrefixCache(0, files(tmp_path)).keep(LONG, with_state(LONG).save_state, to_disk=True)
    (path,) = (tmp_path / "prefixes").rglob("*.prefix")
    body = bytearray(path.read_bytes())
    body[at] ^= 0x41
    path.write_bytes(body)
    engine = ScriptedEngine()
    cache = PrefixCache(0, files(tmp_path))
    assert cache.restore(engine, [*LONG, 2], better_than=0) is None
    assert engine.cache == []
    assert not path.exists()


@pytest.mark.parametrize("change", [b"", b"EDGEWISEPREFIX2\n\xff\xff\xff\xff", b"x" * 5000])
def test_a_file_that_is_something_else(tmp_path: Path, change: bytes) -> None:
    PrefixCache(0, files(tmp_path)).keep(LONG, with_state(LONG).save_state, to_disk=True)
    (path,) = (tmp_path / "prefixes").rglob("*.prefix")
    path.write_bytes(change)
    assert PrefixCache(0, files(tmp_path)).restore(ScriptedEngine(), LONG, better_than=0) is None
    path.unlink(missing_ok=True)
    os.mkfifo(path)  # would block for ever if it were opened as a file
    assert PrefixCache(0, files(tmp_path)).restore(ScriptedEngine(), LONG, better_than=0) is None


def test_a_file_cut_short_or_lengthened(tmp_path: Path) -> None:
    for change in (lambda b: b[:-1], lambda b: b + b"x"):
        PrefixCache(0, files(tmp_path)).keep(LONG, with_state(LONG).save_state, to_disk=True)
        (path,) = (tmp_path / "prefixes").rglob("*.prefix")
        path.write_bytes(change(path.read_bytes()))
        cache = PrefixCache(0, files(tmp_path))
        assert cache.restore(ScriptedEngine(), [*LONG, 2], better_than=0) is None
        assert not path.exists()


def test_a_state_the_engine_refuses_is_forgotten(tmp_path: Path) -> None:
    cache = PrefixCache(1 << 20, files(tmp_path))
    cache.keep(LONG, lambda: b"of another engine", to_disk=True)
    engine = ScriptedEngine()
    assert cache.restore(engine, [*LONG, 2], better_than=0) is None
    assert not list((tmp_path / "prefixes").rglob("*.prefix"))
    assert cache.resident_bytes == 0


def test_the_disk_quota_holds_over_all_deployments(tmp_path: Path) -> None:
    size = 3000
    state = b"s" * (size - 500)
    for number in range(6):
        one = files(tmp_path, fingerprint=f"{number:064}", quota=2 * size)
        PrefixCache(0, one).keep(LONG, lambda: state, to_disk=True)
        for path in (tmp_path / "prefixes").rglob("*.prefix"):
            os.utime(path, (number, number))
    left = list((tmp_path / "prefixes").rglob("*.prefix"))
    assert sum(path.stat().st_size for path in left) <= 2 * size
    assert f"{5:064}" in {path.parent.name for path in left}


def test_a_home_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("no folder")
    cache = PrefixCache(1 << 20, files(tmp_path))
    cache.keep(LONG, with_state(LONG).save_state, to_disk=True)
    assert cache.restore(ScriptedEngine(), [*LONG, 2], better_than=0) == (LONG, 0)


def test_shrinking_drops_what_is_in_memory_and_keeps_what_is_on_disk(tmp_path: Path) -> None:
    cache = PrefixCache(1 << 20, files(tmp_path))
    cache.keep(LONG, with_state(LONG).save_state, to_disk=True)
    cache.keep(OTHER, with_state(OTHER).save_state, to_disk=False)
    held = cache.resident_bytes
    assert held > 0
    assert cache.shrink() == held
    assert cache.resident_bytes == 0
    assert cache.restore(ScriptedEngine(), [*OTHER, 1], better_than=0) is None
    assert cache.restore(ScriptedEngine(), [*LONG, 1], better_than=0) == (LONG, 0)
    cache.keep(OTHER, with_state(OTHER).save_state, to_disk=False)
    assert cache.resident_bytes == 0, "nothing is kept while memory is tight"
    cache.grow()
    cache.keep(OTHER, with_state(OTHER).save_state, to_disk=False)
    assert cache.restore(ScriptedEngine(), [*OTHER, 1], better_than=0) == (OTHER, 0)


def test_a_state_in_memory_is_written_when_it_is_to_lie_on_disk(tmp_path: Path) -> None:
    cache = PrefixCache(1 << 20, files(tmp_path))
    cache.keep(LONG, with_state(LONG).save_state, to_disk=False)
    assert not cache.on_disk(LONG)

    def never() -> bytes:
        raise AssertionError("it is there already")

    cache.keep(LONG, never, to_disk=True)
    assert cache.on_disk(LONG)
    assert PrefixCache(0, files(tmp_path)).restore(ScriptedEngine(), [*LONG, 1], better_than=0)


def test_shrinking_from_another_thread_disturbs_nothing() -> None:
    cache = PrefixCache(1 << 20)
    over = threading.Event()

    def shrink() -> None:
        while not over.is_set():
            cache.shrink()
            cache.grow()

    thread = threading.Thread(target=shrink)
    thread.start()
    try:
        for n in range(2000):
            tokens = LONG if n % 2 else OTHER
            cache.keep(tokens, with_state(tokens).save_state, to_disk=False)
            engine = ScriptedEngine()
            restored = cache.restore(engine, [*tokens, 1], better_than=0)
            assert restored in (None, (tokens, 0))
            assert engine.cache == (restored[0] if restored else [])
    finally:
        over.set()
        thread.join()
