"""Late answers: applied to the version they are about, once, or offered."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.route.offline.world import (
    Scripted,
    Time,
    answered,
    document,
    draft,
    permit,
    queue_at,
)

from edgewise.route.offline import (
    Applied,
    Drainer,
    LinkState,
    MaybeSent,
    NotApplied,
    OfflineQueue,
    Operation,
    Stale,
    State,
    apply_answer,
)


class Notes:
    """An application's documents: applies an answer under its key if the version still fits."""

    def __init__(self, *, can_tell: bool = True) -> None:
        self.version = "v1"
        self.applied: list[tuple[str, bytes]] = []
        self.can_tell = can_tell
        self.crash = ""

    def apply(self, operation: Operation, answer: bytes) -> bool:
        if self.crash == "before":
            raise RuntimeError("killed")
        if operation.document is not None and operation.document.version != self.version:
            return False
        self.applied.append((operation.idempotency_key, answer))
        if self.crash == "after":
            raise RuntimeError("killed")
        return True

    def was_applied(self, operation: Operation) -> bool | None:
        if not self.can_tell:
            return None
        return operation.idempotency_key in {key for key, _ in self.applied}


def answered_queue(folder: Path, time: Time, *, about: bool = True) -> tuple[OfflineQueue, str]:
    queue = queue_at(folder, time)
    queue.enqueue(draft(idempotency_key="k", document=document("v1") if about else None))
    Drainer(queue, Scripted(answered(b"ten")), permit).drain()
    (entry,) = queue.entries()
    return queue, entry.operation.operation_id


@pytest.mark.parametrize("about", [True, False])
def test_an_answer_is_applied_once(tmp_path: Path, *, about: bool) -> None:
    queue, name = answered_queue(tmp_path, Time(), about=about)
    notes = Notes()
    version = "v1" if about else None
    first = apply_answer(queue, name, notes, current_version=version)
    again = apply_answer(queue, name, notes, current_version=version)
    assert isinstance(first, Applied)
    assert isinstance(again, Applied)
    assert (first.again, again.again) == (False, True)
    assert first.entry.state is State.APPLIED
    assert notes.applied == [("k", b"ten")]
    assert queue.answer(name) is None
    assert len(queue.receipts()) == 1


@pytest.mark.parametrize("version", ["v2", None])
def test_a_document_that_changed_gets_nothing_and_the_answer_is_offered(
    tmp_path: Path, version: str | None
) -> None:
    queue, name = answered_queue(tmp_path, Time())
    notes = Notes()
    for _ in range(2):
        result = apply_answer(queue, name, notes, current_version=version)
        assert isinstance(result, Stale)
        assert (result.asked_version, result.current_version) == ("v1", version)
        assert result.answer == b"ten"
    # Not even when the document is as it was: what is stale was shown as such.
    assert isinstance(apply_answer(queue, name, notes, current_version="v1"), Stale)
    assert notes.applied == []
    assert "b'ten'" not in repr(result)
    assert queue.entry(name).state is State.STALE


def test_a_document_that_changes_while_the_answer_is_applied_is_stale(tmp_path: Path) -> None:
    queue, name = answered_queue(tmp_path, Time())
    notes = Notes()
    notes.version = "v2"  # after the version was looked up
    result = apply_answer(queue, name, notes, current_version="v1")
    assert isinstance(result, Stale)
    assert (result.answer, notes.applied) == (b"ten", [])


@pytest.mark.parametrize("crash", ["before", "after"])
def test_an_applier_that_fails_is_asked_what_it_did(tmp_path: Path, crash: str) -> None:
    queue, name = answered_queue(tmp_path, Time())
    notes = Notes()
    notes.crash = crash
    with pytest.raises(RuntimeError):
        apply_answer(queue, name, notes, current_version="v1")
    assert queue.entry(name).state is State.APPLYING
    notes.crash = ""
    result = apply_answer(queue, name, notes, current_version="v1")
    assert isinstance(result, Applied)
    assert result.again is (crash == "after")
    assert notes.applied == [("k", b"ten")]


def test_a_change_after_a_crash_before_the_effect_is_stale(tmp_path: Path) -> None:
    queue, name = answered_queue(tmp_path, Time())
    notes = Notes()
    notes.crash = "before"
    with pytest.raises(RuntimeError):
        apply_answer(queue, name, notes, current_version="v1")
    notes.crash, notes.version = "", "v2"
    assert isinstance(apply_answer(queue, name, notes, current_version="v2"), Stale)
    assert notes.applied == []


def test_where_nobody_can_tell_it_is_not_applied_again(tmp_path: Path) -> None:
    queue, name = answered_queue(tmp_path, Time())
    notes = Notes(can_tell=False)
    notes.crash = "after"
    with pytest.raises(RuntimeError):
        apply_answer(queue, name, notes, current_version="v1")
    notes.crash = ""
    for _ in range(2):
        result = apply_answer(queue, name, notes, current_version="v1")
        assert isinstance(result, NotApplied)
        assert "may have been applied" in result.reason
    assert notes.applied == [("k", b"ten")]
    assert queue.entry(name).code == "maybe-applied"
    assert queue.answer(name) == b"ten"
    assert queue.retry(name, accept_duplicate=True).reason.code == "not-retryable"


def test_two_do_not_apply_at_once(tmp_path: Path) -> None:
    time = Time()
    queue, name = answered_queue(tmp_path, time)
    inner: list[object] = []

    class Slow(Notes):
        def apply(self, operation: Operation, answer: bytes) -> bool:
            inner.append(apply_answer(queue, name, Notes(), current_version="v1"))
            return super().apply(operation, answer)

    slow = Slow()
    assert isinstance(apply_answer(queue, name, slow, current_version="v1"), Applied)
    (other,) = inner
    assert isinstance(other, NotApplied)
    assert "another process" in other.reason
    assert len(slow.applied) == 1


def test_what_has_no_answer_is_not_applied(tmp_path: Path) -> None:
    queue = queue_at(tmp_path, Time())
    queue.enqueue(draft(deduplicates=False))
    (entry,) = queue.entries()
    name = entry.operation.operation_id
    assert isinstance(apply_answer(queue, name, Notes()), NotApplied)
    Drainer(queue, Scripted(MaybeSent(link=LinkState.HALF_OPEN)), permit).drain()
    result = apply_answer(queue, name, Notes())
    assert isinstance(result, NotApplied)
    assert "may have happened" in result.reason
