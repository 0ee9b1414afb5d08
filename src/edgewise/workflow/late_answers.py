"""Answers of the offline queue that came late: read, restored, and put into a file.

An answer reaches a file only while the document is the one it was asked about. No file is written
over but that very document, and whether an answer was applied can be told after a crash.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgewise.core.outcome import Event, FinishReason
from edgewise.core.request import Request
from edgewise.core.tools import ToolCall
from edgewise.errors import EdgewiseError, InputError, IntegrityError, ResourceError
from edgewise.route.cloud import CloudAnswer
from edgewise.route.minimise.forms import places
from edgewise.route.offline import (
    Applied,
    DocumentVersion,
    Entry,
    OfflineQueue,
    Operation,
    Stale,
    State,
    apply_answer,
)
from edgewise.route.outgoing import Outgoing, prepare
from edgewise.route.policy import Policy
from edgewise.store.scratch import sync, sync_folder
from edgewise.workflow.documents import document_version, taken

if TYPE_CHECKING:
    from edgewise.route.minimise import Detector

__all__ = [
    "FileApplied",
    "FileApplier",
    "LateAnswer",
    "apply_to_files",
    "read_late_answer",
]


class LateAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer that was stored.

    Attributes:
        text: What the model said; its placeholders restored where that was possible.
        finish: Why it ended; ``length`` is an answer that was cut.
        tool_calls: Calls it made.
        model: The model that the server says answered.
        restored: Whether placeholders could be restored.
        events: What happened on the way. ``placeholders-kept`` says that the text has some.
    """

    text: str
    finish: FinishReason
    tool_calls: tuple[ToolCall, ...] = ()
    model: str = ""
    restored: bool = False
    events: tuple[Event, ...] = ()


def read_late_answer(
    operation: Operation,
    answer: bytes,
    *,
    policy: Policy | None = None,
    request: Request | None = None,
    detectors: tuple[Detector, ...] = (),
) -> LateAnswer:
    """Return a stored answer, with its placeholders restored where that can be done rightly.

    What a placeholder stands for was never written down. Who makes the same request again (the
    note is still there, and its question) gets the same placeholders again. The digest of what
    was sent shows that it is the same but for what was replaced, and no more: whether it is about
    the same people, the document's version says.

    Args:
        operation: The operation.
        answer: The stored bytes.
        policy: The policy, to minimise the request by.
        request: The request as it was made; ``None`` where it cannot be made again.
        detectors: Those that it was minimised with.

    Raises:
        IntegrityError: it is no answer of the cloud client (``answer-unreadable``).
    """
    try:
        told = msgspec.json.decode(answer, type=CloudAnswer)
    except (msgspec.MsgspecError, RecursionError):
        raise IntegrityError(
            "answer-unreadable",
            f"the stored answer of {operation.operation_id} is none of the cloud client's",
            context={"operation": operation.operation_id},
            hint="look at it with `edgewise queue show OPERATION --answer`",
        ) from None
    again = _prepared(operation, policy, request, detectors)
    if again is None:
        texts = (told.text, *(call.arguments for call in told.tool_calls))
        events = (_kept(),) if any(next(iter(places(text)), None) for text in texts) else ()
        return LateAnswer(
            text=told.text,
            finish=told.finish,
            tool_calls=told.tool_calls,
            model=told.model,
            events=(*told.events, *events),
        )
    restorer = again.restorer()
    text = restorer.feed(told.text) + restorer.flush()
    calls, happened = again.restored_calls(told.tool_calls)
    return LateAnswer(
        text=text,
        finish=told.finish,
        tool_calls=calls,
        model=told.model,
        restored=True,
        events=(*told.events, *restorer.events, *happened),
    )


def _prepared(
    operation: Operation,
    policy: Policy | None,
    request: Request | None,
    detectors: tuple[Detector, ...],
) -> Outgoing | None:
    """Return a request that was made again, if it is the same."""
    if policy is None or request is None or operation.destination not in policy.places:
        return None
    try:
        again = prepare(policy, request, operation.destination, detectors)
        digest = again.payload.digest
    except EdgewiseError:
        return None
    return again if digest == operation.payload_sha256 else None


class FileApplier:
    """Puts an answer's text into a file; see :class:`edgewise.route.offline.Applier`.

    The text is written beside the target first, under a name of the operation's own, and linked
    from there. That name stays until the queue has noted that the answer was applied: as long as
    both names are one file, it was.

    Between the last look at the document and the change of the name there is an instant in which
    another program may write to it; no file system has a lock that every editor heeds.

    Args:
        target: Where the answer goes: a file that is not there, or the document itself.
        document: The file whose version is compared; ``None`` where there is none.
    """

    def __init__(self, target: Path, document: Path | None) -> None:
        self._target = target
        self._document = document

    @classmethod
    def of(cls, operation: Operation) -> FileApplier:
        """Return the applier of an operation that was queued for a file."""
        asked = operation.document
        assert operation.apply_to is not None
        return cls(Path(operation.apply_to), None if asked is None else Path(asked.document_id))

    def version(self) -> str | None:
        """Return the document's version now; ``None`` when it is gone."""
        return None if self._document is None else document_version(self._document)

    def apply(self, operation: Operation, answer: bytes) -> bool:
        """Write the text, unless the document is another by now.

        Raises:
            InputError: another file is there already (``apply-target-exists``).
            ResourceError: it cannot be written (``answer-not-written``). Neither changed anything.
        """
        own = self._own(operation)
        self.forget(operation)  # what a process that was killed left of it
        if not self._fits(operation.document):
            return False
        text = read_late_answer(operation, answer).text
        try:
            self._write(own, text)
            fits = self._fits(operation.document)
            placed = fits and self._put(own)
        except InputError:  # the document cannot be read any more
            self.forget(operation)
            raise
        except OSError as error:
            self.forget(operation)
            raise ResourceError(
                "answer-not-written",
                f"the answer cannot be written to {self._target}: {error.strerror or error}",
                context={"path": str(self._target)},
                hint="make room and check the folder; its file system must have hard links",
            ) from error
        if not placed:
            self.forget(operation)
        if fits and not placed:
            raise taken(self._target)
        return placed

    def was_applied(self, operation: Operation) -> bool:
        """Return whether the target is the very file that was written for this operation."""
        try:
            return self._own(operation).samefile(self._target)
        except OSError:
            return False

    def forget(self, operation: Operation) -> None:
        """Remove the names beside the target. Afterwards nobody can tell any more."""
        own = self._own(operation)
        for name in (own, _second(own)):
            with contextlib.suppress(OSError):
                name.unlink()

    def _own(self, operation: Operation) -> Path:
        return self._target.parent / f".edgewise-{operation.operation_id}"

    def _fits(self, asked: DocumentVersion | None) -> bool:
        return asked is None or self.version() == asked.version

    def _write(self, own: Path, text: str) -> None:
        with own.open("xb") as stream:
            if self._target == self._document:
                own.chmod(self._document.stat().st_mode & 0o7777)
            stream.write(text.encode("utf-8"))
            sync(stream)

    def _put(self, own: Path) -> bool:
        """Give the file its place; ``False`` where another one has it."""
        if self._target == self._document:
            second = _second(own)
            os.link(own, second)
            second.replace(self._target)
        else:
            try:
                os.link(own, self._target)
            except FileExistsError:
                return False
        sync_folder(self._target.parent)
        return True


class FileApplied(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of an answer that was meant for a file.

    Attributes:
        entry: The operation, as it stands now.
        result: ``applied``, ``stale``, ``kept`` or ``failed``. An answer that was not applied is
            stored as before, and offered.
        reason: Why it was not applied.
        events: What is to be known of the text that was written.
    """

    entry: Entry
    result: str
    reason: str = ""
    events: tuple[Event, ...] = ()


def apply_to_files(queue: OfflineQueue) -> tuple[FileApplied, ...]:
    """Put every answer that is there and was meant for a file into it, or say why not.

    Raises:
        ResourceError, IntegrityError: the state database cannot be read or written.
    """
    for entry in queue.entries({State.APPLIED}):
        if entry.operation.apply_to is not None:  # one that was killed before it tidied up
            FileApplier.of(entry.operation).forget(entry.operation)
    found = queue.entries({State.ANSWERED, State.APPLYING})
    return tuple(_applied(queue, one) for one in found if one.operation.apply_to is not None)


def _applied(queue: OfflineQueue, entry: Entry) -> FileApplied:
    operation = entry.operation
    applier = FileApplier.of(operation)
    try:
        late = read_late_answer(operation, queue.answer(operation.operation_id) or b"")
        if late.finish is not FinishReason.STOP:
            reason = f"it ended with {late.finish}, so it is no whole text; it is kept and offered"
            return FileApplied(entry=entry, result="kept", reason=reason, events=late.events)
        done = apply_answer(
            queue, operation.operation_id, applier, current_version=applier.version()
        )
    except (InputError, ResourceError, IntegrityError) as error:
        if error.code.startswith("database-"):
            raise
        now = queue.entry(operation.operation_id)
        return FileApplied(entry=now, result="failed", reason=f"{error.code}: {error.message}")
    if isinstance(done, Applied):
        applier.forget(operation)  # the queue has noted it
        return FileApplied(entry=done.entry, result="applied", events=late.events)
    if isinstance(done, Stale):
        return FileApplied(entry=done.entry, result="stale", reason=done.entry.reason)
    return FileApplied(entry=done.entry, result="kept", reason=done.reason)


def _second(own: Path) -> Path:
    return own.with_name(f"{own.name}.new")


def _kept() -> Event:
    return Event(
        code="placeholders-kept",
        message="the answer has placeholders, and what they stand for was kept nowhere; "
        "the same request, made again, restores them",
    )
