"""What may be spent at a destination on a day, reserved before anything is sent.

The worst case is reserved in one transaction with the check against the limit, so that processes
that ask together cannot pass it together. What the server states afterwards takes the
reservation's place. A reservation that nobody settles, after a crash say, goes on counting: it is
the amount that may have been spent.

Amounts are whole millionths of the currency, rounded up. Estimated amounts (worst cases) and
those computed from what a server stated are kept apart; none of them is measured here.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import msgspec

from edgewise.core.quantity import Declared, Estimated
from edgewise.errors import IntegrityError
from edgewise.route.destinations import Destination, Price
from edgewise.store import Home
from edgewise.store.database import StateDatabase

__all__ = ["Reservation", "SpendLedger", "SpendRefused", "Spent"]

_MICRO = 1_000_000
_AMOUNT_MAX = 10**15  # millionths; what does not fit is refused or counted as this much
_STEPS = (
    """CREATE TABLE spend(
        id TEXT PRIMARY KEY,
        destination TEXT NOT NULL,
        currency TEXT NOT NULL,
        day TEXT NOT NULL,
        state TEXT NOT NULL CHECK(state IN ('reserved', 'settled', 'released')),
        reserved_micro INTEGER NOT NULL CHECK(reserved_micro >= 0),
        stated_micro INTEGER NOT NULL DEFAULT 0 CHECK(stated_micro >= 0)
    );
    CREATE INDEX spend_by_day ON spend(destination, currency, day);""",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Room that was taken for one request.

    Attributes:
        id: Its row.
        price: The price it was computed at.
        amount: The worst case, in units of the currency.
    """

    id: str
    price: Price
    amount: Estimated


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendRefused:
    """No room is left.

    Attributes:
        needed: The worst case, in units of the currency.
        left: What is left of the day's limit.
        day: The day in UTC, as ``2026-11-30``.
    """

    needed: Estimated
    left: Estimated
    day: str


class Spent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts against a destination's limit on a day, in units of its currency.

    Attributes:
        day: The day in UTC.
        currency: The currency.
        stated: From the tokens that the server stated, at the declared price.
        reserved: Worst cases of requests of which nobody knows what they cost.
        limit: The day's limit, as declared.
    """

    day: str
    currency: str
    stated: Declared
    reserved: Estimated
    limit: Declared


class SpendLedger:
    """Spending of a home, shared by its processes.

    Args:
        home: Whose database.
        today: The day in UTC.
        busy_timeout_s: How long another process's transaction is waited for, seconds.
    """

    def __init__(
        self,
        home: Home,
        *,
        today: Callable[[], dt.date] | None = None,
        busy_timeout_s: float = 10.0,
    ) -> None:
        self._database = StateDatabase(home, "spend", _STEPS, busy_timeout_s=busy_timeout_s)
        self._today = today or _today

    def reserve(
        self, destination: Destination, price: Price, *, prompt_tokens: int, completion_tokens: int
    ) -> Reservation | SpendRefused:
        """Take room for a worst case, or say that there is none.

        A day counts from its beginning in UTC. Where the clock has gone back, what was spent on
        later days counts as well, so that no limit is there twice.

        Args:
            destination: Where it would be spent.
            price: Its price and limit.
            prompt_tokens: Most tokens that the request can have.
            completion_tokens: Most tokens that the answer can have.

        Raises:
            ResourceError: the database cannot be written (see :class:`StateDatabase`).
            IntegrityError: it is damaged. Nothing is reserved, and nothing may be sent.
        """
        needed = _cost(price, prompt_tokens, completion_tokens)
        day = self._today().isoformat()
        with self._database.writing() as connection:
            (taken,) = connection.execute(
                """SELECT COALESCE(SUM(CASE state WHEN 'settled' THEN stated_micro
                    WHEN 'reserved' THEN reserved_micro ELSE 0 END), 0)
                FROM spend WHERE destination = ? AND currency = ? AND day >= ?""",
                (destination.name, price.currency, day),
            ).fetchone()
            left = _limit(price) - taken
            if needed > left or needed > _AMOUNT_MAX:
                return SpendRefused(needed=_worst(needed), left=_rest(max(0, left)), day=day)
            made = Reservation(id=secrets.token_hex(16), price=price, amount=_worst(needed))
            connection.execute(
                "INSERT INTO spend VALUES(?, ?, ?, ?, 'reserved', ?, 0)",
                (made.id, destination.name, price.currency, day, needed),
            )
        return made

    def settle(
        self, reservation: Reservation, *, prompt_tokens: int, completion_tokens: int
    ) -> Declared:
        """Put what the server stated in the place of a worst case, and return what it comes to.

        Raises:
            IntegrityError: the reservation was settled before (``spend-settled``), or the database
                is damaged.
            ResourceError: the database cannot be written. The worst case goes on counting.
        """
        stated = min(_cost(reservation.price, prompt_tokens, completion_tokens), _AMOUNT_MAX)
        self._close(reservation, "settled", stated)
        return _stated(stated)

    def release(self, reservation: Reservation) -> None:
        """Give room back that was not used: the server did nothing.

        Raises:
            IntegrityError: see :meth:`settle`.
            ResourceError: see :meth:`settle`.
        """
        self._close(reservation, "released", 0)

    def spent(self, destination: Destination, price: Price) -> Spent:
        """Return what counts against a destination's limit today.

        Raises:
            IntegrityError: the database is damaged.
            ResourceError: it cannot be read.
        """
        day = self._today().isoformat()
        with self._database.reading() as connection:
            rows = connection.execute(
                """SELECT state, SUM(reserved_micro) AS reserved, SUM(stated_micro) AS stated
                FROM spend WHERE destination = ? AND currency = ? AND day >= ? GROUP BY state""",
                (destination.name, price.currency, day),
            ).fetchall()
        by_state = {row["state"]: row for row in rows}
        stated = by_state["settled"]["stated"] if "settled" in by_state else 0
        reserved = by_state["reserved"]["reserved"] if "reserved" in by_state else 0
        return Spent(
            day=day,
            currency=price.currency,
            stated=_stated(stated),
            reserved=_worst(reserved),
            limit=Declared(value=price.daily_limit, source="daily_limit in the policy"),
        )

    def _close(self, reservation: Reservation, state: str, stated: int) -> None:
        with self._database.writing() as connection:
            changed = connection.execute(
                "UPDATE spend SET state = ?, stated_micro = ? WHERE id = ? AND state = 'reserved'",
                (state, stated, reservation.id),
            ).rowcount
        if changed != 1:
            raise IntegrityError(
                "spend-settled",
                "this reservation is not open: it was settled before, or its home was erased",
                context={"reservation": reservation.id},
            )


def _today() -> dt.date:
    return dt.datetime.now(tz=dt.UTC).date()


def _cost(price: Price, prompt_tokens: int, completion_tokens: int) -> int:
    """Return a cost in millionths: a price for a million tokens is one in millionths for one."""
    # By its shortest decimal form: a price of 0.15 is meant as 15/100 and not as the double.
    exact = prompt_tokens * Fraction(str(price.input_per_million))
    exact += completion_tokens * Fraction(str(price.output_per_million))
    return ceil(exact)


def _limit(price: Price) -> int:
    return int(Fraction(str(price.daily_limit)) * _MICRO)


def _worst(micro: int) -> Estimated:
    return Estimated(value=micro / _MICRO, source="most tokens at the declared price")


def _rest(micro: int) -> Estimated:
    return Estimated(value=micro / _MICRO, source="the day's limit less what counts against it")


def _stated(micro: int) -> Declared:
    return Declared(value=micro / _MICRO, source="the server's usage at the declared price")
