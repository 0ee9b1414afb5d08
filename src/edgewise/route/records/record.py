"""What is kept of a decision: names of the policy, states, and numbers in coarse buckets.

Content-free by construction. No field takes what somebody wrote: a task or a data class that the
policy does not name is not named here either, words of reasons are left out, and what a rule
compares with nothing of the policy (memory, the context) is kept as the outcome of comparing. Of a
request whose data never leaves, nothing is kept that depends on its text, but what decided its
route: on which side of the policy's own limits it lay, and the task that a classifier took it for.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from edgewise.core.canonical import digest_of
from edgewise.core.outcome import Route, RouteDecision
from edgewise.core.quantity import Quantity, Unknown
from edgewise.core.request import DataClass, Request
from edgewise.core.state import (
    DeviceState,
    LinkState,
    MemoryState,
    PowerState,
    StorageState,
    ThermalState,
)
from edgewise.errors import InputError
from edgewise.route.cloud_rules import characters, scope_of
from edgewise.route.facts import ConsentVerdict, PolicyTrust, RouteEvidence
from edgewise.route.policy import Policy, TaskRule
from edgewise.route.records import spans
from edgewise.route.records.spans import Span, span
from edgewise.route.tasks import counts, task_of

__all__ = [
    "ConsentKept",
    "ContextKept",
    "DeadlineKept",
    "DoubtKept",
    "MemoryKept",
    "RouteRecord",
    "TaskSaid",
    "classifier_of",
    "never_leaves",
    "record_of",
    "terms_of",
]

SCHEMA_VERSION = 1
# Sums of as many as a file can hold, and of their squares, are finite.
WEIGHT_MAX = 1e30


class MemoryKept(StrEnum):
    """Whether the model fits into memory. ``UNREAD``: nobody read how much there is."""

    RESIDENT = "resident"
    FITS = "fits"
    SHORT = "short"
    UNPLANNED = "unplanned"
    UNREAD = "unread"


class ContextKept(StrEnum):
    """Whether the prompt fits into the context."""

    FITS = "fits"
    TOO_LONG = "too-long"
    UNKNOWN = "unknown"


class DeadlineKept(StrEnum):
    """Whether a local answer was expected within the request's own deadline."""

    NONE = "none"
    MET = "met"
    MISSED = "missed"


class DoubtKept(StrEnum):
    """What a calibrated doubt said. ``UNRECORDED``: the data never leaves, so it is not kept."""

    NONE = "none"
    SURE = "sure"
    UNSURE = "unsure"
    UNRECORDED = "unrecorded"


class TaskSaid(StrEnum):
    """Who said the task. ``NOBODY``: a classifier was to find it and did not."""

    CALLER = "caller"
    CLASSIFIER = "classifier"
    NOBODY = "nobody"


class ConsentKept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the ledger said of a destination.

    Attributes:
        destination: Its name in the policy.
        terms: Digest of the feature and the purpose that the consent was for.
        verdict: What it said.
    """

    destination: str
    terms: str
    verdict: ConsentVerdict


class RouteRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision and its inputs, without what was said.

    Attributes:
        schema_version: Version of this form.
        day: The day in UTC.
        policy: Name and head of the digest of the policy that decided.
        weight: For how many decisions this one stands.
        route: What was decided.
        destination: Where it went.
        task: Task class; ``None`` for one that the policy did not name.
        said: Who said the task.
        classifier: Which one was to say it, and from when on it counts: head of a digest.
        data_class: Data class; ``None`` for one that the policy did not know.
        characters: Length of the conversation.
        max_tokens: Tokens asked for.
        temperature: Temperature.
        expected_s: How long a local answer was expected to take, seconds.
        deadline: What the request's own deadline made of that.
        memory: Whether the model fits into memory.
        context: Whether the prompt fits into the context.
        active: Whether a deployment was active.
        qualified: Whether it was qualified.
        able: Whether the local runtime had what the request needs.
        kinds: Kinds of evidence that stood for the deployment.
        pressure: Memory pressure.
        storage: Storage headroom.
        power: Battery state.
        thermal: Thermal state.
        link: State of the network.
        doubt: What a calibrated doubt said.
        trust: How far the policy was trusted.
        clock_right: Whether the date could be relied on.
        in_force: Whether the policy was in force.
        consents: What the ledger said, for each destination that needed consent.
        spent: Destinations whose limit of spending was reached.
        only: The one destination that a queued operation may go to; empty for others.
    """

    schema_version: int = SCHEMA_VERSION
    day: str
    policy: str
    weight: float = 1.0
    route: Route
    destination: str
    task: str | None
    said: TaskSaid = TaskSaid.CALLER
    classifier: str = ""
    data_class: str | None
    characters: Span
    max_tokens: Span | None
    temperature: Span
    expected_s: Span | None
    deadline: DeadlineKept
    memory: MemoryKept
    context: ContextKept
    active: bool
    qualified: bool
    able: bool
    kinds: tuple[str, ...]
    pressure: MemoryState
    storage: StorageState
    power: PowerState
    thermal: ThermalState
    link: LinkState
    doubt: DoubtKept
    trust: PolicyTrust
    clock_right: bool
    in_force: bool
    consents: tuple[ConsentKept, ...]
    spent: tuple[str, ...]
    only: str = ""

    def __post_init__(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            raise _invalid(f"its schema_version is {self.schema_version}; {SCHEMA_VERSION} is read")
        if not _is_day(self.day):
            raise _invalid(f"its day is {self.day[:40]!r}, which is no date")
        if not 1 <= self.weight <= WEIGHT_MAX:
            raise _invalid(f"its weight is {self.weight:g}; it stands for 1 or more decisions")


def _is_day(text: str) -> bool:
    try:
        return dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _invalid(why: str) -> InputError:
    return InputError(
        "route-records-invalid",
        f"a record of a decision cannot be used: {why}",
        hint="export records with `edgewise policy records export FILE`",
    )


def never_leaves(policy: Policy, data_class: str) -> bool:
    """Return whether data of a class stays here under a policy, whatever else it says."""
    return policy.classes.get(data_class, DataClass.LOCAL_ONLY) is DataClass.LOCAL_ONLY


def terms_of(policy: Policy, destination: str) -> str:
    """Return a digest of what a consent for a destination is given for, beside the data class."""
    terms = policy.terms(destination)
    return digest_of({"feature": policy.feature, "terms": terms})[:16]


def record_of(
    request: Request,
    state: DeviceState,
    policy: Policy,
    evidence: RouteEvidence,
    decision: RouteDecision,
    *,
    day: str,
    weight: float = 1.0,
    only: str = "",
) -> RouteRecord:
    """Return what of a decision may be kept. It raises nothing.

    Args:
        request: The request.
        state: The device's state that it was decided by.
        policy: The policy.
        evidence: All that the router was told, the ledger's part included.
        decision: What it decided.
        day: The day in UTC.
        weight: For how many decisions this one stands.
        only: The destination of a queued operation, where every other one was closed.
    """
    private = never_leaves(policy, request.data_class)
    limits, task = policy.limits, policy.by_task.get(decision.task)
    said = _said(request, policy, evidence)
    deadline_s = None if task is None else task.deadline_s
    length = () if private else spans.CHARACTERS
    wait = () if private else spans.EXPECTED_S
    expected, tokens = _number(evidence.expected_s), request.max_tokens
    return RouteRecord(
        day=day,
        policy=policy.version,
        weight=weight,
        route=decision.route,
        destination=decision.destination,
        task=None if task is None else task.name,
        said=said,
        classifier="" if said is TaskSaid.CALLER else classifier_of(policy),
        data_class=request.data_class if request.data_class in policy.classes else None,
        characters=span(characters(request), length, (limits.characters, limits.cloud_characters)),
        max_tokens=span(tokens, spans.MAX_TOKENS, (limits.max_tokens,)) if tokens else None,
        temperature=span(request.sampling.temperature, spans.TEMPERATURE, (limits.temperature,)),
        expected_s=None if expected is None else span(expected, wait, (deadline_s,)),
        deadline=_deadline(request, expected),
        memory=_memory(state, evidence),
        context=_context(request, evidence),
        active=evidence.fingerprint is not None,
        qualified=evidence.qualified,
        able=not evidence.unsupported,
        kinds=evidence.kinds,
        pressure=state.memory,
        storage=state.storage,
        power=state.power,
        thermal=state.thermal,
        link=state.link,
        doubt=_doubt(evidence, private=private),
        trust=evidence.trust,
        clock_right=evidence.clock_right,
        in_force=not evidence.policy_expired,
        consents=tuple(_consents(request, policy, evidence, task)),
        spent=tuple(
            name for name in evidence.spent if name in policy.places and only in {"", name}
        ),
        only=only,
    )


def _number(quantity: Quantity) -> float | None:
    return None if isinstance(quantity, Unknown) else quantity.number


def _deadline(request: Request, expected_s: float | None) -> DeadlineKept:
    if request.deadline_s is None or expected_s is None:
        return DeadlineKept.NONE
    return DeadlineKept.MET if expected_s <= request.deadline_s else DeadlineKept.MISSED


def _memory(state: DeviceState, evidence: RouteEvidence) -> MemoryKept:
    if evidence.resident:
        return MemoryKept.RESIDENT
    needed = None if evidence.memory is None else evidence.memory.worker_bytes
    if needed is None or isinstance(needed, Unknown):
        return MemoryKept.UNPLANNED
    available = state.memory_available_bytes
    if isinstance(available, Unknown):
        return MemoryKept.UNREAD
    fits = int(needed.number - available.number) <= 0
    return MemoryKept.FITS if fits else MemoryKept.SHORT


def _context(request: Request, evidence: RouteEvidence) -> ContextKept:
    prompt, length = evidence.prompt_tokens, evidence.context_length
    if prompt is None or length is None:
        return ContextKept.UNKNOWN
    fits = prompt + (request.max_tokens or 1) <= length
    return ContextKept.FITS if fits else ContextKept.TOO_LONG


def _doubt(evidence: RouteEvidence, *, private: bool) -> DoubtKept:
    if evidence.doubt is None or not evidence.doubt.calibrated:
        return DoubtKept.NONE
    if private:
        return DoubtKept.UNRECORDED
    return DoubtKept.UNSURE if evidence.doubt.unsure else DoubtKept.SURE


def classifier_of(policy: Policy) -> str:
    """Return the head of a digest of which classifier a policy trusts when; empty for none."""
    if policy.classifier is None:
        return ""
    return digest_of(msgspec.structs.replace(policy.classifier, otherwise="", may_leave=()))[:16]


def _said(request: Request, policy: Policy, evidence: RouteEvidence) -> TaskSaid:
    if task_of(request, policy, evidence).declared:
        return TaskSaid.CALLER
    found = policy.classifier is not None and counts(evidence.classified, policy.classifier)
    return TaskSaid.CLASSIFIER if found else TaskSaid.NOBODY


def _consents(
    request: Request, policy: Policy, evidence: RouteEvidence, task: TaskRule | None
) -> Iterator[ConsentKept]:
    """Yield what was taken for known of each destination; the router takes silence for a no."""
    for name in () if task is None else task.destinations:
        if scope_of(policy, request.data_class, policy.places[name]) is None:
            continue
        found = (fact.verdict for fact in evidence.consents if fact.destination == name)
        yield ConsentKept(
            destination=name,
            terms=terms_of(policy, name),
            verdict=next(found, ConsentVerdict.ABSENT),
        )
