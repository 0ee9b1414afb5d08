"""What the router is told besides the request: the deployment, consents, doubts. No I/O."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from edgewise.core.ledger import MemoryLedger
from edgewise.core.quantity import Quantity, Unknown

__all__ = [
    "ClassifiedTask",
    "ConsentFact",
    "ConsentVerdict",
    "Doubt",
    "PolicyTrust",
    "RouteEvidence",
]


class ConsentVerdict(StrEnum):
    """What the ledger of consents says about one scope.

    ``ABSENT``: nobody was asked, or what was given is used up, revoked or over. ``UNREADABLE``:
    it cannot be told, which allows nothing.
    """

    GRANTED = "granted"
    DENIED = "denied"
    ABSENT = "absent"
    UNREADABLE = "unreadable"


class ConsentFact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of the consent for this request's data at one destination."""

    destination: str
    verdict: ConsentVerdict
    reason: str = ""


class Doubt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the signals of the local model say about its answer.

    Attributes:
        unsure: Whether the score is beyond the threshold.
        calibrated: Whether the threshold was calibrated for this deployment and that still
            stands; without it the doubt has no consequence.
        reason: In words.
        evidence: Digest of the calibration.
    """

    unsure: bool
    calibrated: bool
    reason: str
    evidence: str = ""


class ClassifiedTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a local classifier says of a request whose task is to be found out.

    Attributes:
        stands: Whether its evidence stands under the policy; without that it says nothing.
        task: The likeliest task; empty where it sees none.
        score: Estimated probability that it is this task.
        threshold: The score that it takes; ``None`` where nothing was shown for this task.
        evidence: Digest of its evidence.
        reason: What else is to be known, in words: why it does not stand, or sees nothing.
    """

    stands: bool
    task: str = ""
    score: float | None = None
    threshold: float | None = None
    evidence: str
    reason: str = ""


class PolicyTrust(StrEnum):
    """How far the policy itself is to be trusted.

    ``BUILT_IN``: part of the program. ``SIGNED``: by a key that this home trusts. ``UNSIGNED``:
    by nobody. ``UNTRUSTED``: not at all, whatever it says of itself; nothing leaves under it.
    """

    BUILT_IN = "built-in"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    UNTRUSTED = "untrusted"


class RouteEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known when a request is routed.

    Attributes:
        fingerprint: The active deployment, or ``None`` when nothing is active.
        qualified: Whether evidence of qualification stands under this fingerprint.
        memory: The plan's ledger.
        resident: Whether the model is already loaded, so that it needs no new memory.
        kinds: Kinds of evidence that stand for the deployment.
        context_length: Tokens it holds; ``None`` when that is not known.
        prompt_tokens: Tokens of the prompt; ``None`` before they are counted.
        expected_s: How long a local answer is expected to take, seconds: estimated from what was
            measured of this deployment on this device, or unknown and why.
        unsupported: What the request needs and the local runtime does not have, in words.
        doubt: What its signals say.
        classified: What a classifier says of the task; ``None`` where none was asked.
        trust: How far the policy is to be trusted.
        clock_right: Whether the date can be relied on: expiry and consents depend on it.
        policy_expired: Whether the policy is over, or not yet valid, by that date.
        consents: What is known of consents, one entry for each destination asked about.
        spent: Destinations whose limit of spending is reached.
    """

    fingerprint: str | None = None
    qualified: bool = False
    memory: MemoryLedger | None = None
    resident: bool = False
    kinds: tuple[str, ...] = ()
    context_length: int | None = None
    prompt_tokens: int | None = None
    expected_s: Quantity = Unknown(reason="nobody estimated it")
    unsupported: tuple[str, ...] = ()
    doubt: Doubt | None = None
    classified: ClassifiedTask | None = None
    trust: PolicyTrust = PolicyTrust.UNSIGNED
    clock_right: bool = True
    policy_expired: bool = False
    consents: tuple[ConsentFact, ...] = ()
    spent: tuple[str, ...] = ()
