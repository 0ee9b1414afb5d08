"""What the tests of consent share: a clock that is set by hand, scopes, and processes that die."""

from __future__ import annotations

import datetime as dt
import os
import signal
import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from edgewise.route.consent import ConsentLedger, ConsentScope
from edgewise.route.destinations import Basis, Terms
from edgewise.store import Home

START = dt.datetime(2026, 12, 1, 9, 0, tzinfo=dt.UTC)
HOUR, DAY, YEAR = 3600.0, 86400.0, 365 * 86400.0

SCOPE = ConsentScope(
    feature="letters", data_class="personal", destination="acme", purpose="Answer a letter"
)


def terms_of(scope: ConsentScope = SCOPE, **changed: Any) -> Terms:
    """Return what the user is told of a scope's destination."""
    terms = Terms(
        name=scope.destination,
        url="https://api.acme.example/v1",
        model="large",
        purpose=scope.purpose,
        region="EU",
        retention_days=30,
        basis=Basis.CONSENT,
    )
    return msgspec.structs.replace(terms, **changed)


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.seconds = START.timestamp()

    def __call__(self) -> float:
        return self.seconds

    def after(self, seconds: float) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.seconds, dt.UTC) + dt.timedelta(seconds=seconds)


def ledger(root: Path, clock: Callable[[], float] | None = None, **options: Any) -> ConsentLedger:
    return ConsentLedger(Home(root), clock=clock or Clock(), **options)


def database(root: Path) -> Path:
    return root / "state.sqlite"


def sql(root: Path, *statements: str) -> None:
    """Do to the database what no ledger does."""
    connection = sqlite3.connect(database(root))
    try:
        with connection:
            for statement in statements:
                connection.execute(statement)
    finally:
        connection.close()


def events(root: Path) -> list[str]:
    """Return the events of the audit, as they lie in the file."""
    connection = sqlite3.connect(database(root))
    try:
        return [e for (e,) in connection.execute("SELECT event FROM consent_audit ORDER BY seq")]
    finally:
        connection.close()


def fork(work: Callable[[], int]) -> int:
    """Do the work in a process of its own, which ends with what it returns; return its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests do no harm
        child = os.fork()
    if child == 0:
        status = 99
        try:
            status = work()
        finally:
            os._exit(status)
    return child


def ended(child: int) -> int:
    """Wait for a process; return how it ended, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die() -> NoReturn:
    """End this process as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def dying_connect(point: int, told: Callable[[str], None]) -> Callable[..., sqlite3.Connection]:
    """Return a ``sqlite3.connect`` whose process dies before or after its n-th statement."""
    real, passed = sqlite3.connect, iter(range(1_000_000))

    def step(where: str) -> None:
        if next(passed) == point:
            told(where)
            die()

    class Dying(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
            step(f"before {statement}")
            done = super().execute(statement, *parameters)
            step(f"after {statement}")
            return done

        def commit(self) -> None:
            step("before commit")
            super().commit()
            step("after commit")

    return lambda *arguments, **options: real(*arguments, factory=Dying, **options)
