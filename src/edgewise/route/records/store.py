"""Records of a home, in its state database: bounded in number and days, and really erased.

Invariants: after every commit there are no more records than the policy keeps, and none that is
over. Rows are named by chance and dated by the day, so that their order tells nothing. Where the
bound cuts through a day, what stays of it is a sample drawn by chance, and the day's count is kept:
the weights of what stays still add up to all that was drawn.
"""

from __future__ import annotations

import datetime as dt
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence

import msgspec

from edgewise.errors import InputError, IntegrityError
from edgewise.route.policy import RecordRule
from edgewise.route.records.record import RouteRecord
from edgewise.store.database import StateDatabase
from edgewise.store.home import Home

__all__ = ["Cleared", "RecordStore", "Recorded"]

_STEPS = (
    """CREATE TABLE route_records(
        id TEXT PRIMARY KEY,
        day TEXT NOT NULL,
        share REAL NOT NULL,
        until TEXT NOT NULL,
        body BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX route_records_by_day ON route_records(day, id);
    CREATE TABLE route_record_days(
        day TEXT NOT NULL,
        share REAL NOT NULL,
        drawn INTEGER NOT NULL,
        lost INTEGER NOT NULL,
        PRIMARY KEY(day, share)
    ) WITHOUT ROWID;""",
)


class Recorded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a home holds.

    Attributes:
        records: The records, oldest day first; each with its weight.
        lost: How many decisions of these days were drawn and could not be written.
    """

    records: tuple[RouteRecord, ...]
    lost: int


class Cleared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was erased.

    Attributes:
        records: How many records.
        log_emptied: Whether the database's write-ahead log was emptied too. While another process
            reads, it is not; the log then holds records until that process is done.
    """

    records: int
    log_emptied: bool


class RecordStore:
    """The records of one home. Making the object touches nothing.

    Every method raises what the state database raises: ``ResourceError`` (``database-locked``,
    ``database-not-writable``) and ``IntegrityError`` (``database-damaged``, ``database-newer``).

    Args:
        home: Whose records.
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
        self._database = StateDatabase(home, "route-records", _STEPS, busy_timeout_s=busy_timeout_s)
        self._clock = clock

    def today(self) -> dt.date:
        """Return the day in UTC."""
        return dt.datetime.fromtimestamp(self._clock(), dt.UTC).date()

    def add(self, records: Sequence[RouteRecord], rule: RecordRule, *, lost: int = 0) -> None:
        """Write records that were drawn, and remove what is over or too much.

        Args:
            records: What was drawn.
            rule: What the policy says now.
            lost: How many were drawn before and could not be written.
        """
        today = self.today()
        with self._database.writing() as connection:
            for record in records:
                made = dt.date.fromisoformat(record.day)
                connection.execute(
                    "INSERT INTO route_records VALUES(?, ?, ?, ?, ?)",
                    (
                        secrets.token_hex(12),
                        record.day,
                        rule.share,
                        (made + dt.timedelta(days=rule.days)).isoformat(),
                        msgspec.json.encode(record),
                    ),
                )
                _count(connection, record.day, rule.share, drawn=1, lost=0)
            if lost:
                _count(connection, today.isoformat(), rule.share, drawn=0, lost=lost)
            _prune(connection, today, rule)

    def read(self) -> Recorded:
        """Return the records; what is over is removed first.

        Raises:
            IntegrityError: a row is no record (``route-records-damaged``).
        """
        if not self._database.path.exists():
            return Recorded(records=(), lost=0)
        with self._database.writing() as connection:
            _prune(connection, self.today(), None)
            rows = connection.execute(
                """SELECT body, r.share AS share, drawn,
                    COUNT(*) OVER (PARTITION BY r.day, r.share) AS kept
                FROM route_records AS r JOIN route_record_days AS d
                    ON d.day = r.day AND d.share = r.share
                ORDER BY r.day, r.id"""
            ).fetchall()
            (lost,) = connection.execute(
                "SELECT COALESCE(SUM(lost), 0) FROM route_record_days"
            ).fetchone()
        return Recorded(records=tuple(_record(row) for row in rows), lost=lost)

    def clear(self) -> Cleared:
        """Erase all records; their bytes are overwritten in the database's file."""
        if not self._database.path.exists():
            return Cleared(records=0, log_emptied=True)
        with self._database.writing() as connection:
            gone = connection.execute("DELETE FROM route_records").rowcount
            connection.execute("DELETE FROM route_record_days")
        return Cleared(records=gone, log_emptied=self._database.empty_log())


def _count(
    connection: sqlite3.Connection, day: str, share: float, *, drawn: int, lost: int
) -> None:
    connection.execute(
        """INSERT INTO route_record_days VALUES(?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET drawn = drawn + excluded.drawn, lost = lost + excluded.lost""",
        (day, share, drawn, lost),
    )


def _prune(connection: sqlite3.Connection, today: dt.date, rule: RecordRule | None) -> None:
    connection.execute("DELETE FROM route_records WHERE until <= ?", (today.isoformat(),))
    if rule is not None:
        over = today - dt.timedelta(days=rule.days)
        connection.execute("DELETE FROM route_records WHERE day <= ?", (over.isoformat(),))
        (held,) = connection.execute("SELECT COUNT(*) FROM route_records").fetchone()
        if held > rule.keep:
            connection.execute(
                """DELETE FROM route_records WHERE id IN
                (SELECT id FROM route_records ORDER BY day, id LIMIT ?)""",
                (held - rule.keep,),
            )
    connection.execute(
        """DELETE FROM route_record_days WHERE day < ?
        AND day NOT IN (SELECT day FROM route_records)""",
        (today.isoformat(),),
    )


def _record(row: sqlite3.Row) -> RouteRecord:
    try:
        found = msgspec.json.decode(row["body"], type=RouteRecord)
        return msgspec.structs.replace(found, weight=row["drawn"] / row["kept"] / row["share"])
    except (msgspec.MsgspecError, ValueError, ArithmeticError, TypeError, InputError) as error:
        raise IntegrityError(
            "route-records-damaged",
            f"a record of a decision cannot be read: {error}",
            hint="`edgewise policy records clear` erases them all",
        ) from error
