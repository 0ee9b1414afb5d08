"""The offline queue: operations that may wait for the cloud, each with one effect at the most."""

from edgewise.route.offline.applying import (
    Applied,
    Applier,
    ApplyResult,
    NotApplied,
    Stale,
    apply_answer,
)
from edgewise.route.offline.clock import QueueClock
from edgewise.route.offline.drainer import Compatible, Drainer, DrainReport, DrainSettings
from edgewise.route.offline.link import LinkEvidence, LinkState, TlsFlaw, link_state
from edgewise.route.offline.operation import (
    DocumentVersion,
    Draft,
    Entry,
    Operation,
    Outgoing,
    State,
)
from edgewise.route.offline.queue import Change, OfflineQueue, Queued, Reason, Refused
from edgewise.route.offline.rows import QueueLimits, Receipt
from edgewise.route.offline.sending import (
    Answered,
    Attempt,
    DeclinedSending,
    MaybeSent,
    NeedsConsent,
    NotSent,
    Permitted,
    RefusedPermanently,
    RetryLater,
    Sender,
    SendResult,
)

__all__ = [
    "Answered",
    "Applied",
    "Applier",
    "ApplyResult",
    "Attempt",
    "Change",
    "Compatible",
    "DeclinedSending",
    "DocumentVersion",
    "Draft",
    "DrainReport",
    "DrainSettings",
    "Drainer",
    "Entry",
    "LinkEvidence",
    "LinkState",
    "MaybeSent",
    "NeedsConsent",
    "NotApplied",
    "NotSent",
    "OfflineQueue",
    "Operation",
    "Outgoing",
    "Permitted",
    "QueueClock",
    "QueueLimits",
    "Queued",
    "Reason",
    "Receipt",
    "Refused",
    "RefusedPermanently",
    "RetryLater",
    "SendResult",
    "Sender",
    "Stale",
    "State",
    "TlsFlaw",
    "apply_answer",
    "link_state",
]
