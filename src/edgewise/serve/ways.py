"""Where a request is answered, by the policy where the server has one, and what is said of it.

Invariant: a request that names a doubted answer is asked elsewhere or declined; this device has
answered it already and does not do so again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgewise.core.outcome import Completed, Route
from edgewise.core.request import Request
from edgewise.core.signals import Escalation
from edgewise.errors import EdgewiseError
from edgewise.serve.about import VERIFICATION, Telling, verification
from edgewise.serve.bodies import Extension
from edgewise.serve.dispatch import Dispatcher
from edgewise.serve.elsewhere import Elsewhere
from edgewise.serve.judged import JudgedAnswers
from edgewise.serve.problems import answered
from edgewise.serve.streaming import Taking
from edgewise.serve.ticket import Ticket

__all__ = ["Way", "Ways"]

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Where a request is answered, and what its answer says of that.

    Attributes:
        taking: What takes the request.
        telling: How its answers are told.
        fingerprint: The deployment that answers; empty where that is not known.
        headers: Where the answer is made.
        judged: Whether it gets a verdict when it is complete.
        destination: Where it is asked, by its name in the policy; empty for here.
    """

    taking: Taking
    telling: Telling
    fingerprint: str
    headers: Headers
    judged: bool = False
    destination: str = ""

    @property
    def place(self) -> str:
        """Return where that is, for the log: ``local`` or ``cloud:NAME``."""
        return f"cloud:{self.destination}" if self.destination else "local"

    @property
    def stream_headers(self) -> Headers:
        """Return the headers of a stream: its verdict comes with its last event."""
        return [*self.headers, (VERIFICATION, "pending")] if self.judged else self.headers

    def headers_of(self, outcomes: Iterable[Completed]) -> Headers:
        """Return the headers of whole answers."""
        return [*self.headers, *verification(outcomes)]


class Ways:
    """Finds the way of each request; remembers what was made of the answers."""

    def __init__(self, here: Dispatcher, fingerprint: str, elsewhere: Elsewhere | None) -> None:
        self._here = here
        self._fingerprint = fingerprint
        self._elsewhere = elsewhere
        self._answers = JudgedAnswers()

    async def find(self, request: Request, client: str, extension: Extension) -> Way:
        """Return where a request is answered.

        Raises:
            ProblemError: the policy declines it; the user may have to agree first.
            InputError: it names a doubted answer that is not this client's to this request.
        """
        after: Escalation | None = None
        if extension.after is not None:
            after = self._answers.recall(extension.after, client, request)
        if self._elsewhere is None:
            return self.here(request, client, extension)
        decision = await self._elsewhere.decide(request, after)
        if decision.route is Route.LOCAL and after is None:
            return self.here(request, client, extension)
        if decision.route is not Route.CLOUD:
            answered(await self._elsewhere.decline(request, decision, client, after))
        return Way(
            taking=self._elsewhere if after is None else _Doubting(self._elsewhere, after),
            telling=Telling(),
            fingerprint="",
            destination=decision.destination,
            headers=[
                ("x-edgewise-route", "cloud"),
                ("x-edgewise-destination", decision.destination),
            ],
        )

    def here(self, request: Request, client: str, extension: Extension) -> Way:
        """Return the way of a request that this device answers."""
        judged = self._elsewhere is not None and self._elsewhere.judges(request)
        remember = {"remember": self._answers.note(request, client)} if judged else {}
        return Way(
            taking=self._here,
            telling=Telling(with_signals=extension.signals, **remember),
            fingerprint=self._fingerprint,
            headers=[("x-edgewise-route", "local"), ("x-edgewise-fingerprint", self._fingerprint)],
            judged=judged,
        )


@dataclass(frozen=True, slots=True)
class _Doubting:
    """Takes a request with the verdict about the answer of this device that is doubted."""

    elsewhere: Elsewhere
    after: Escalation

    def submit(self, request: Request, client: str, *, chunks: bool) -> Ticket:
        return self.elsewhere.submit(request, client, chunks=chunks, after=self.after)

    def cancel(self, ticket: Ticket, why: EdgewiseError) -> None:
        self.elsewhere.cancel(ticket, why)
