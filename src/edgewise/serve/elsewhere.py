"""Requests that are not answered here: asked at a destination, or declined with a question.

They take no lane: the engine answers others meanwhile. Each has a thread of its own that waits for
the destination, and there are only so many.

Invariants: every ticket ends, by an outcome or a typed error; a client that goes away ends what
was asked for it; nothing that somebody wrote is logged.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from edgewise.core.outcome import Declined, Event, Outcome, RouteDecision
from edgewise.core.signals import Escalation
from edgewise.errors import EdgewiseError, ResourceError
from edgewise.route.consent import ConsentLedger, ConsentPrompt
from edgewise.run.messages import Chunk
from edgewise.serve.consent_bodies import ConsentQuestion
from edgewise.serve.dispatch import stopping, too_slow, where_raised
from edgewise.serve.limits import Limits
from edgewise.serve.problems import CONSENT_REQUIRED
from edgewise.serve.questions import Question, Questions
from edgewise.serve.ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgewise.core.request import Request
    from edgewise.route.cloud import CancelToken

__all__ = ["ANSWER", "PAGE", "Elsewhere", "Feature", "Judging", "Routing"]

PAGE = "/edgewise/consent/"
ANSWER = "/edgewise/v1/consent/"
_RETRY_AFTER_S = 5


class Judging(Protocol):
    """What judges answers of this device; :class:`edgewise.workflow.judging.Judge` does."""

    def judges(self, request: Request) -> bool:
        """Return whether a request's answer gets a verdict."""
        ...

    def __call__(self, request: Request, ask: Callable[[Request], Outcome]) -> Outcome:
        """Return what ``ask`` makes of a request, with the verdict."""
        ...


class Feature(Protocol):
    """What routes and asks; :class:`edgewise.workflow.hybrid.Hybrid` has it. Any thread calls."""

    def decide(
        self, request: Request, *, after: Escalation | None = None, record: bool = False
    ) -> RouteDecision:
        """Return where a request is to be answered, which may be recorded; nothing runs.

        ``after`` is, here and below, what was made of the answer of this device that is doubted.
        """
        ...

    def send(
        self,
        request: Request,
        *,
        on_text: Callable[[str], None] | None = None,
        cancel: CancelToken | None = None,
        after: Escalation | None = None,
    ) -> Outcome:
        """Ask the destination that the route names; decline where it names none."""
        ...

    def question(
        self, request: Request, *, after: Escalation | None = None
    ) -> ConsentPrompt | None:
        """Return what to ask the user; ``None`` where consent would not help."""
        ...

    def declined(self, decision: RouteDecision) -> Declined:
        """Return the outcome of a decision by which nothing is asked elsewhere."""
        ...

    @property
    def judged(self) -> Judging:
        """Return what judges the answers of this device."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """A server's policy at work.

    Attributes:
        feature: Decides, and asks destinations.
        ledger: Where answers to questions are recorded; the one that the feature reads.
        policy: Name and head of the digest of the policy.
    """

    feature: Feature
    ledger: ConsentLedger
    policy: str = ""


class Elsewhere:
    """Takes, on the event loop, what no lane answers."""

    def __init__(
        self,
        feature: Feature,
        questions: Questions,
        limits: Limits,
        *,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._feature = feature
        self._questions = questions
        self._limits = limits
        self._log = log
        self._tickets: dict[Ticket, CancelToken] = {}
        self._stopping = False

    @property
    def running(self) -> int:
        """Return how many destinations are being asked."""
        return len(self._tickets)

    async def decide(self, request: Request, after: Escalation | None = None) -> RouteDecision:
        """Return where a request is to be answered."""
        return await asyncio.to_thread(self._feature.decide, request, after=after, record=True)

    def judges(self, request: Request) -> bool:
        """Return whether an answer of this device gets a verdict."""
        return self._feature.judged.judges(request)

    async def decline(
        self,
        request: Request,
        decision: RouteDecision,
        client: str,
        after: Escalation | None = None,
    ) -> Declined:
        """Return the outcome where nothing is asked elsewhere, with a question if there is one."""

        def work() -> Declined:
            outcome = self._asking(request, self._feature.declined(decision), client, after)
            assert isinstance(outcome, Declined)
            return outcome

        return await asyncio.to_thread(work)

    def submit(
        self, request: Request, client: str, *, chunks: bool, after: Escalation | None = None
    ) -> Ticket:
        """Return the ticket of a request for a destination; call it on the event loop.

        Raises:
            ResourceError: too many wait for destinations, or the server is stopping.
        """
        if self._stopping:
            raise stopping()
        own = sum(ticket.client == client for ticket in self._tickets)
        if own >= self._limits.elsewhere_per_client_max:
            raise _full("this client waits")
        if len(self._tickets) >= self._limits.elsewhere_max:
            raise _full("clients wait")
        from edgewise.route.cloud import CancelToken  # noqa: PLC0415 - only where something may leave

        loop = asyncio.get_running_loop()
        ticket, token = Ticket(request, client, loop, self._limits, chunks=chunks), CancelToken()
        self._tickets[ticket] = token
        ticket.on_end(lambda: self._tickets.pop(ticket, None))
        threading.Thread(
            target=self._work, args=(ticket, token, after), name="elsewhere", daemon=True
        ).start()
        return ticket

    def cancel(self, ticket: Ticket, why: EdgewiseError) -> None:
        """End a ticket; call it on the event loop."""
        if ticket.give_up(why) and (token := self._tickets.get(ticket)) is not None:
            token.cancel()

    def stop(self) -> None:
        """Take no more requests; running ones go on."""
        self._stopping = True

    def cancel_running(self) -> None:
        """End what is being asked; call it on the event loop."""
        for ticket in list(self._tickets):
            self.cancel(ticket, stopping())

    def _work(self, ticket: Ticket, token: CancelToken, after: Escalation | None) -> None:
        ticket.taken()
        on_text = functools.partial(self._hand_over, ticket, token) if ticket.chunks else None
        result: Outcome | EdgewiseError
        try:
            result = self._feature.send(ticket.request, on_text=on_text, cancel=token, after=after)
            result = self._asking(ticket.request, result, ticket.client, after)
        except EdgewiseError as error:
            result = error
        except Exception as error:  # noqa: BLE001 - one request's bug must not leave it without end
            self._log(f"internal error: {where_raised(error)}")
            result = EdgewiseError("internal-error", "the server has a bug that this request met")
        ticket.finish(result)

    def _asking(
        self, request: Request, outcome: Outcome, client: str, after: Escalation | None
    ) -> Outcome:
        """Return the outcome; one that lacks nothing but consent has an event with the question."""
        if not isinstance(outcome, Declined) or outcome.provenance.route.consent is None:
            return outcome
        prompt = self._feature.question(request, after=after)
        if prompt is None:
            return outcome
        asked = Event(
            code=CONSENT_REQUIRED,
            message="the user has to agree before this is sent",
            context=_told(self._questions.ask(prompt, client)),
        )
        return msgspec.structs.replace(outcome, events=(*outcome.events, asked))

    def _hand_over(self, ticket: Ticket, token: CancelToken, text: str) -> None:
        if not ticket.put(Chunk(text=text)) and ticket.give_up(too_slow(self._limits)):
            token.cancel()


def _told(question: Question) -> dict[str, Any]:
    """Return a question as an application is told it."""
    told = ConsentQuestion(
        id=question.id,
        expires_at=question.expires_at,
        page=f"{PAGE}{question.id}",
        answer=f"{ANSWER}{question.id}",
        **msgspec.structs.asdict(question.prompt),
    )
    found: dict[str, Any] = msgspec.to_builtins(told)
    return found


def _full(whose: str) -> ResourceError:
    return ResourceError(
        "queue-full",
        f"{whose} for as many answers of destinations as are asked at once",
        context={"retry_after_s": _RETRY_AFTER_S},
        hint="wait for answers before asking more",
        retryable=True,
    )
