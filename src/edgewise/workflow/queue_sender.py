"""The cloud client as a sender of the offline queue: one attempt, and what became of it.

The client tells what a server may have done; the queue decides by that whether something may be
sent again. The translation errs to the side of "it may have happened".
"""

from __future__ import annotations

import datetime as dt

import msgspec

from edgewise.core.quantity import Measured
from edgewise.errors import EdgewiseError
from edgewise.route.cloud import CloudClient, CloudFailure, CloudFault, CloudPayload, Means
from edgewise.route.destinations import Destination
from edgewise.route.offline import (
    Answered,
    Attempt,
    LinkEvidence,
    LinkState,
    MaybeSent,
    NotSent,
    Outgoing,
    RefusedPermanently,
    RetryLater,
    SendResult,
    TlsFlaw,
    link_state,
)
from edgewise.route.permits import CloudPermit

__all__ = ["Licence", "QueueSender", "result_of"]

_REFUSALS = {CloudFault.VALIDATION, CloudFault.PERMISSION, CloudFault.MODEL_NOT_FOUND}
# What the next operation for the same destination would meet again in the same pass.
_LASTING = {CloudFault.PERMISSION, CloudFault.RATE_LIMIT, CloudFault.SPEND_LIMIT}
_LATER = {408, 425, 429}  # "not now", said before anything was done
# OpenSSL's numbers of why a certificate is refused (x509_vfy.h).
_FLAWS = {
    9: TlsFlaw.NOT_YET_VALID,
    10: TlsFlaw.EXPIRED,
    62: TlsFlaw.OTHER_HOST,
    64: TlsFlaw.OTHER_HOST,
}


class Licence(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt may do: the permit, for this destination and this payload, and by what
    means.
    """

    permit: CloudPermit
    destination: Destination
    payload: CloudPayload
    means: Means | None = None

    def __repr__(self) -> str:
        return f"Licence(destination={self.destination.name!r})"


class QueueSender:
    """Sends queued operations through a cloud client, each attempt once.

    Attributes:
        resting: Destinations that are left alone for the rest of the pass, and why.
    """

    def __init__(self, client: CloudClient) -> None:
        self._client = client
        self.resting: dict[str, str] = {}

    def send(self, outgoing: Outgoing, *, attempt: Attempt) -> SendResult:
        """See :class:`edgewise.route.offline.Sender`."""
        licence = attempt.licence
        if not isinstance(licence, Licence) or licence.payload.body != outgoing.payload:
            return NotSent(link=LinkState.ONLINE, reason="there is no permit for these bytes")
        try:
            found = self._client.ask(
                licence.permit,
                licence.destination,
                licence.payload,
                deadline_s=attempt.time_left_s,
                idempotency_key=attempt.idempotency_key,
                repeat=False,
                means=licence.means,
            )
        except EdgewiseError as error:  # raised before anything is sent, and only then
            return NotSent(link=LinkState.ONLINE, reason=f"{error.code}: nothing was sent")
        if not isinstance(found, CloudFailure):
            return Answered(
                status=200,
                answer=msgspec.json.encode(found),
                request_id=found.request_id or "",
            )
        if found.fault in _LASTING or _explained_503(found):
            self.resting[licence.destination.name] = f"{found.code}: {found.message}"
        return result_of(found)


def result_of(failure: CloudFailure) -> SendResult:
    """Return what a failure of the cloud client means to the queue."""
    reason = f"{failure.code}: {failure.message}"
    status, fault = failure.status, failure.fault
    if status in _LATER or _explained_503(failure):
        return RetryLater(after_s=failure.retry_after_s, reason=reason)
    if failure.code == "cloud-content-filtered":  # an answer, and a final one: no
        return RefusedPermanently(status=status or 200, reason=reason)
    if failure.may_have_acted:
        return MaybeSent(link=_link_after(failure), reason=reason)
    if fault is CloudFault.SPEND_LIMIT:
        return RetryLater(after_s=_until_tomorrow_s(), reason=reason, hold="spending")
    if fault in _REFUSALS and status is not None:
        return RefusedPermanently(status=status, reason=reason)
    return NotSent(link=_link_before(failure), reason=reason)


def _explained_503(failure: CloudFailure) -> bool:
    """Return whether a server says when to come again: then it knows that it did nothing.

    A 503 without that can be a gateway's, whose server acted before it was lost.
    """
    return failure.status == 503 and failure.retry_after_s is not None


def _link_after(failure: CloudFailure) -> LinkState:
    """Return how the way was found where bytes of the request left."""
    if failure.fault is CloudFault.CAPTIVE_PORTAL:
        return LinkState.CAPTIVE_PORTAL
    if failure.status is not None or failure.fault is CloudFault.BROKEN_ANSWER:
        return LinkState.ONLINE
    return link_state(LinkEvidence(connected=True, bytes_sent=1))


def _link_before(failure: CloudFailure) -> LinkState:
    """Return how the way was found where the server did not act."""
    fault, context = failure.fault, failure.error.get("context", {})
    if fault is CloudFault.CAPTIVE_PORTAL:
        return LinkState.CAPTIVE_PORTAL
    if fault is CloudFault.TLS:
        flaw = _FLAWS.get(context.get("verify_code", 0), TlsFlaw.UNTRUSTED)
        return link_state(LinkEvidence(connected=True, tls=flaw))
    if fault not in {CloudFault.OUTAGE, CloudFault.TIMEOUT} or failure.attempts == 0:
        return LinkState.ONLINE  # something on this device stood in the way
    if failure.code == "cloud-name-unknown":
        return link_state(LinkEvidence(resolved=False))
    doing = str(context.get("doing", ""))
    connected = isinstance(failure.timings.connect_ms, Measured) or (
        failure.code in {"cloud-silent", "cloud-interrupted"}
        and not doing.startswith(("connecting", "looking up"))
    )
    return link_state(LinkEvidence(connected=connected))


def _until_tomorrow_s() -> float:
    now = dt.datetime.now(dt.UTC)
    ends = dt.datetime.combine(now.date() + dt.timedelta(days=1), dt.time(), dt.UTC)
    return (ends - now).total_seconds()
