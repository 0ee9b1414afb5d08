"""The home on disk: whole files or none, and what happens when there is no room or no right."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgewise.errors import InputError, IntegrityError, ResourceError
from edgewise.store import Home, scratch
from edgewise.store.digest import file_digest
from edgewise.store.home import default_home, storage_error

OLD, NEW = b"old " * 1000, b"new!" * 1000
POINTS = ["opened", "locked", "written", "synced", "replaced"]

# A process that is killed, as by kill -9, at a named point of Home.write.
KILLED_WRITE = """
import os, signal, sys
from pathlib import Path
from edgewise.store import scratch
from edgewise.store.home import Home

root, point, data = sys.argv[1:]
die = lambda: os.kill(os.getpid(), signal.SIGKILL)

def dying(function, before):
    def wrapper(*args, **kwargs):
        if before:
            die()
        result = function(*args, **kwargs)
        die()
        return result
    return wrapper

if point == "opened":
    scratch.fcntl.flock = dying(scratch.fcntl.flock, True)
elif point == "locked":
    scratch.fcntl.flock = dying(scratch.fcntl.flock, False)
elif point == "written":
    def sync(stream):
        stream.flush()
        os.truncate(stream.fileno(), len(data) // 2)  # what a lost page cache may leave
        die()
    scratch.sync = sync
elif point == "synced":
    scratch.sync = dying(scratch.sync, False)
elif point == "replaced":
    scratch.sync_folder = dying(scratch.sync_folder, True)
Home(Path(root)).write(Path(root) / "evidence" / "x.json", data.encode())
"""


def script(code: str, *arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60, **options
    )


def everything(root: Path) -> set[str]:
    return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_creating_the_object_touches_nothing(home: Home) -> None:
    assert not home.root.exists()
    assert home.blob("x") == home.root / "blobs" / "x"
    assert not home.root.exists()


def test_write(home: Home) -> None:
    path = home.root / "evidence" / "x.json"
    home.write(path, OLD)
    home.write(path, NEW)
    assert path.read_bytes() == NEW
    assert everything(home.root) == {"evidence/x.json"}
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.slow
@pytest.mark.parametrize("before", [None, OLD], ids=["new", "over-old"])
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_write_leaves_old_or_new(home: Home, point: str, before: bytes | None) -> None:
    path = home.root / "evidence" / "x.json"
    if before is not None:
        home.write(path, before)
    done = script(KILLED_WRITE, home.root, point, NEW.decode())
    assert done.returncode == -signal.SIGKILL, done.stderr
    expected = NEW if point == "replaced" else before
    assert (path.read_bytes() if path.exists() else None) == expected
    left = everything(home.root) - {"evidence/x.json"}
    assert all(name.startswith("staging/write-") for name in left)
    assert len(left) == (0 if point == "replaced" else 1)
    with home.work_folder():
        pass
    assert everything(home.root) - {"evidence/x.json"} == set()
    home.write(path, NEW)
    assert path.read_bytes() == NEW


def test_a_write_that_fails_leaves_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home.root / "evidence" / "x.json"
    home.write(path, OLD)

    def full(_stream: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scratch, "sync", full)
    with pytest.raises(ResourceError) as caught:
        home.write(path, NEW)
    assert caught.value.code == "disk-full"
    assert caught.value.retryable
    assert path.read_bytes() == OLD
    assert everything(home.root) == {"evidence/x.json"}


def test_an_interrupted_write_leaves_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_stream: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scratch, "sync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        home.write(home.root / "active", NEW)
    assert everything(home.root) == set()


# -- the sweep


def test_work_folder_is_removed_whatever_happens(home: Home) -> None:
    def work_and_fail() -> None:
        with home.work_folder() as work:
            (work / "big").write_bytes(NEW)
            (work / "inner").mkdir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work_and_fail()
    assert list(home.staging.iterdir()) == []


def test_a_work_folder_may_be_moved_away(home: Home) -> None:
    with home.work_folder() as work:
        (work / "a").touch()
        work.rename(home.root / "kept")
    assert (home.root / "kept" / "a").exists()


@contextlib.contextmanager
def process(code: str, *arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a process that prints a line when it is ready and ends when its input does."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "ready\n"
        try:
            yield child
        finally:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            child.wait(timeout=60)


HOLDING = """
import sys
from pathlib import Path
from edgewise.store import scratch
from edgewise.store.home import Home

home = Home(Path(sys.argv[1]))
with home.work_folder() as work:
    (work / "half").write_bytes(b"half")
    path, held = scratch.make_file(home.staging)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_the_sweep_spares_the_living_and_clears_the_dead(home: Home) -> None:
    with process(HOLDING, home.root) as child:
        with home.work_folder() as own:
            names = sorted(p.name.split("-")[0] for p in home.staging.iterdir())
            assert names == ["work", "work", "write"]
            assert own.is_dir()
            scratch.sweep(home.staging)
            assert own.is_dir()  # our own is held, too
        assert len(list(home.staging.iterdir())) == 2
        child.kill()
        child.wait(timeout=60)
        with home.work_folder() as own:
            assert list(home.staging.iterdir()) == [own]


def test_the_sweep_leaves_everything_else(home: Home, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    fetch = home.folder("staging", "fetch")
    (fetch / "m.gguf.part").write_bytes(OLD)
    (home.staging / "worker.txt").touch()
    (home.staging / "work-link").symlink_to(outside)
    (home.staging / "write-link").symlink_to(outside / "precious")
    os.mkfifo(home.staging / "write-pipe")
    with home.work_folder():
        pass
    assert (outside / "precious").exists()
    assert (fetch / "m.gguf.part").read_bytes() == OLD
    assert (home.staging / "worker.txt").exists()


def test_an_entry_swept_between_its_making_and_its_lock_is_made_anew(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = home.folder("staging")
    flock = fcntl.flock
    swept: list[Path] = []

    def late(descriptor: int, how: int) -> None:
        if not swept:
            swept.extend(staging.iterdir())
            for path in swept:
                path.unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    path, held = scratch.make_file(staging)
    os.close(held)
    assert len(swept) == 1
    assert path not in swept
    assert path.exists()


def test_without_locks_nothing_is_swept(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.folder("staging") / "work-of-another").mkdir()

    def unsupported(_descriptor: int, _how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with home.work_folder():
        pass
    monkeypatch.setattr(scratch, "fcntl", None)
    home.write(home.root / "active", NEW)
    with home.work_folder():
        pass
    assert [p.name for p in home.staging.iterdir()] == ["work-of-another"]


def _write_often(root: Path, letter: str) -> None:
    home = Home(root)
    for _ in range(60):
        home.write(root / "active", (letter * 5000).encode())
        with home.work_folder() as work:
            (work / "x").write_text("x")


@pytest.mark.slow
def test_many_processes_write_and_sweep_at_once(home: Home) -> None:
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_write_often, args=(home.root, c)) for c in "abc"]
    for child in children:
        child.start()
    seen = set()
    while any(child.is_alive() for child in children):
        with contextlib.suppress(FileNotFoundError):
            seen.add((home.root / "active").read_text())
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert seen <= {letter * 5000 for letter in "abc"}
    assert everything(home.root) == {"active"}


# -- blobs


def staged(home: Home, data: bytes) -> tuple[Path, str]:
    path = home.folder("staging", "fetch") / "m.gguf"
    path.write_bytes(data)
    return path, hashlib.sha256(data).hexdigest()


def test_adopt(home: Home) -> None:
    path, digest = staged(home, NEW)
    blob = home.adopt(path, digest)
    assert blob == home.blob(digest)
    assert blob.read_bytes() == NEW
    assert not path.exists()
    assert blob.stat().st_mode & 0o777 == 0o444
    assert home.verified_blob(digest) == blob == home.verified_blob(file_digest(blob))


def test_adopting_twice_keeps_the_first(home: Home) -> None:
    blob = home.adopt(*staged(home, NEW))
    inode = blob.stat().st_ino
    path, digest = staged(home, NEW)
    assert home.adopt(path, digest).stat().st_ino == inode
    assert not path.exists()


@pytest.mark.parametrize("damage", [OLD, NEW[:-1], b"", NEW + b"x"])
def test_adopting_mends_a_damaged_blob(home: Home, damage: bytes) -> None:
    blob = home.adopt(*staged(home, NEW))
    blob.unlink()
    blob.write_bytes(damage)
    home.adopt(*staged(home, NEW))
    assert blob.read_bytes() == NEW


@pytest.mark.parametrize("damage", [OLD, NEW[:-1], b"", NEW + b"x"])
def test_a_damaged_blob_is_noticed(home: Home, damage: bytes) -> None:
    path, digest = staged(home, NEW)
    blob = home.adopt(path, digest)
    blob.unlink()
    blob.write_bytes(damage)
    with pytest.raises(IntegrityError) as caught:
        home.verified_blob(digest)
    assert caught.value.code == "blob-corrupt"
    assert caught.value.context["actual"] == hashlib.sha256(damage).hexdigest()
    assert caught.value.hint


def test_a_missing_blob(home: Home) -> None:
    with pytest.raises(IntegrityError) as caught:
        home.verified_blob("a" * 64)
    assert caught.value.code == "blob-missing"
    assert not home.root.exists()


# -- locks

LOCKING = """
import sys
from pathlib import Path
from edgewise.store.home import Home

with Home(Path(sys.argv[1])).lock("x"):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_held_lock(home: Home) -> None:
    waits: list[str] = []
    with process(LOCKING, home.root) as child:
        assert child.stdin is not None
        with (
            pytest.raises(ResourceError) as caught,
            home.lock("x", timeout_s=0, on_wait=lambda: waits.append("timeout")),
        ):
            raise AssertionError
        assert caught.value.code == "lock-timeout"
        assert caught.value.retryable
        assert caught.value.hint
        with home.lock("y", on_wait=lambda: waits.append("other")):
            pass  # another name is another lock
        stdin = child.stdin

        def release() -> None:
            waits.append("released")
            stdin.close()

        with home.lock("x", timeout_s=60, on_wait=release):
            waits.append("mine")
    assert waits == ["timeout", "released", "mine"]


@pytest.mark.slow
def test_a_killed_holder_gives_the_lock_back(home: Home) -> None:
    with process(LOCKING, home.root) as child:
        child.kill()
        child.wait(timeout=60)
        with home.lock("x", timeout_s=30):
            pass


def test_a_lock_is_given_back_after_an_error(home: Home) -> None:
    for _ in range(2):
        with pytest.raises(KeyError), home.lock("x", timeout_s=0):
            raise KeyError
    waited: list[bool] = []
    with home.lock("x", on_wait=lambda: waited.append(True)):
        assert waited == []


# -- no room, no right


@contextlib.contextmanager
def tmpfs(path: Path, options: str) -> Iterator[None]:
    path.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("cannot mount here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.root
@pytest.mark.slow
def test_a_full_disk(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=64k"):
        home = Home(tmp_path / "disk" / "home")
        home.write(home.root / "evidence" / "x.json", OLD)
        with pytest.raises(ResourceError) as caught:
            home.write(home.root / "evidence" / "x.json", b"x" * 100_000)
        assert caught.value.code == "disk-full"
        assert caught.value.retryable
        assert "EDGEWISE_HOME" in str(caught.value.hint)
        assert 0 <= caught.value.context["free_bytes"] < 100_000
        assert (home.root / "evidence" / "x.json").read_bytes() == OLD
        assert everything(home.root) == {"evidence/x.json"}


@pytest.mark.root
@pytest.mark.slow
def test_a_read_only_home(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with tmpfs(disk, "size=1m"):
        home = Home(disk / "home")
        path, digest = staged(home, NEW)
        home.write(home.root / "active", OLD)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for attempt in (
            lambda: home.write(home.root / "active", NEW),
            lambda: home.write(home.root / "evidence" / "x", NEW),
            lambda: home.work_folder().__enter__(),
            lambda: home.lock("x").__enter__(),
            lambda: home.adopt(path, digest),
            lambda: home.folder("new"),
        ):
            with pytest.raises(ResourceError) as caught:
                attempt()
            assert caught.value.code == "storage-not-writable"
            assert "EDGEWISE_HOME" in str(caught.value.hint)
            assert not caught.value.retryable
        assert (home.root / "active").read_bytes() == OLD


@pytest.mark.slow
def test_a_file_size_limit(home: Home) -> None:
    code = """
import resource, sys
from pathlib import Path
from edgewise.errors import ResourceError
from edgewise.store.home import Home

home = Home(Path(sys.argv[1]))
home.write(home.root / "active", b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    home.write(home.root / "active", b"x" * 5000)
except ResourceError as error:
    print(error.code, bool(error.hint))
"""
    done = script(code, home.root)
    assert (done.stdout, done.stderr) == ("file-too-large True\n", "")
    assert (home.root / "active").read_bytes() == b"old"
    assert everything(home.root) == {"active"}


@pytest.mark.parametrize("what", ["root", "parent"])
def test_a_file_where_the_home_should_be(tmp_path: Path, what: str) -> None:
    (tmp_path / "home").write_text("I am a file")
    home = Home(tmp_path / "home" / ("inner" if what == "parent" else ""))
    with pytest.raises(ResourceError) as caught:
        home.write(home.root / "active", NEW)
    assert caught.value.code == "storage-failed"
    assert (tmp_path / "home").read_text() == "I am a file"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (28, "disk-full"),
        (122, "disk-full"),
        (30, "storage-not-writable"),
        (13, "storage-not-writable"),
        (1, "storage-not-writable"),
        (27, "file-too-large"),
        (5, "storage-failed"),
    ],
)
def test_storage_errors(tmp_path: Path, number: int, code: str) -> None:
    error = storage_error(OSError(number, os.strerror(number)), tmp_path / "a" / "b", "testing")
    assert isinstance(error, ResourceError)
    assert error.code == code
    assert error.context["errno"] == number
    assert "testing" in error.message
    assert error.retryable is (code == "disk-full")
    assert code == "storage-failed" or error.hint


def test_default_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "\u00e9 space"))
    assert default_home() == tmp_path / "\u00e9 space" == Home().root
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EDGEWISE_HOME", "~/e")
    assert default_home() == tmp_path / "e"
    monkeypatch.setenv("EDGEWISE_HOME", "~no-such-user-here/e")
    with pytest.raises(InputError) as caught:
        default_home()
    assert caught.value.code == "home-invalid"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("EDGEWISE_HOME")
        else:
            monkeypatch.setenv("EDGEWISE_HOME", unset)
        assert default_home().name == "edgewise"


def test_a_relative_home_does_not_move(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    home = Home(Path("h"))
    monkeypatch.chdir("/")
    assert home.root == tmp_path / "h"
