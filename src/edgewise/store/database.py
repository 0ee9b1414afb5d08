"""The state database of a home: consents, the queue, receipts, activations (SQLite, WAL).

Each component keeps tables of its own and brings its own schema, as a list of steps that are
applied in order and never changed afterwards. Every commit is on disk before it returns
(``synchronous=FULL``): what was promised holds after a power cut. A database that cannot be read
or written is a typed error and never an empty one; nobody may take "cannot tell" for "yes".
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence

from edgewise.errors import EdgewiseError, IntegrityError, ResourceError
from edgewise.store.home import Home

__all__ = ["STATE_DATABASE", "StateDatabase"]

STATE_DATABASE = "state.sqlite"
_BUSY_TIMEOUT_S = 10.0
_RETRY_S = 0.01


class StateDatabase:
    """One component's view of the state database.

    A connection is opened for each transaction and closed after it: it may be used from any
    thread and any process, and survives a fork.

    Args:
        home: Whose database.
        component: Name under which the schema's version is kept.
        steps: SQL scripts that make the schema; the first ``n`` have been applied at version n.
        busy_timeout_s: How long another process's transaction is waited for, seconds.
    """

    def __init__(
        self,
        home: Home,
        component: str,
        steps: Sequence[str],
        *,
        busy_timeout_s: float = _BUSY_TIMEOUT_S,
    ) -> None:
        self.path = home.root / STATE_DATABASE
        self._component = component
        self._steps = tuple(steps)
        self._timeout_s = busy_timeout_s
        self._ready = False

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that is committed at the end, or leaves nothing behind.

        It holds the database's one write lock from its beginning (``BEGIN IMMEDIATE``): what is
        read in it cannot be changed by another process before it is committed.

        Raises:
            ResourceError: another process holds it for too long (``database-locked``), the disk is
                full, or it may not be written.
            IntegrityError: it is damaged (``database-damaged``) or was written by a newer version
                (``database-newer``).
        """
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that sees one state of the database and changes nothing.

        Raises:
            ResourceError: see :meth:`writing`.
            IntegrityError: see :meth:`writing`.
        """
        with self._transaction("BEGIN") as connection:
            yield connection

    def empty_log(self) -> bool:
        """Empty the write-ahead log, and return whether that could be done.

        It holds what was overwritten in the database until then. While another process reads, it
        cannot be emptied.
        """
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=1.0)) as one:
                busy, *_ = one.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error:
            return False
        return not busy

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._typed_errors(), contextlib.closing(self._connect()) as connection:
            if not self._ready:
                self._migrate(connection)
                self._ready = True
            connection.execute(begin)
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def _connect(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Its owner's only, from the first byte on; SQLite gives its side files the same mode.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise self._unwritable(error) from error
        connection = sqlite3.connect(self.path, timeout=self._timeout_s, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            self._use_log(connection)
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute("PRAGMA secure_delete=ON")
            connection.execute("PRAGMA trusted_schema=OFF")
        except BaseException:
            connection.close()
            raise
        return connection

    def _use_log(self, connection: sqlite3.Connection) -> None:
        """Switch to the write-ahead log; when several processes begin, SQLite itself won't wait."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY_S)
            else:
                return

    def _migrate(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schemas(component TEXT PRIMARY KEY, version INTEGER)"
            )
            row = connection.execute(
                "SELECT version FROM schemas WHERE component = ?", (self._component,)
            ).fetchone()
            version = 0 if row is None else self._known(row["version"])
            for step in self._steps[version:]:
                for statement in _statements(step):
                    connection.execute(statement)
            connection.execute(
                "INSERT OR REPLACE INTO schemas VALUES(?, ?)", (self._component, len(self._steps))
            )
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    def _known(self, version: object) -> int:
        # SQLite keeps a text, a float or nothing in a column of integers.
        if not isinstance(version, int) or version < 0:
            raise self._damaged(f"the version of its {self._component} data is no number")
        if version > len(self._steps):
            raise IntegrityError(
                "database-newer",
                f"{self.path} holds {self._component} data of version {version}, which this "
                "version does not know",
                context={"path": str(self.path), "component": self._component, "version": version},
                hint="update Edgewise, or use another home",
            )
        return version

    @contextlib.contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._typed(error) from error
        except UnicodeDecodeError as error:  # a name in the schema, within SQLite's own message
            raise self._damaged(f"it holds text that is no UTF-8: {error.reason}") from error

    def _unwritable(self, error: OSError | sqlite3.Error) -> ResourceError:
        return ResourceError(
            "database-not-writable",
            f"the state database {self.path} cannot be written: {error}",
            context={"path": str(self.path), "error": str(error)},
            hint="free some space, or make the home's folder writable",
        )

    def _typed(self, error: sqlite3.Error) -> EdgewiseError:
        # The low byte is the primary code; the rest says more about the place.
        code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return ResourceError(
                "database-locked",
                f"another process has held the state database for {self._timeout_s:g} seconds",
                context={"path": str(self.path), "sqlite": str(error)},
                hint="end the process that holds it, then try again",
                retryable=True,
            )
        if code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY,
                    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}:  # fmt: skip
            return self._unwritable(error)
        return self._damaged(str(error))

    def _damaged(self, why: str) -> IntegrityError:
        return IntegrityError(
            "database-damaged",
            f"the state database {self.path} cannot be read: {why}",
            context={"path": str(self.path), "sqlite": why},
            hint="put a backup in its place, or move it away: consents are then asked for again",
        )


def _statements(script: str) -> Iterator[str]:
    """Split a script at its semicolons; a trigger's body, with its own, stays whole."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending
