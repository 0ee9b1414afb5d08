"""The cloud client: the only code on the path of a request that opens a connection.

Invariants: nothing touches a name or a socket before a permit was redeemed for the very bytes that
are sent; the key can be read before, so that a consent is not used up in vain. What the worst case
costs is reserved before they are sent. An answer that has begun is never asked for again. Whatever
happens comes back as a value, and no value, message or log holds a word of the request, the key or
a header.
"""

from __future__ import annotations

import importlib.util
import re
import time
import uuid
from collections.abc import Callable

from edgewise.core.outcome import Event
from edgewise.core.quantity import Declared, Estimated, Measured, Quantity, Unknown
from edgewise.errors import EdgewiseError, InputError
from edgewise.route.cloud import faults
from edgewise.route.cloud.answers import (
    CloudAnswer,
    CloudFailure,
    CloudTimings,
    CloudUsage,
)
from edgewise.route.cloud.attempt import Ask, attempt, load, passage_for
from edgewise.route.cloud.cancel import CancelToken
from edgewise.route.cloud.faults import Fault, FaultError
from edgewise.route.cloud.means import Means, read_means
from edgewise.route.cloud.payload import CloudPayload
from edgewise.route.cloud.retry import backoff_s, may_repeat
from edgewise.route.cloud.secrets import Secrets, extra_missing
from edgewise.route.cloud.spend import Reservation, SpendLedger, SpendRefused
from edgewise.route.cloud.waiting import Span
from edgewise.route.destinations import Destination
from edgewise.route.permits import CloudPermit, PermitGate

__all__ = ["DEADLINE_S", "TEMPLATE_TOKENS", "CloudClient", "require_sound"]

DEADLINE_S = 600.0
# For what a server's template adds by itself, such as a date or how tools are called. It is an
# allowance that was chosen, and no bound that was proved.
TEMPLATE_TOKENS = 1000
_DEADLINE_MAX_S = 86_400.0
_KEY = re.compile(r"[A-Za-z0-9_-]{1,255}")
_MODEL = re.compile(r"[\w./:@+-]{1,256}", re.ASCII)


class CloudClient:
    """Asks destinations, for permits.

    Args:
        gate: Redeems permits; it cannot mint them.
        spend: The ledger of costs.
        secrets: Where keys are read.

    Raises:
        UnsupportedError: the extra ``cloud`` is not installed (``cloud-extra-missing``).
    """

    def __init__(self, gate: PermitGate, *, spend: SpendLedger, secrets: Secrets) -> None:
        for library in ("openai", "httpx", "h11"):
            if importlib.util.find_spec(library) is None:
                raise extra_missing(library)
        self._gate = gate
        self._spend = spend
        self._secrets = secrets

    def means(
        self,
        destination: Destination,
        *,
        cancel: CancelToken | None = None,
        deadline_s: float | None = None,
    ) -> Means:
        """Return what a destination is asked with, for before consent is used up.

        The libraries are loaded first, outside the deadline; then the key is read, which may wait
        for the user to unlock the keyring. Nothing is sent or looked up.

        Args:
            destination: Who is to be asked.
            cancel: Ends the wait from another thread.
            deadline_s: For the wait, seconds; :data:`DEADLINE_S` by default.

        Raises:
            UnsupportedError: a library is missing (``cloud-extra-missing``).
            EdgewiseError: there is no key, the proxy cannot be used, or the certificates cannot be
                read, each with the code that :meth:`ask` would end with.
        """
        load()
        with Span(deadline_s or DEADLINE_S, cancel or CancelToken()) as span:
            try:
                return read_means(destination, self._secrets, span)
            except FaultError as error:
                raise error.fault.error from None

    def ask(
        self,
        permit: CloudPermit,
        destination: Destination,
        payload: CloudPayload,
        *,
        on_text: Callable[[str], None] = lambda _text: None,
        cancel: CancelToken | None = None,
        deadline_s: float | None = None,
        idempotency_key: str | None = None,
        repeat: bool = True,
        means: Means | None = None,
    ) -> CloudAnswer | CloudFailure:
        """Send one payload to one destination and return what came of it.

        Args:
            permit: For this destination and these bytes; it is used up.
            destination: Who is asked.
            payload: What is sent.
            on_text: Called with each piece of text as it comes, in this thread. What it raises
                ends the ask and is raised.
            cancel: Ends the ask from another thread, at once.
            deadline_s: For everything together, seconds; :data:`DEADLINE_S` by default.
            idempotency_key: Sent where the destination honours it; a new one by default. Give the
                same again for an ask that may have been carried out before.
            repeat: Whether the client may send the request again by itself, as often as the
                destination says. The offline queue counts its attempts and repeats them itself.
            means: What :meth:`means` returned for this destination; read now by default.

        Raises:
            UnsupportedError: a library is missing (``cloud-extra-missing``).
            InputError: an argument is none that can be used (``cloud-ask-invalid``); the permit is
                as it was.
            IntegrityError: the permit does not allow this (``permit-refused``), or the ledger of
                costs is damaged. Nothing was sent.
            ResourceError: the ledger cannot be written. Nothing was sent.
        """
        body = payload.body
        require_sound(destination, payload, deadline_s, idempotency_key)
        if means is not None and means.destination != destination:
            raise _ask_invalid(destination, f"its means are those of {means.destination.name}")
        load()  # not within the deadline
        self._gate.redeem(permit, destination, body)
        key = (idempotency_key or uuid.uuid4().hex) if destination.idempotent else None
        with Span(deadline_s or DEADLINE_S, cancel or CancelToken()) as span:
            ask = Ask(
                permit=permit,
                destination=destination,
                payload=payload,
                body=body,
                on_text=on_text,
                span=span,
                key=key,
                retries=destination.retries if repeat and key is not None else 0,
            )
            try:
                self._reserve(ask)
                self._run(ask, means)
                return self._answered(ask)
            except FaultError as error:
                return self._failed(ask, error.fault)

    def _reserve(self, ask: Ask) -> None:
        ask.span.check()
        price = ask.destination.price
        if price is None:
            return
        # A token stands for at least one byte, and what a template adds to a message is shorter
        # than the message's frame in JSON. What it adds by itself has an allowance.
        found = self._spend.reserve(
            ask.destination,
            price,
            prompt_tokens=len(ask.body) + TEMPLATE_TOKENS,
            completion_tokens=ask.payload.max_tokens,
        )
        if isinstance(found, SpendRefused):
            unit = price.currency
            raise FaultError(
                faults.over_limit(
                    ask.destination.name,
                    needed=f"{found.needed.number:.6f} {unit}",
                    left=f"{found.left.number:.6f} {unit}",
                    day=found.day,
                )
            )
        ask.reservation = found

    def _run(self, ask: Ask, means: Means | None) -> None:
        """Try until there is an answer, or a fault that no further attempt may mend."""
        means = means or read_means(ask.destination, self._secrets, ask.span)
        most = 1 + ask.retries
        while True:
            ask.span.check()
            ask.passage = passage = passage_for(ask, means)
            ask.attempts += 1
            try:
                attempt(ask, passage)
            except FaultError as error:
                fault = error.fault
                ask.acted |= passage.sent and not fault.refused
                begun = passage.head is not None and passage.head.status < 300
                if ask.attempts >= most or not may_repeat(fault, answered=begun):
                    raise
                wait_s = backoff_s(ask.attempts, fault.retry_after_s)
                if wait_s >= ask.span.left_s:
                    raise
                ask.events.append(_repeated(fault, ask.attempts, wait_s))
                ask.span.sleep(wait_s)
            else:
                ask.acted = True
                return

    def _answered(self, ask: Ask) -> CloudAnswer:
        said, passage = ask.said, ask.passage
        calls = said.calls({tool.name for tool in ask.payload.tools})
        assert said.finish is not None
        assert passage is not None
        assert passage.head is not None
        model = said.model if said.model and _MODEL.fullmatch(said.model) else ""
        if model != ask.destination.model:
            ask.events.append(_other_model(ask.destination.model, model))
        if said.refused:
            ask.events.append(Event(code="cloud-refusal", message="the model refused to answer"))
        if not said.done:
            ask.events.append(
                Event(
                    code="cloud-stream-unmarked",
                    message="the answer is whole, but its stream ended without the last mark",
                )
            )
        usage = self._settled(ask)
        return CloudAnswer(
            destination=ask.destination.name,
            text=said.text,
            finish=said.finish,
            tool_calls=calls,
            usage=usage,
            model=model,
            request_id=_request_id(ask),
            attempts=ask.attempts,
            events=tuple(ask.events),
            timings=_timings(ask),
        )

    def _failed(self, ask: Ask, fault: Fault) -> CloudFailure:
        usage = None
        if ask.reservation is not None and ask.acted:
            usage = self._settled(ask)
        elif ask.reservation is not None:
            self._release(ask, ask.reservation)
        return CloudFailure(
            destination=ask.destination.name,
            fault=fault.kind,
            error=fault.error.to_dict(),
            may_have_acted=ask.acted,
            attempts=ask.attempts,
            timings=_timings(ask),
            partial_text=ask.said.text,
            retry_after_s=fault.retry_after_s,
            status=fault.status,
            request_id=_request_id(ask),
            usage=usage,
            events=tuple(ask.events),
        )

    def _settled(self, ask: Ask) -> CloudUsage:
        """Count what the server stated, or let the worst case stand where it stated nothing."""
        said, held = ask.said, ask.reservation
        cost: Quantity = Unknown(reason="the destination has no declared price")
        if held is not None:
            cost = held.amount
            if said.prompt_tokens is None or said.completion_tokens is None:
                ask.events.append(
                    Event(
                        code="cloud-usage-unknown",
                        message="the server did not state its usage; the worst case is counted",
                    )
                )
            else:
                cost = self._counted(ask, held, said.prompt_tokens, said.completion_tokens)
        return CloudUsage(
            prompt_tokens=_tokens(said.prompt_tokens),
            completion_tokens=_tokens(said.completion_tokens),
            cost=cost,
        )

    def _counted(
        self, ask: Ask, held: Reservation, prompt_tokens: int, completion_tokens: int
    ) -> Declared | Estimated:
        try:
            cost = self._spend.settle(
                held, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens
            )
        except EdgewiseError as error:  # the answer is there; the worst case goes on counting
            ask.events.append(_not_settled(error))
            return held.amount
        if cost.number > held.amount.number:
            ask.events.append(
                Event(
                    code="cloud-cost-above-worst-case",
                    message="the server states more tokens than there can have been",
                )
            )
        return cost

    def _release(self, ask: Ask, held: Reservation) -> None:
        try:
            self._spend.release(held)
        except EdgewiseError as error:
            ask.events.append(_not_settled(error))


def require_sound(
    destination: Destination,
    payload: CloudPayload,
    deadline_s: float | None,
    idempotency_key: str | None = None,
) -> None:
    """Refuse what :meth:`CloudClient.ask` would refuse, for before consent is used up.

    Raises:
        InputError: an argument is none that can be used (``cloud-ask-invalid``).
    """
    why = None
    if payload.model != destination.model:
        why = f"it asks for the model {payload.model!r}, the destination has {destination.model!r}"
    elif deadline_s is not None and not 0 < deadline_s <= _DEADLINE_MAX_S:
        why = f"deadline_s is {deadline_s!r}; allowed is more than 0, at most {_DEADLINE_MAX_S:g}"
    elif idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
        why = "the idempotency key is not 1 to 255 letters, digits, dashes and underscores"
    if why is not None:
        raise _ask_invalid(destination, why)


def _ask_invalid(destination: Destination, why: str) -> InputError:
    return InputError(
        "cloud-ask-invalid",
        f"{destination.name} cannot be asked: {why}",
        hint="make the payload with CloudPayload.of for this destination, and give the other "
        "arguments within what is allowed",
    )


def _timings(ask: Ask) -> CloudTimings:
    passage, began = ask.passage, ask.span.began
    connect_ms = passage.connect_ms if passage is not None else None
    first_s = ask.first_text_s
    return CloudTimings(
        connect_ms=_ms(connect_ms, "no connection was made"),
        ttft_ms=_ms(None if first_s is None else (first_s - began) * 1e3, "no text came"),
        total_ms=_ms((time.monotonic() - began) * 1e3, ""),
    )


def _ms(value: float | None, why_not: str) -> Quantity:
    if value is None:
        return Unknown(reason=why_not)
    return Measured(value=round(value, 3), source="monotonic clock of this process")


def _tokens(count: int | None) -> Quantity:
    if count is None:
        return Unknown(reason="the server did not state it")
    return Declared(value=count, source="usage in the server's answer")


def _request_id(ask: Ask) -> str | None:
    head = ask.passage.head if ask.passage is not None else None
    return None if head is None else head.request_id


def _other_model(asked: str, answered: str) -> Event:
    return Event(
        code="cloud-model-differs",
        message=f"{asked} was asked, and the server says that {answered or 'another'} answered",
        context={"asked": asked, "answered": answered},
    )


def _repeated(fault: Fault, attempt: int, wait_s: float) -> Event:
    return Event(
        code="cloud-repeated",
        message=f"attempt {attempt} failed ({fault.error.code}); the same request is sent again",
        context={"attempt": attempt, "code": fault.error.code, "wait_s": round(wait_s, 3)},
    )


def _not_settled(error: EdgewiseError) -> Event:
    return Event(
        code="cloud-spend-not-settled",
        message="the ledger of costs cannot be written; the worst case goes on counting",
        context={"code": error.code},
    )
