"""One attempt: the openai SDK over the guard, and what its answer means."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgewise.core.outcome import Event
from edgewise.route.cloud import faults
from edgewise.route.cloud.faults import Fault, FaultError
from edgewise.route.cloud.payload import CloudPayload
from edgewise.route.cloud.reading import Said, read_stream, read_whole
from edgewise.route.cloud.secrets import extra_missing
from edgewise.route.cloud.spend import Reservation
from edgewise.route.cloud.waiting import Span
from edgewise.route.destinations import Destination
from edgewise.route.permits import CloudPermit

if TYPE_CHECKING:
    from openai import APIResponse
    from openai.types.chat import ChatCompletion

    from edgewise.route.cloud.means import Means
    from edgewise.route.cloud.transport import Passage

__all__ = ["Ask", "attempt", "load", "passage_for"]

_PAGES = {"text/html", "application/xhtml+xml"}
_STREAM, _WHOLE = "text/event-stream", "application/json"


@dataclass(slots=True, kw_only=True)
class Ask:
    """One ask, and what has become of it.

    Attributes:
        permit: It has been redeemed.
        destination: Who is asked.
        payload: What is asked.
        body: The payload's bytes.
        on_text: Takes the text.
        span: The time there is.
        key: The idempotency key, where the destination honours one.
        retries: How often it may be sent again.
        reservation: Room in the ledger of costs, where there is a price.
        attempts: How often it was tried.
        acted: Whether the server may have acted.
        said: What it said.
        passage: The last attempt.
        first_text_s: When the first text came, on the monotonic clock.
        raised: What ``on_text`` raised: the caller's own, and no fault of the cloud's.
        events: What happened on the way.
    """

    permit: CloudPermit
    destination: Destination
    payload: CloudPayload
    body: bytes = field(repr=False)
    on_text: Callable[[str], None]
    span: Span
    key: str | None
    retries: int = 0
    reservation: Reservation | None = None
    attempts: int = 0
    acted: bool = False
    said: Said = field(default_factory=Said)
    passage: Passage | None = None
    first_text_s: float | None = None
    raised: BaseException | None = None
    events: list[Event] = field(default_factory=list)

    def hear(self, text: str) -> None:
        """Hand a piece of text on."""
        if self.first_text_s is None:
            self.first_text_s = time.monotonic()
        try:
            self.on_text(text)
        except BaseException as error:
            self.raised = error
            raise


def attempt(ask: Ask, passage: Passage) -> None:
    """Send the request once and read the answer into the ask.

    Raises:
        FaultError: there is no whole answer.
    """
    with contextlib.ExitStack() as stack:
        response = _sent(passage, stack)
        head = passage.head
        assert head is not None
        if head.content_type in _PAGES:
            raise FaultError(faults.web_page(head.status))
        wanted = _STREAM if ask.payload.stream else _WHOLE
        if head.status != 200 or head.content_type not in {_STREAM, _WHOLE}:
            raise FaultError(faults.broken(f"it is none of the type {wanted}"))
        read = read_stream if head.content_type == _STREAM else read_whole
        said = Said() if head.content_type != wanted else ask.said
        try:
            read(response.iter_bytes(), said, ask.hear if said is ask.said else _ignore)
        except FaultError:
            raise
        except Exception as error:
            if error is ask.raised:
                raise
            raise FaultError(faults.internal(error)) from None
        if said is not ask.said:  # an error in the form of an answer has been told by now
            raise FaultError(faults.broken(f"it is none of the type {wanted}"))


def _sent(passage: Passage, stack: contextlib.ExitStack) -> APIResponse[ChatCompletion]:
    """Return the answer of 200 to 299, with its body still to come."""
    import httpx  # noqa: PLC0415 - an extra, and slow to import
    import openai  # noqa: PLC0415

    from edgewise.route.cloud.transport import GuardedTransport  # noqa: PLC0415

    try:
        # The SDK of version 2 takes httpx only, that of version 3 also its successor.
        http: Any = stack.enter_context(
            httpx.Client(
                transport=GuardedTransport(passage), trust_env=False, follow_redirects=False
            )
        )
        # Everything that the SDK would take from the environment is given here. What it builds is
        # only looked at: the guard sends the permitted bytes and the key by itself.
        sdk = openai.OpenAI(
            api_key="none",
            organization="",
            project="",
            webhook_secret="",
            base_url=passage.destination.url,
            http_client=http,
            max_retries=0,
        )
        return stack.enter_context(
            sdk.chat.completions.with_streaming_response.create(model="none", messages=[])
        )
    except FaultError:
        raise
    except Exception as error:  # noqa: BLE001 - the guard noted what happened; the rest is a bug
        raise FaultError(_what_happened(passage, error)) from None


def _what_happened(passage: Passage, error: Exception) -> Fault:
    head = passage.head
    if passage.fault is not None:
        return passage.fault
    if head is None or head.status < 300:
        return faults.internal(error)
    if head.status < 400:
        return faults.redirected(head.status)
    return faults.status_fault(head.status, passage.error_body, retry_after_s=head.retry_after_s)


def load() -> None:
    """Load the libraries of the cloud tier, which takes a second or more the first time.

    Raises:
        UnsupportedError: one is missing or cannot be loaded (``cloud-extra-missing``).
    """
    try:
        # The SDK loads this part late by itself, at the first request.
        import openai.resources.chat.completions  # noqa: F401, PLC0415

        from edgewise.route.cloud import transport  # noqa: F401, PLC0415
    except ImportError as error:
        raise extra_missing(error.name or "openai") from error


def passage_for(ask: Ask, means: Means) -> Passage:
    """Return what one attempt may do."""
    from edgewise.route.cloud import transport  # noqa: PLC0415 - h11 and httpx

    return transport.Passage(
        destination=ask.destination,
        body=ask.body,
        payload_sha256=ask.permit.payload_sha256,
        span=ask.span,
        trust=means.trust,
        proxy=means.proxy,
        secret=means.secret,
        idempotency_key=ask.key,
    )


def _ignore(_text: str) -> None:
    return None
