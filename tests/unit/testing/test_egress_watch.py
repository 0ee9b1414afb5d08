"""Watching code of this process: what Python does is found, what cannot be seen is said."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.unit.testing import egress_saboteurs as saboteurs

from edgewise.errors import InputError
from edgewise.testing.egress import Canary, EgressReport, EgressVerdict, Wall, watch
from edgewise.testing.egress import hook as hooks

FAIL, UNVERIFIED = EgressVerdict.FAIL, EgressVerdict.UNVERIFIED


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every change below the folder for temporary files is searched, it is a small one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def watched(way: str, tmp_path: Path, *extra: str) -> EgressReport:
    folder = tmp_path / "elsewhere"
    folder.mkdir(exist_ok=True)
    with watch(home=tmp_path / "home", roots=[]) as egress:
        getattr(saboteurs, way)(*extra, egress.canary.text, str(folder))
    return egress.report()


def test_nothing_is_found_where_nothing_is_done_and_nothing_is_proven(tmp_path: Path) -> None:
    report = watched("does_nothing", tmp_path)
    assert report.failures == ()
    assert report.verdict is UNVERIFIED
    assert report.walls == (Wall.AUDIT_HOOK,)
    assert report.exit_status is None


@pytest.mark.parametrize(
    ("way", "check"),
    [
        ("connects", "sockets"),
        ("sends_a_datagram", "sockets"),
        ("connects_in_a_thread", "sockets"),
        ("opens_a_local_socket", "sockets"),
        ("resolves_a_name", "names"),
        ("resolves_a_name_with_the_prompt", "programs"),
        ("writes_a_log", "files"),
        ("writes_base64", "files"),
        ("writes_to_sqlite", "files"),
        ("writes_and_renames", "files"),
        ("writes_and_removes", "files"),
        ("writes_and_overwrites", "files"),
        ("writes_and_replaces", "files"),
        ("names_a_file", "files"),
        ("names_a_folder", "files"),
        ("maps_a_file", "files"),
        ("starts_a_program_with_it", "programs"),
    ],
)
def test_what_python_code_does_is_found(way: str, check: str, tmp_path: Path) -> None:
    report = watched(way, tmp_path)
    assert report.check(check).verdict is FAIL, report.text()


@pytest.mark.parametrize("way", ["connects", "writes_a_log"])
def test_a_worker_is_watched_too(way: str, tmp_path: Path) -> None:
    report = watched("in_a_worker", tmp_path, way)
    assert len(report.processes) == 2
    assert report.verdict is FAIL


@pytest.mark.parametrize("way", ["opens_a_native_socket", "writes_natively", "resolves_natively"])
def test_what_native_code_does_is_not_taken_for_nothing(way: str, tmp_path: Path) -> None:
    report = watched(way, tmp_path)
    assert report.verdict is UNVERIFIED
    assert "native code" in report.text()


def test_native_writes_are_found_where_every_change_is_searched(tmp_path: Path) -> None:
    with watch(home=tmp_path, roots=[tmp_path]) as egress:
        saboteurs.writes_natively(egress.canary.text, str(tmp_path))
    assert egress.report().check("files").verdict is FAIL


def test_a_descriptor_that_was_open_before(tmp_path: Path) -> None:
    path = tmp_path / "open.log"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with watch(home=tmp_path, roots=[]) as egress:
            os.write(handle, egress.canary.text.encode())
    finally:
        os.close(handle)
    assert egress.report().check("files").verdict is FAIL
    assert "open before" in egress.report().failures[0]


@pytest.mark.parametrize("way", ["writes_to_a_file_without_a_name"])
def test_what_cannot_be_searched_is_said(way: str, tmp_path: Path) -> None:
    assert "it has no name" in " ".join(watched(way, tmp_path).check("files").reasons)


def test_a_program_that_nothing_watches_is_said(tmp_path: Path) -> None:
    report = watched("starts_an_unwatched_child", tmp_path)
    assert "nothing watched" in report.check("programs").reasons[0]


def test_who_ran_before_or_still_runs_is_said(tmp_path: Path) -> None:
    code = "import sys; sys.stdin.read()"
    before = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    with watch(home=tmp_path, roots=[]) as egress:
        during = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        # It says hello before it runs: it has started when it has been heard.
        deadline = time.monotonic() + 60
        while len(egress.heard()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    for process in (before, during):
        process.communicate()
    report = egress.report()
    assert f"process {before.pid} ran before" in report.text()
    assert report.check("end").reasons == (f"process {during.pid} still runs",)


def test_watches_nest_and_end(tmp_path: Path) -> None:
    path = os.environ.get("PYTHONPATH")
    with watch(home=tmp_path, roots=[]) as outer:
        with watch(home=tmp_path, roots=[]) as inner:
            saboteurs.resolves_a_name("", str(tmp_path))
        saboteurs.connects("", str(tmp_path))
    saboteurs.sends_a_datagram("", str(tmp_path))
    assert inner.report().check("names").verdict is FAIL
    assert inner.report().check("sockets").verdict is UNVERIFIED
    assert outer.report().check("names").verdict is FAIL
    assert outer.report().check("sockets").verdict is FAIL
    assert not any("sendto" in s.what for s in outer.report().sockets)
    assert os.environ.get("PYTHONPATH") == path
    assert hooks._recorders == []


def test_threads_of_a_watch_lose_nothing(tmp_path: Path) -> None:
    def work(number: int) -> None:
        for turn in range(20):
            (tmp_path / f"{number}-{turn}").write_text("x")

    with watch(home=tmp_path, roots=[]) as egress:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    written = {Path(p).name for p in egress.report().writes}
    assert {f"{n}-{t}" for n in range(8) for t in range(20)} <= written


def test_what_cannot_be_recorded_does_not_happen(tmp_path: Path) -> None:
    class Full:
        patterns = Canary.mint().patterns()

        def record(self, kind: str, detail: str, form: str = "") -> None:
            raise RuntimeError("no space")

    recorder = Full()
    hooks.start(recorder)
    try:
        with pytest.raises(RuntimeError, match="no space"):
            (tmp_path / "unseen").write_text("x")
    finally:
        hooks.stop(recorder)
    assert not (tmp_path / "unseen").exists()


def test_a_failure_inside_still_ends_the_watch(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), watch(home=tmp_path, roots=[]) as egress:
        _ = 1 / 0
    assert egress.report().failures == ()
    assert hooks._recorders == []


def test_it_is_used_once_and_asked_afterwards(tmp_path: Path) -> None:
    with watch(home=tmp_path, roots=[]) as egress:
        with pytest.raises(InputError) as early:
            egress.report()
        assert early.value.code == "egress-not-ended"
    with pytest.raises(InputError) as again:
        egress.__enter__()
    assert again.value.code == "egress-watch-reused"


def test_an_idle_hook_costs_next_to_nothing() -> None:
    """Against an event nobody wants, with no recorder: far below what an open() costs."""
    begin = time.process_time()
    for _ in range(100_000):
        hooks._hook("open", ("x", "w", os.O_WRONLY))
    assert time.process_time() - begin < 1.0
