"""Marks of signed policies: the newest revision of each name that this home has had in force.

A signature says who made a policy, and an older one of the same maker has it too. So a home keeps
how far it has come: an older revision is refused, and so is another policy with the same number.
Going back is a decision of its own, and leaves a row like every step forward. Rows are only ever
added; the last one of a name is its mark. It is no defence against somebody who can write the
database, who can take all of it away.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from enum import StrEnum

import msgspec

from edgewise.errors import IntegrityError
from edgewise.route.policy import Policy
from edgewise.store.database import StateDatabase
from edgewise.store.home import Home

__all__ = ["MarkEvent", "PolicyMark", "PolicyMarks", "refusal"]

_STEPS = (
    """
    CREATE TABLE policy_marks(
        seq INTEGER PRIMARY KEY,
        at_ms INTEGER NOT NULL,
        event TEXT NOT NULL CHECK(event IN ('seen', 'accepted')),
        name TEXT NOT NULL,
        revision INTEGER NOT NULL,
        digest TEXT NOT NULL,
        key TEXT NOT NULL
    );
    CREATE INDEX policy_marks_of_name ON policy_marks(name, seq);
    CREATE TRIGGER policy_marks_unchanged BEFORE UPDATE ON policy_marks BEGIN
        SELECT RAISE(ABORT, 'a mark is never changed');
    END;
    CREATE TRIGGER policy_marks_kept BEFORE DELETE ON policy_marks BEGIN
        SELECT RAISE(ABORT, 'a mark is never removed');
    END;
    """,
)


class MarkEvent(StrEnum):
    """How a mark came about.

    ``SEEN``: a newer revision was put in force. ``ACCEPTED``: somebody said that this one holds.
    """

    SEEN = "seen"
    ACCEPTED = "accepted"


class PolicyMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a home has come with the policies of a name.

    Attributes:
        seq: Its number among all marks of the home, from 1 on.
        at_ms: The device's clock then, milliseconds since 1970.
        event: How it came about.
        name: The policy's name.
        revision: Its revision.
        digest: Its digest, 64 hex digits.
        key: Name of the key that it was signed with.
    """

    seq: int
    at_ms: int
    event: MarkEvent
    name: str
    revision: int
    digest: str
    key: str

    @property
    def version(self) -> str:
        """Return the policy in short: its revision with the head of its digest."""
        return f"revision {self.revision} ({self.digest[:12]})"


class PolicyMarks:
    """The marks of one home. Making the object touches nothing.

    Every method raises what the state database raises, see
    :meth:`~edgewise.store.database.StateDatabase.writing`, and ``IntegrityError``
    (``policy-marks-damaged``) for a row that was never written here.

    Args:
        home: Whose marks.
        clock: Seconds since 1970.
        busy_timeout_s: How long another process's transaction is waited for, seconds.
    """

    def __init__(
        self,
        home: Home,
        *,
        clock: Callable[[], float] = time.time,
        busy_timeout_s: float = 10.0,
    ) -> None:
        self._database = StateDatabase(home, "policy", _STEPS, busy_timeout_s=busy_timeout_s)
        self._clock = clock

    def find(self, name: str) -> PolicyMark | None:
        """Return the mark of a name, ``None`` where there is none; no database is made for it."""
        if not self._has_database():
            return None
        with self._database.reading() as connection:
            return _mark(connection, name)

    def see(self, policy: Policy, key: str) -> PolicyMark:
        """Move the mark on to a signed policy where that is newer, and return where it stands.

        Args:
            policy: The policy that is to be in force.
            key: Name of the key that it is signed with.
        """
        found = self.find(policy.name)
        if found is not None and policy.revision <= found.revision:
            return found
        with self._database.writing() as connection:
            found = _mark(connection, policy.name)
            if found is not None and policy.revision <= found.revision:
                return found
            return self._add(connection, MarkEvent.SEEN, policy, key)

    def accept(self, policy: Policy, key: str) -> tuple[PolicyMark | None, PolicyMark]:
        """Set the mark to a signed policy, also back; return where it stood and where it stands.

        Nothing is written where it stands there already.
        """
        with self._database.writing() as connection:
            before = _mark(connection, policy.name)
            if before is not None and before.digest == policy.digest:
                return before, before
            return before, self._add(connection, MarkEvent.ACCEPTED, policy, key)

    def all(self) -> tuple[PolicyMark, ...]:
        """Return every mark there was, oldest first."""
        if not self._has_database():
            return ()
        with self._database.reading() as connection:
            return tuple(map(_typed, connection.execute("SELECT * FROM policy_marks ORDER BY seq")))

    def _has_database(self) -> bool:
        try:
            self._database.path.lstat()
        except FileNotFoundError:
            return False
        except OSError:
            return True  # opening it says why it cannot be read
        return True

    def _add(
        self, connection: sqlite3.Connection, event: MarkEvent, policy: Policy, key: str
    ) -> PolicyMark:
        (last,) = connection.execute("SELECT COALESCE(MAX(seq), 0) FROM policy_marks").fetchone()
        mark = PolicyMark(
            seq=last + 1,
            at_ms=int(self._clock() * 1000),
            event=event,
            name=policy.name,
            revision=policy.revision,
            digest=policy.digest,
            key=key,
        )
        connection.execute(
            "INSERT INTO policy_marks "
            "VALUES(:seq, :at_ms, :event, :name, :revision, :digest, :key)",
            {**msgspec.structs.asdict(mark), "event": str(event)},
        )
        return mark


def refusal(policy: Policy, mark: PolicyMark | None) -> IntegrityError | None:
    """Return why a signed policy may not be in force beside a mark, ``None`` where it may.

    The error is ``policy-older`` or, for another policy of the same revision,
    ``policy-revision-reused``.
    """
    if mark is None or policy.digest == mark.digest or policy.revision > mark.revision:
        return None
    context = {
        "name": policy.name,
        "revision": policy.revision,
        "sha256": policy.digest,
        "mark_revision": mark.revision,
        "mark_sha256": mark.digest,
    }
    this = f"revision {policy.revision} ({policy.digest[:12]}) of the policy {policy.name!r}"
    back = "if this one is meant, say so: edgewise policy accept FILE"
    if policy.revision < mark.revision:
        return IntegrityError(
            "policy-older",
            f"{this} is older than {mark.version}, which this home has had in force",
            context=context,
            hint=f"put the newer one back; {back}",
        )
    return IntegrityError(
        "policy-revision-reused",
        f"{this} is another policy than the one of that revision which this home has had in "
        f"force ({mark.digest[:12]})",
        context=context,
        hint=f"count the revision up and sign it again; {back}",
    )


def _mark(connection: sqlite3.Connection, name: str) -> PolicyMark | None:
    row = connection.execute(
        "SELECT * FROM policy_marks WHERE name = ? ORDER BY seq DESC LIMIT 1", (name,)
    ).fetchone()
    return None if row is None else _typed(row)


def _typed(row: sqlite3.Row) -> PolicyMark:
    try:
        return msgspec.convert(dict(row), PolicyMark)
    except msgspec.ValidationError as error:
        raise IntegrityError(
            "policy-marks-damaged",
            f"a mark of a policy in the home's database cannot be read: {error}",
            hint="put a backup of state.sqlite in its place, or move it away: consents are then "
            "asked for again, and any signed policy counts as new",
        ) from error
