"""Isolated runs: every way out is found or refused, in Python and in native code."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.unit.testing import egress_saboteurs as saboteurs

from edgewise.errors import InputError, ResourceError
from edgewise.testing.egress import (
    Canary,
    EgressReport,
    EgressVerdict,
    Wall,
    run_isolated,
)
from edgewise.testing.egress.hook import find_in

pytestmark = pytest.mark.slow  # each starts processes of its own

FAIL, PASS, UNVERIFIED = EgressVerdict.FAIL, EgressVerdict.PASS, EgressVerdict.UNVERIFIED


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every change below the folder for temporary files is searched, it is a small one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def run(what, tmp_path: Path, *extra: str, **options) -> EgressReport:
    """Run a saboteur; its folder is one that nobody thought of searching."""
    canary = options.pop("canary", None) or Canary.mint()
    folder = tmp_path / "elsewhere"
    folder.mkdir(exist_ok=True)
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    report = run_isolated(
        what,
        *extra,
        canary.text,
        str(folder),
        canary=canary,
        home=home,
        folder=home,
        timeout_s=options.pop("timeout_s", 60),
        **options,
    )
    shown = report.text().encode() + repr(report).encode()
    assert not find_in(shown, canary.patterns()), "a report must be fit to be shown"
    return report


@pytest.fixture(scope="session")
def walls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Wall, ...]:
    report = run(saboteurs.does_nothing, tmp_path_factory.mktemp("walls"))
    assert "supervisor failed" not in report.text()
    return report.walls


@pytest.fixture
def kernel(walls: tuple[Wall, ...]) -> None:
    if Wall.SECCOMP not in walls:
        pytest.skip("this system lets no supervisor watch system calls")


def test_what_stays_passes(tmp_path: Path, walls: tuple[Wall, ...]) -> None:
    report = run(saboteurs.does_nothing, tmp_path)
    assert report.failures == ()
    assert report.exit_status == 0
    assert (report.sockets, report.lookups, report.hits) == ((), (), ())
    if Wall.SECCOMP in walls:
        names = ("sockets", "names", "programs", "files", "output", "end")
        assert [report.check(name).verdict for name in names] == [PASS] * len(names), report.text()
        assert len(report.processes) == 1


WAYS_OUT = {
    "connects": "sockets",
    "sends_a_datagram": "sockets",
    "connects_in_a_thread": "sockets",
    "opens_a_native_socket": "sockets",
    "opens_a_local_socket": "sockets",
    "resolves_a_name": "names",
    "resolves_a_name_with_the_prompt": "programs",
    "resolves_natively": "sockets",
    "writes_a_log": "files",
    "writes_a_part_of_it": "files",
    "writes_base64": "files",
    "writes_utf_16": "files",
    "writes_to_sqlite": "files",
    "writes_and_renames": "files",
    "writes_and_removes": "files",
    "removes_and_then_writes": "files",
    "uses_a_temporary_file": "files",
    "writes_and_overwrites": "files",
    "writes_and_replaces": "files",
    "names_a_file": "files",
    "names_a_folder": "files",
    "writes_to_the_shared_temporary_folder": "files",
    "writes_natively": "files",
    "writes_and_removes_natively": "files",
    "maps_a_file": "files",
    "prints_it": "output",
    "complains_natively": "output",
    "starts_a_program_with_it": "programs",
    "starts_a_program_with_it_in_its_environment": "programs",
    "starts_an_unwatched_child": "sockets",
}


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_way_out_is_found(way: str, tmp_path: Path) -> None:
    report = run(getattr(saboteurs, way), tmp_path)
    assert report.check(WAYS_OUT[way]).verdict is FAIL, report.text()
    assert report.verdict is FAIL


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    "way",
    ["connects", "opens_a_native_socket", "writes_natively", "writes_a_log", "complains_natively"],
)
def test_a_way_out_of_a_worker_is_found(way: str, tmp_path: Path) -> None:
    report = run(saboteurs.in_a_worker, tmp_path, way)
    assert report.check(WAYS_OUT[way]).verdict is FAIL, report.text()
    assert len(report.processes) == 2, "the worker is watched from its start"


@pytest.mark.usefixtures("kernel")
def test_what_cannot_be_searched_is_said(tmp_path: Path) -> None:
    check = run(saboteurs.writes_to_memory, tmp_path).check("files")
    assert check.verdict is UNVERIFIED
    assert "it has no name" in " ".join(check.reasons)


@pytest.mark.usefixtures("kernel")
def test_a_file_that_never_has_a_name_is_refused(tmp_path: Path) -> None:
    seen: dict[str, bytes] = {}
    way = saboteurs.writes_to_a_file_without_a_name
    report = run(way, tmp_path, on_output=seen.__setitem__)
    assert report.exit_status == 1
    assert b"Operation not supported" in seen["stderr"]
    assert report.check("files").verdict is PASS


@pytest.mark.usefixtures("kernel")
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_another_program_is_inside_the_walls_too(tmp_path: Path) -> None:
    report = run(saboteurs.starts_curl, tmp_path)
    assert report.check("sockets").verdict is FAIL
    assert any("curl" in program.what for program in report.programs)
    assert {s.seen_by for s in report.sockets} == {Wall.SECCOMP}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="core dumps of Linux")
def test_a_core_dump_is_found(tmp_path: Path) -> None:
    import resource

    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if "/" in pattern or pattern.startswith(("|", "@")) or not pattern:
        pytest.skip(f"cores go elsewhere here: {pattern}")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("no process here may leave a core")
    canary = Canary.mint()
    report = run_isolated(
        Path(saboteurs.__file__),
        "crashes_with_it",
        tmp_path,
        canary=canary,
        home=tmp_path,
        folder=tmp_path,
        stdin=canary.text.encode(),
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert report.exit_status == -6
    assert report.check("crash-dumps").verdict is UNVERIFIED
    assert report.check("files").verdict is FAIL, report.text()
    assert any("core" in hit.place for hit in report.hits)


def test_what_does_not_end_is_ended_and_said(tmp_path: Path) -> None:
    report = run(saboteurs.keeps_running, tmp_path, timeout_s=1)
    assert report.exit_status == -9
    assert report.check("end").verdict is UNVERIFIED
    assert "after 1 s" in report.check("end").reasons[0]


def test_what_outlives_it_is_ended_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.testing.egress.isolated._AFTERWARDS_S", 0.5)
    report = run(saboteurs.leaves_a_process, tmp_path)
    assert report.exit_status == 0
    assert "outlived" in report.check("end").reasons[0]


AUDIT_ONLY = frozenset({Wall.AUDIT_HOOK})


def test_without_walls_nothing_passes_that_native_code_could_do(tmp_path: Path) -> None:
    report = run(saboteurs.opens_a_native_socket, tmp_path, walls=AUDIT_ONLY)
    assert report.walls == (Wall.AUDIT_HOOK,)
    for name in ("sockets", "names", "programs", "files", "output"):
        assert report.check(name).verdict is UNVERIFIED, name
    assert "native code" in report.check("sockets").reasons[0]


@pytest.mark.parametrize("way", ["connects", "resolves_a_name", "writes_a_log"])
def test_without_walls_python_code_is_found_all_the_same(way: str, tmp_path: Path) -> None:
    report = run(saboteurs.in_a_worker, tmp_path, way, walls=AUDIT_ONLY)
    assert report.check(WAYS_OUT[way]).verdict is FAIL, report.text()


@pytest.mark.usefixtures("kernel")
def test_a_supervisor_that_fails_takes_its_wall_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("edgewise.testing.egress.supervisor.Supervisor._look", fail)
    report = run(saboteurs.opens_a_native_socket, tmp_path)
    assert Wall.SECCOMP not in report.walls
    assert report.check("files").verdict is UNVERIFIED
    assert "the supervisor failed" in report.check("end").reasons[0]


@pytest.mark.usefixtures("kernel")
def test_a_filter_that_tells_nobody_still_refuses(tmp_path: Path) -> None:
    silent = {Wall.SECCOMP_SILENT, Wall.AUDIT_HOOK}
    report = run(saboteurs.opens_a_native_socket, tmp_path, walls=silent)
    assert report.walls == (Wall.SECCOMP_SILENT, Wall.AUDIT_HOOK)
    assert report.check("sockets").verdict is PASS
    assert report.check("files").verdict is UNVERIFIED


def test_an_empty_network_alone_does_not_count_sockets(
    tmp_path: Path, walls: tuple[Wall, ...]
) -> None:
    if Wall.NETWORK_NAMESPACE not in walls:
        pytest.skip("no network namespace can be made here")
    report = run(saboteurs.opens_a_native_socket, tmp_path, walls={Wall.NETWORK_NAMESPACE})
    assert report.walls == (Wall.NETWORK_NAMESPACE,)
    assert report.check("sockets").verdict is UNVERIFIED
    assert "reached nothing" in report.check("sockets").reasons[0]


def test_a_command_whose_answer_may_repeat_the_prompt(tmp_path: Path) -> None:
    canary = Canary.mint()
    seen: dict[str, bytes] = {}
    code = "import sys; sys.stdout.write(sys.stdin.read())"
    report = run_isolated(
        [sys.executable, "-c", code],
        canary=canary,
        home=tmp_path,
        folder=tmp_path,
        stdin=canary.text.encode(),
        answer_on_stdout=True,
        on_output=seen.__setitem__,
    )
    assert report.failures == ()
    assert seen == {"stdout": canary.text.encode(), "stderr": b""}


def test_what_cannot_be_run_is_a_typed_error(tmp_path: Path) -> None:
    for bad in (lambda: None, "no-colon", run.__get__(object())):
        with pytest.raises(InputError) as caught:
            run_isolated(bad, object if callable(bad) else 1, lambda: 0, canary=Canary.mint())
        assert caught.value.code == "egress-callable"
    with pytest.raises(ResourceError) as failed:
        run_isolated(["true"], canary=Canary.mint(), home=tmp_path, folder=tmp_path / "absent")
    assert failed.value.code == "egress-start-failed"


def test_a_command_that_does_not_exist_says_so(tmp_path: Path) -> None:
    seen: dict[str, bytes] = {}
    report = run_isolated(
        ["/nonexistent/program"],
        canary=Canary.mint(),
        home=tmp_path,
        folder=tmp_path,
        on_output=seen.__setitem__,
    )
    assert report.exit_status == 127
    assert b"No such file" in seen["stderr"]


def test_a_run_that_never_began_is_no_clean_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "launcher.py"
    broken.write_text("raise SystemExit(3)")
    monkeypatch.setattr("edgewise.testing.egress.launcher.__file__", str(broken))
    report = run(saboteurs.does_nothing, tmp_path)
    assert report.walls == ()
    assert report.check("end").verdict is UNVERIFIED
    assert "had begun" in report.check("end").reasons[0]


TINY = """
import socket, pytest
def test_refused():
    with pytest.raises(OSError):
        socket.socket()
"""


@pytest.mark.usefixtures("kernel")
def test_pytest_itself_runs_inside(tmp_path: Path) -> None:
    (tmp_path / "test_tiny.py").write_text(TINY)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    report = run_isolated(
        [*words, "--rootdir", str(tmp_path), str(tmp_path / "test_tiny.py")],
        canary=Canary.mint(),
        home=tmp_path,
        folder=tmp_path,
    )
    assert report.exit_status == 0
    assert report.check("sockets").verdict is FAIL


@pytest.mark.usefixtures("kernel")
def test_a_check_inside_a_check_has_what_is_left(tmp_path: Path) -> None:
    seen: dict[str, bytes] = {}
    report = run(saboteurs.checks_another, tmp_path, on_output=seen.__setitem__)
    assert report.exit_status == 0, seen["stderr"].decode()
    inner = seen["stdout"].decode()
    assert "walls: seccomp-silent, audit-hook" in inner
    assert "not: seccomp: " in inner, "the kernel takes one supervisor"
    assert report.check("sockets").verdict is FAIL, "the outer one counts"


COLD = [
    [sys.executable, "-c", "import edgewise"],
    [sys.executable, "-c", "import edgewise\nfor n in edgewise.__all__: getattr(edgewise, n)"],
    *(
        [sys.executable, "-m", "edgewise.cli", *words]
        for words in (
            ["--help"],
            ["run", "--help"],
            ["fingerprint"],
            ["evidence", "list"],
            ["probe", "--read-only", "--json"],
        )
    ),
]


@pytest.mark.parametrize("words", COLD, ids=lambda words: " ".join(words[2:])[:40])
def test_nothing_that_needs_no_network_opens_a_socket(words: list[str], tmp_path: Path) -> None:
    report = run_isolated(words, canary=Canary.mint(), home=tmp_path, folder=tmp_path)
    assert report.exit_status in {0, 2}
    assert report.sockets == ()
    assert report.lookups == ()
    if Wall.SECCOMP in report.walls:
        assert report.check("sockets").verdict is PASS
