"""Late answers and files: the version, no file written over, and what a crash leaves."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.route.cloud.servers import Authority, RawServer, chunked, delta
from tests.unit.workflow.queue_world import Effects, World

from edgewise.errors import InputError
from edgewise.route.offline import DocumentVersion, State
from edgewise.store import Home
from edgewise.workflow.documents import document_version, read_document, require_free
from edgewise.workflow.late_answers import (
    FileApplier,
    apply_to_files,
)

TEXT = "The meeting is on Tuesday."
SUMMARY = f"Short: {TEXT}"


class Killed(BaseException):
    """Stands for the end of the process: nothing that comes after it runs."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[RawServer]:
    with RawServer(Effects(dedupe=True).answer, tls=authority.context()).running() as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, server: RawServer, authority: Authority) -> World:
    return World(Home(tmp_path / "home"), server, authority.file)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    found = tmp_path / "desk"
    found.mkdir()
    (found / "note.txt").write_text(TEXT)
    return found


def answered(world: World, desk: Path, target: str = "summary.txt") -> str:
    note = desk / "note.txt"
    version = document_version(note)
    assert version is not None
    name = world.queued(
        TEXT,
        document=DocumentVersion(document_id=str(note), version=version),
        apply_to=desk / target,
    )
    world.agree()
    world.drain()
    assert world.state(name) is State.ANSWERED
    return name


def names(desk: Path) -> list[str]:
    return sorted(path.name for path in desk.iterdir())


def test_an_answer_gets_into_its_file_once(world: World, desk: Path) -> None:
    name = answered(world, desk)
    (done,) = apply_to_files(world.queue)
    assert (done.result, done.entry.state) == ("applied", State.APPLIED)
    assert (desk / "summary.txt").read_text() == SUMMARY
    assert names(desk) == ["note.txt", "summary.txt"]
    assert world.queue.answer(name) is None
    assert apply_to_files(world.queue) == ()


def test_the_document_itself_can_be_the_target(world: World, desk: Path) -> None:
    note = desk / "note.txt"
    note.chmod(0o640)
    answered(world, desk, "note.txt")
    (done,) = apply_to_files(world.queue)
    assert done.result == "applied"
    assert note.read_text() == SUMMARY
    assert stat.S_IMODE(note.stat().st_mode) == 0o640
    assert names(desk) == ["note.txt"]


@pytest.mark.parametrize("gone", [False, True], ids=["changed", "gone"])
def test_a_changed_document_is_not_touched_and_the_answer_is_kept(
    world: World, desk: Path, *, gone: bool
) -> None:
    name = answered(world, desk, "note.txt")
    note = desk / "note.txt"
    if gone:
        note.unlink()
    else:
        note.write_text(f"{TEXT} No, on Friday.")
    (done,) = apply_to_files(world.queue)
    assert (done.result, world.state(name)) == ("stale", State.STALE)
    assert done.reason
    assert names(desk) == ([] if gone else ["note.txt"])
    assert b"Short" in (world.queue.answer(name) or b"")
    assert apply_to_files(world.queue) == ()


def test_another_file_is_not_written_over(world: World, desk: Path) -> None:
    name = answered(world, desk)
    (desk / "summary.txt").write_text("Mine.")
    (done,) = apply_to_files(world.queue)
    assert done.result == "failed"
    assert "apply-target-exists" in done.reason
    assert (desk / "summary.txt").read_text() == "Mine."
    assert names(desk) == ["note.txt", "summary.txt"]
    (desk / "summary.txt").unlink()
    world.later(120)
    assert [one.result for one in apply_to_files(world.queue)] == ["applied"]
    assert world.state(name) is State.APPLIED
    assert (desk / "summary.txt").read_text() == SUMMARY


def test_an_answer_that_was_cut_is_offered_only(
    world: World, server: RawServer, desk: Path
) -> None:
    server.answers = [chunked(delta("Short"), delta(finish="length"))]
    name = answered(world, desk)
    (done,) = apply_to_files(world.queue)
    assert (done.result, world.state(name)) == ("kept", State.ANSWERED)
    assert "length" in done.reason
    assert names(desk) == ["note.txt"]


def test_a_folder_that_is_gone_loses_nothing(world: World, desk: Path) -> None:
    name = answered(world, desk, "gone/summary.txt")
    (done,) = apply_to_files(world.queue)
    assert (done.result, done.reason.partition(":")[0]) == ("failed", "answer-not-written")
    assert world.queue.answer(name)
    (desk / "gone").mkdir()
    world.later(120)
    assert [one.result for one in apply_to_files(world.queue)] == ["applied"]


@pytest.mark.parametrize("target", ["summary.txt", "note.txt"])
@pytest.mark.parametrize("step", ["_write", "after _write", "_put", "after _put", "forget"])
def test_killed_while_it_is_applied(
    world: World, desk: Path, monkeypatch: pytest.MonkeyPatch, step: str, target: str
) -> None:
    name = answered(world, desk, target)
    method = step.removeprefix("after ")
    whole = getattr(FileApplier, method)
    seen = []

    def dying(self: FileApplier, *args: object) -> object:
        seen.append(step)
        # Before it writes, an applier forgets what others left; the end comes the second time.
        if step != method:
            whole(self, *args)
        elif step == "forget" and len(seen) == 1:
            return whole(self, *args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(FileApplier, method, dying)
        with pytest.raises(Killed):
            apply_to_files(world.queue)
    apply_to_files(world.queue)  # the lease of the dead one still holds
    world.later(120)
    apply_to_files(world.queue)
    assert world.state(name) is State.APPLIED
    assert (desk / target).read_text() == SUMMARY
    assert names(desk) == sorted({"note.txt", target})


def test_killed_and_then_changed_by_the_user_nothing_is_written_over(
    world: World, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = answered(world, desk)
    whole = FileApplier._put

    def dying(self: FileApplier, own: Path) -> bool:
        whole(self, own)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(FileApplier, "_put", dying)
        with pytest.raises(Killed):
            apply_to_files(world.queue)
    own = desk / "edited"
    own.write_text("Edited since.")
    own.replace(desk / "summary.txt")  # as editors save
    world.later(120)
    (done,) = apply_to_files(world.queue)
    assert done.result == "failed"
    assert (desk / "summary.txt").read_text() == "Edited since."
    assert world.queue.answer(name)


@pytest.mark.parametrize("target", ["summary.txt", "note.txt"])
def test_a_document_that_changes_while_the_answer_is_written(
    world: World, desk: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    name = answered(world, desk, target)
    whole = FileApplier._write

    def meanwhile(self: FileApplier, own: Path, text: str) -> None:
        whole(self, own, text)
        (desk / "note.txt").write_text("Friday.")

    monkeypatch.setattr(FileApplier, "_write", meanwhile)
    (done,) = apply_to_files(world.queue)
    assert (done.result, world.state(name)) == ("stale", State.STALE)
    assert names(desk) == ["note.txt"]
    assert (desk / "note.txt").read_text() == "Friday."
    assert world.queue.answer(name)


def test_a_document_is_text_of_a_bounded_size(tmp_path: Path) -> None:
    path = tmp_path / "d"
    assert document_version(path) is None
    for data in (b"\xff", b"x" * ((1 << 20) + 1)):
        path.write_bytes(data)
        with pytest.raises(InputError) as found:
            read_document(path)
        assert found.value.code == "document-unreadable"
    assert document_version(path) not in {None, ""}
    path.unlink()
    with pytest.raises(InputError):
        read_document(path)
    path.mkdir()
    with pytest.raises(InputError):
        document_version(path)
    with pytest.raises(InputError) as taken:
        require_free(path, None)
    assert taken.value.code == "apply-target-exists"
    require_free(path, path)
