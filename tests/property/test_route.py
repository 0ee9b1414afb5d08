"""Routing invariants on concrete values: generated policies, requests, devices and evidence."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.values import UNKNOWN, ledger, size
from tests.unit.route.states import seconds

from edgewise.core.outcome import Route, RouteDecision
from edgewise.core.quantity import Unknown
from edgewise.core.request import DataClass, Message, Request, Sampling
from edgewise.core.state import (
    DeviceState,
    LinkState,
    MemoryState,
    PowerState,
    StorageState,
    ThermalState,
)
from edgewise.route import Policy, RouteEvidence, decide
from edgewise.route.destinations import Basis, Destination
from edgewise.route.facts import (
    ClassifiedTask,
    ConsentFact,
    ConsentVerdict,
    Doubt,
    PolicyTrust,
)
from edgewise.route.policy import (
    AUTO,
    ClassifierRule,
    CloudUse,
    ConsentRule,
    DataClassRule,
    DeviceLimits,
    Limits,
    MinimiseRule,
    TaskRule,
)

GENERATED = 100_000
PLACES = ("one", "two", "three")
OWN = ("health", "notes")
NEED = 4123


class Generator:
    """Values drawn with a seed; every field of every one is used."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, *values: Any) -> Any:
        return self.random.choice(values)

    def some(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self.random.sample(values, self.random.randint(0, len(values))))

    def yes(self, chance: float = 0.5) -> bool:
        return self.random.random() < chance

    def policy(self) -> Policy:
        classes = (*DataClass, *OWN)
        return Policy(
            name=self.one("a", "b"),
            data_classes=tuple(DataClassRule(name=name, like=self.one(*DataClass)) for name in OWN),
            tasks=tuple(
                TaskRule(
                    name=name,
                    data_classes=self.some(classes) if self.yes(0.3) else (),
                    cloud=self.one(*CloudUse),
                    destinations=self.some(PLACES),
                    escalate=self.yes(),
                    deadline_s=self.one(None, None, 3.0),
                    evidence=self.one((), (), ("quality",)),
                )
                for name in ("chat", "summary")
            ),
            classifier=self.one(
                None,
                ClassifierRule(
                    evidence="e" * 64,
                    otherwise=self.one("", "chat"),
                    may_leave=self.one(("chat", "summary"), self.some(("chat", "summary"))),
                ),
            ),
            destinations=tuple(
                Destination(
                    name=name,
                    url=f"https://{name}.example/v1",
                    model="m",
                    purpose=self.one(*["help"] * 9, ""),
                    basis=self.one(Basis.CONTRACT, Basis.CONTRACT, *Basis),
                )
                for name in PLACES
            ),
            consent=tuple(
                ConsentRule(
                    data_class=self.one("*", *classes),
                    destination=self.one("*", *PLACES),
                    ask=self.yes(),
                )
                for _ in range(self.random.randint(0, 3))
            ),
            minimise=tuple(
                MinimiseRule(
                    destination=self.one("*", *PLACES), fields=self.one((), *[("messages",)] * 5)
                )
                for _ in range(self.random.randint(0, 3))
            ),
            device=DeviceLimits(
                thermal_max=self.one(*ThermalState),
                when_battery_low=self.yes(),
                when_memory_short=self.yes(),
                when_storage_low=self.yes(),
                unknown_counts_as_bad=self.yes(0.2),
                links=self.one((LinkState.ONLINE,), (LinkState.ONLINE, LinkState.WEAK)),
            ),
            limits=Limits(
                characters=self.one(None, None, 3),
                cloud_characters=self.one(None, None, None, 2),
                max_tokens=self.one(None, 5),
                temperature=self.one(None, 0.5),
            ),
            require_signature=self.yes(0.6),
        )

    def request(self) -> Request:
        return Request(
            messages=(Message(role="user", content=self.one("x", "xxx", "xxxx")),),
            task=self.one("chat", "summary", "other", AUTO),
            max_tokens=self.one(None, 5, 6),
            deadline_s=self.one(None, 2.0),
            sampling=Sampling(temperature=self.one(0.0, 0.5, 0.9)),
        )

    def state(self) -> DeviceState:
        return DeviceState(
            memory_available_bytes=self.one(UNKNOWN, size(NEED), size(NEED - 1), size(2**40)),
            memory=self.one(*MemoryState),
            storage=self.one(*StorageState),
            power=self.one(*PowerState),
            thermal=self.one(*ThermalState),
            link=self.one(*[LinkState.ONLINE] * 8, *LinkState),
        )

    def classified(self) -> ClassifiedTask | None:
        said = ClassifiedTask(
            stands=self.yes(0.9),
            task=self.one("chat", "summary", "summary", "other", ""),
            score=self.one(None, 0.4, *[0.9] * 6),
            threshold=self.one(None, *[0.6] * 6),
            evidence=self.one(*["e" * 64] * 9, "f" * 64),
        )
        return said if self.yes(0.9) else None

    def evidence(self) -> RouteEvidence:
        doubt = Doubt(unsure=self.yes(), calibrated=self.yes(), reason="a score")
        return RouteEvidence(
            fingerprint=self.one("a" * 64, "a" * 64, None),
            qualified=self.yes(0.8),
            memory=self.one(None, ledger(), ledger(), ledger(kv_cache_bytes=UNKNOWN)),
            resident=self.yes(),
            kinds=self.one((), ("quality",)),
            context_length=self.one(None, 100),
            prompt_tokens=self.one(None, 90, 99),
            expected_s=self.one(UNKNOWN, seconds(1.0), seconds(2.5)),
            unsupported=self.one((), (), ("it has no tools",)),
            doubt=self.one(None, doubt),
            classified=self.classified(),
            trust=self.one(PolicyTrust.SIGNED, PolicyTrust.SIGNED, *PolicyTrust),
            clock_right=self.yes(0.95),
            policy_expired=self.yes(0.05),
            consents=tuple(
                ConsentFact(
                    destination=name,
                    verdict=self.one(*[ConsentVerdict.GRANTED] * 4, *ConsentVerdict),
                )
                for name in self.some(PLACES)
            ),
            spent=self.some(PLACES) if self.yes(0.2) else (),
        )


def broken(
    request: Request,
    data_class: str,
    state: DeviceState,
    policy: Policy,
    evidence: RouteEvidence,
    found: RouteDecision,
) -> str:
    """Return which invariant a decision breaks, read off the inputs alone."""
    if not found.reasons or not all(found.reasons):
        return "no reason"
    if found.policy_version != policy.version:
        return "another policy"
    if found.route is Route.LOCAL:
        return _broken_locally(evidence)
    if found.route is not Route.CLOUD:
        return "a destination without the route" if found.destination else ""
    like = policy.classes.get(data_class)
    place = {place.name: place for place in policy.destinations}.get(found.destination)
    name = request.task if request.task != AUTO else _classified(policy, evidence)
    task = next((task for task in policy.tasks if task.name == name), None)
    if found.task != name:
        return "another task"
    if place is None or task is None or found.destination not in task.destinations:
        return "a destination that is not in the allow-list"
    fields = next(
        (rule.fields for rule in policy.minimise if rule.destination in {"*", place.name}), ()
    )
    asks = next(
        (
            rule.ask
            for rule in policy.consent
            if rule.data_class in {"*", data_class} and rule.destination in {"*", place.name}
        ),
        True,
    )
    consents = {fact.destination: fact.verdict for fact in evidence.consents}
    granted = consents.get(place.name) is ConsentVerdict.GRANTED
    wrong = {
        "local-only data leaves": like in {None, DataClass.LOCAL_ONLY},
        "the task stays": task.cloud is CloudUse.NEVER,
        "no basis": place.basis is Basis.NONE or not place.purpose,
        "no consent": (asks or place.basis is Basis.CONSENT) and not granted,
        "no declared fields": not fields,
        "unsigned": policy.require_signature and evidence.trust is PolicyTrust.UNSIGNED,
        "untrusted": evidence.trust is PolicyTrust.UNTRUSTED,
        "expired": evidence.policy_expired or not evidence.clock_right,
        "spent": place.name in evidence.spent,
        "no link": state.link not in policy.device.links,
        "too long": len(request.messages[0].content) > (policy.limits.cloud_characters or 99),
    }
    return next((words for words, is_so in wrong.items() if is_so), "")


def _classified(policy: Policy, evidence: RouteEvidence) -> str:
    """Return the task that may leave on a classifier's word; empty where none may."""
    said, trusted = evidence.classified, policy.classifier
    if said is None or trusted is None or said.evidence != trusted.evidence or not said.stands:
        return ""
    if said.score is None or said.threshold is None or said.score < said.threshold:
        return ""
    return said.task if said.task in trusted.may_leave else ""


def _broken_locally(evidence: RouteEvidence) -> str:
    if evidence.fingerprint is None or not evidence.qualified:
        return "an unqualified deployment answers"
    if not evidence.resident and (
        evidence.memory is None or isinstance(evidence.memory.worker_bytes, Unknown)
    ):
        return "memory that nobody planned"
    return "an unsupported request is run" if evidence.unsupported else ""


def test_a_hundred_thousand_requests(record_property: Callable[[str, object], None]) -> None:
    make, routes, found = Generator(20261201), Counter[str](), Counter[str]()
    guessed = 0
    for at in range(GENERATED):
        if at % 50 == 0:  # policies are few and requests many; so the caches are tested too
            policy = make.policy()
        inputs = (
            make.request(),
            make.one(*DataClass, *OWN, "unheard-of"),
            make.state(),
            policy,
            make.evidence(),
        )
        decision = decide(*inputs)
        routes[decision.route] += 1
        guessed += decision.route is Route.CLOUD and inputs[0].task == AUTO
        found[broken(*inputs, decision)] += 1
    counts = ", ".join(f"{route} {count}" for route, count in sorted(routes.items()))
    record_property("shown", f"{GENERATED} generated requests: {counts}")
    assert found == {"": GENERATED}
    assert min(routes[route] for route in Route) > 200
    assert guessed > 20


@given(st.integers(0, 2**32))
def test_it_is_a_function(seed: int) -> None:
    first, second = (
        decide(make.request(), "notes", make.state(), make.policy(), make.evidence())
        for make in (Generator(seed), Generator(seed))
    )
    assert first == second


@given(st.integers(0, 2**32), st.integers(0, 2**52))
def test_more_memory_never_turns_yes_into_no(seed: int, more: int) -> None:
    make = Generator(seed)
    request, policy, evidence = make.request(), make.policy(), make.evidence()
    state = msgspec.structs.replace(make.state(), memory_available_bytes=size(NEED - 1))
    roomier = msgspec.structs.replace(state, memory_available_bytes=size(NEED - 1 + more))
    before = decide(request, DataClass.LOCAL_ONLY, state, policy, evidence)
    after = decide(request, DataClass.LOCAL_ONLY, roomier, policy, evidence)
    assert not (before.route is Route.LOCAL and after.route is Route.DECLINE)


@given(st.integers(0, 2**32))
def test_a_consent_or_a_signature_that_goes_never_opens_a_way(seed: int) -> None:
    make = Generator(seed)
    request, state, policy, evidence = (
        make.request(),
        make.state(),
        make.policy(),
        make.evidence(),
    )
    poorer = msgspec.structs.replace(evidence, consents=(), trust=PolicyTrust.UNTRUSTED)
    if decide(request, "notes", state, policy, evidence).route is not Route.CLOUD:
        assert decide(request, "notes", state, policy, poorer).route is not Route.CLOUD


@given(st.integers(0, 2**32))
def test_a_classifier_opens_no_way_that_the_callers_word_would_not(seed: int) -> None:
    make = Generator(seed)
    request, state, policy, evidence = (
        msgspec.structs.replace(make.request(), task=AUTO),
        make.state(),
        make.policy(),
        make.evidence(),
    )
    found = decide(request, "notes", state, policy, evidence)
    if found.route is Route.CLOUD:
        said = msgspec.structs.replace(request, task=found.task)
        assert policy.classifier is not None
        assert found.task in policy.classifier.may_leave
        assert decide(said, "notes", state, policy, evidence).route is Route.CLOUD
    else:
        assert found.route is Route.LOCAL or not found.destination
