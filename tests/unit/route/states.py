"""The abstract states of routing, and what must hold in each, said another time than the router."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from tests.unit.core.values import ledger, size

from edgewise.core.quantity import Estimated
from edgewise.core.request import DataClass, Message, Request
from edgewise.core.state import DeviceState, LinkState, ThermalState
from edgewise.route.destinations import Basis, Destination
from edgewise.route.facts import (
    ClassifiedTask,
    ConsentFact,
    ConsentVerdict,
    Doubt,
    PolicyTrust,
    RouteEvidence,
)
from edgewise.route.policy import (
    AUTO,
    ClassifierRule,
    CloudUse,
    ConsentRule,
    DataClassRule,
    MinimiseRule,
    Policy,
    TaskRule,
)

PLACE = "far"
NEED = 4123  # bytes that the ledger of the tests asks for
CLASSES = (*DataClass, "health", "notes", "unheard-of")
LIKE = {
    **{name.value: name for name in DataClass},
    "health": DataClass.LOCAL_ONLY,
    "notes": DataClass.PERSONAL,
}
LOCAL = ("able", "inactive", "unqualified", "no-memory", "hot", "unsupported", "too-long", "slow")
OBSTACLES = (
    "none",
    "unsigned",
    "policy-expired",
    "clock-skewed",
    "no-basis",
    "no-purpose",
    "no-fields",
    "spent",
    "too-long",
)
DOUBTS = ("none", "uncalibrated", "sure", "unsure")
# None: the ledger has no entry, which is as if nobody had been asked.
CONSENTS = (None, *ConsentVerdict)
USES = (None, *CloudUse)  # None: the task is not known to the policy
# What a classifier comes to where the caller leaves the task open.
SAID = (
    "untrusted",
    "not-asked",
    "another",
    "not-standing",
    "nothing",
    "unsure",
    "not-shown",
    "unknown-task",
    "sure",
)
LINKS = (LinkState.ONLINE, LinkState.CAPTIVE, LinkState.UNKNOWN)


class Abstract(NamedTuple):
    """One state."""

    data_class: str
    use: CloudUse | None
    asks: bool
    escalates: bool
    local: str
    obstacle: str
    consent: ConsentVerdict | None
    link: LinkState
    doubt: str


def policies() -> dict[tuple[CloudUse | None, bool, bool, str], Policy]:
    """Return a policy for each abstract one."""
    return {
        (use, asks, escalates, obstacle): _policy(use, asks, escalates, obstacle)
        for use, asks, escalates, obstacle in itertools.product(
            USES, (False, True), (False, True), OBSTACLES
        )
    }


def _policy(use: CloudUse | None, asks: bool, escalates: bool, obstacle: str) -> Policy:
    task = TaskRule(
        name="chat" if use is not None else "another",
        cloud=use or CloudUse.PREFERRED,
        destinations=(PLACE,),
        escalate=escalates,
    )
    place = Destination(
        name=PLACE,
        url="https://far.example/v1",
        model="m",
        purpose="" if obstacle == "no-purpose" else "answers that need more",
        basis=Basis.NONE if obstacle == "no-basis" else Basis.CONTRACT,
    )
    policy = Policy(
        name="test",
        tasks=(task,),
        data_classes=(
            DataClassRule(name="health"),
            DataClassRule(name="notes", like=DataClass.PERSONAL),
        ),
        destinations=(place,),
        consent=(ConsentRule(ask=asks),),
        minimise=() if obstacle == "no-fields" else (MinimiseRule(fields=("messages",)),),
    )
    if obstacle == "too-long":
        limits = msgspec.structs.replace(policy.limits, cloud_characters=1)
        policy = msgspec.structs.replace(policy, limits=limits)
    return policy


REQUEST = Request(messages=(Message(role="user", content="Hello"),), max_tokens=50, deadline_s=10.0)
DEVICE = {
    (hot, link): DeviceState(
        memory_available_bytes=size(NEED),
        thermal=ThermalState.CRITICAL if hot else ThermalState.NOMINAL,
        link=link,
    )
    for hot in (False, True)
    for link in LINKS
}


def seconds(value: float) -> Estimated:
    """Return how long an answer is expected to take."""
    return Estimated(value=value, source="a test")


def evidence(state: Abstract) -> RouteEvidence:
    """Return what is known in an abstract state."""
    local, obstacle = state.local, state.obstacle
    doubt = Doubt(
        unsure=state.doubt != "sure",
        calibrated=state.doubt in {"sure", "unsure"},
        reason="the score is 0.7",
    )
    consent = state.consent
    return RouteEvidence(
        fingerprint=None if local == "inactive" else "a" * 64,
        qualified=local != "unqualified",
        memory=None if local == "no-memory" else ledger(),
        context_length=100,
        prompt_tokens=80 if local == "too-long" else 20,
        expected_s=seconds(11.0 if local == "slow" else 1.0),
        unsupported=("it has no tools",) if local == "unsupported" else (),
        doubt=None if state.doubt == "none" else doubt,
        trust=PolicyTrust.UNSIGNED if obstacle == "unsigned" else PolicyTrust.SIGNED,
        clock_right=obstacle != "clock-skewed",
        policy_expired=obstacle == "policy-expired",
        consents=() if consent is None else (ConsentFact(destination=PLACE, verdict=consent),),
        spent=(PLACE,) if obstacle == "spent" else (),
    )


def every() -> Iterator[Abstract]:
    """Yield every abstract state."""
    for state in itertools.product(
        CLASSES, USES, (False, True), (False, True), LOCAL, OBSTACLES, CONSENTS, LINKS, DOUBTS
    ):
        yield Abstract(*state)


class Open(NamedTuple):
    """A state in which the caller leaves the task open.

    Attributes:
        state: The rest of it.
        said: What the classifier comes to.
        leaves: Whether the policy lets such requests leave.
        otherwise: Whether it says what else they are.
    """

    state: Abstract
    said: str
    leaves: bool
    otherwise: bool


OPEN = msgspec.structs.replace(REQUEST, task=AUTO)
_TRUSTED = "e" * 64


def opened(policy: Policy, open_: Open) -> Policy:
    """Return a policy with its classifier."""
    if open_.said == "untrusted":
        return policy
    name = policy.tasks[0].name
    found = ClassifierRule(
        evidence=_TRUSTED,
        may_leave=(name,) if open_.leaves else (),
        otherwise=name if open_.otherwise else "",
    )
    return msgspec.structs.replace(policy, classifier=found)


def classified(said: str) -> ClassifiedTask | None:
    """Return what a classifier says; where it does not count, it would let the most through."""
    if said == "not-asked":
        return None
    return ClassifiedTask(
        stands=said != "not-standing",
        task={"nothing": "", "unknown-task": "unheard-of"}.get(said, "chat"),
        score=0.7 if said == "unsure" else 0.9,
        threshold=None if said == "not-shown" else 0.8,
        evidence="f" * 64 if said == "another" else _TRUSTED,
    )


def every_open() -> Iterator[Open]:
    """Yield every state in which the task is open, with fewer of the rest than :func:`every`."""
    for *state, said, leaves, otherwise in itertools.product(
        CLASSES,
        USES,
        (False, True),
        (False, True),
        ("able", "inactive"),
        ("none", "no-fields"),
        (None, ConsentVerdict.GRANTED, ConsentVerdict.DENIED),
        LINKS[:2],
        ("unsure",),
        SAID,
        (False, True),
        (False, True),
    ):
        yield Open(Abstract(*state), said, leaves, otherwise)


def may_leave(state: Abstract) -> bool:
    """Whether the request may go to the destination at all."""
    return (
        LIKE.get(state.data_class, DataClass.LOCAL_ONLY) is not DataClass.LOCAL_ONLY
        and state.use in {CloudUse.WHEN_NEEDED, CloudUse.PREFERRED}
        and state.obstacle == "none"
        and state.link is LinkState.ONLINE
        and (not state.asks or state.consent is ConsentVerdict.GRANTED)
    )


def is_answered(state: Abstract) -> bool:
    """Whether the policy answers such requests at all."""
    return state.use is not None and state.data_class in LIKE
