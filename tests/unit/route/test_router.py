"""The router decides every state there is, and says why."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from tests.unit.core.values import UNKNOWN, ledger, size

from edgewise.core.ledger import MemoryLedger
from edgewise.core.outcome import Route, RouteDecision
from edgewise.core.quantity import Quantity
from edgewise.core.request import DataClass, Message, Request
from edgewise.core.state import DeviceState, MemoryState, PowerState, StorageState, ThermalState
from edgewise.route import DEFAULT_POLICY, Policy, RouteEvidence, decide

RULES = (
    "data-stays-local",
    "task-allowed",
    "data-class-allowed",
    "deployment-active",
    "deployment-qualified",
    "memory",
    "thermal",
    "battery",
)
HELLO = Request(messages=(Message(role="user", content="Hello"),))
NEED = 4123  # of the worker, in the ledger below
PLANS: dict[str, MemoryLedger | None] = {
    "none": None,
    "unknown": ledger(kv_cache_bytes=UNKNOWN),
    "known": ledger(),
}
AVAILABLE: dict[str, Quantity] = {
    "unknown": UNKNOWN,
    "enough": size(NEED),
    "short": size(NEED - 1),
}
POLICIES = {
    (task, classes, thermal, battery): Policy(
        name="test",
        tasks=("chat",) if task else (),
        data_classes=tuple(DataClass) if classes else (),
        decline_when_thermal_critical=thermal,
        decline_when_battery_low=battery,
    )
    for task, classes, thermal, battery in itertools.product((False, True), repeat=4)
}
BOTH = (False, True)
STATES = [
    DeviceState(memory_available_bytes=available, thermal=thermal, power=power)
    for available, thermal, power in itertools.product(AVAILABLE.values(), ThermalState, PowerState)
]
EVIDENCE = [
    (plan, RouteEvidence(fingerprint=print_, qualified=qualified, memory=book, resident=resident))
    for print_, qualified, resident in itertools.product((None, "a" * 64), BOTH, BOTH)
    for plan, book in PLANS.items()
]


def denied_by(
    data_class: DataClass, state: DeviceState, policy: Policy, evidence: RouteEvidence, plan: str
) -> set[str]:
    """Return the rules that must deny, said a second time and otherwise."""
    found = set()
    if not policy.tasks:
        found.add("task-allowed")
    if data_class not in policy.data_classes:
        found.add("data-class-allowed")
    if not evidence.fingerprint:
        found.add("deployment-active")
    if not evidence.qualified:
        found.add("deployment-qualified")
    short = state.memory_available_bytes is AVAILABLE["short"]
    if not evidence.resident and (plan != "known" or short):
        found.add("memory")
    if policy.decline_when_thermal_critical and state.thermal == "critical":
        found.add("thermal")
    if policy.decline_when_battery_low and state.power == "low":
        found.add("battery")
    return found


def check(decision: RouteDecision, denied: set[str], policy_version: str) -> None:
    assert decision.route is (Route.DECLINE if denied else Route.LOCAL)
    assert tuple(rule.rule for rule in decision.rules) == RULES
    assert {rule.rule for rule in decision.rules if rule.verdict == "denies"} == denied
    assert {rule.verdict for rule in decision.rules} <= {"allows", "denies", "not-applicable"}
    assert all(rule.reason for rule in decision.rules)
    assert decision.policy_version == policy_version
    if denied:
        assert decision.reasons == tuple(r.reason for r in decision.rules if r.verdict == "denies")
    else:
        assert len(decision.reasons) == 1


@pytest.mark.slow
@pytest.mark.parametrize("data_class", DataClass)
def test_every_state(data_class: DataClass) -> None:
    count = 0
    for policy in POLICIES.values():
        version = policy.version
        for state, (plan, evidence) in itertools.product(STATES, EVIDENCE):
            decision = decide(HELLO, data_class, state, policy, evidence)
            check(decision, denied_by(data_class, state, policy, evidence, plan), version)
            count += 1
    # policies x (available, thermal, power) x (fingerprint, qualified, resident, plan)
    assert count == 2**4 * (3 * 5 * 5) * (2 * 2 * 2 * 3) == 28_800


def test_signals_that_no_rule_reads_change_nothing() -> None:
    count = 0
    evidence = RouteEvidence(fingerprint="a" * 64, qualified=True, memory=ledger())
    known = STATES[-1]
    expected = decide(HELLO, DataClass.PUBLIC, known, DEFAULT_POLICY, evidence)
    for memory, storage in itertools.product(MemoryState, StorageState):
        state = msgspec.structs.replace(known, memory=memory, storage=storage)
        assert decide(HELLO, DataClass.PUBLIC, state, DEFAULT_POLICY, evidence) == expected
        count += 1
    assert count == 9


def good(**changes: Any) -> dict[str, Any]:
    state = DeviceState(
        memory_available_bytes=size(1 << 30),
        thermal=ThermalState.NOMINAL,
        power=PowerState.MAINS,
    )
    evidence = RouteEvidence(fingerprint="a" * 64, qualified=True, memory=ledger())
    return {
        "request": HELLO,
        "data_class": DataClass.LOCAL_ONLY,
        "device_state": state,
        "policy": DEFAULT_POLICY,
        "evidence": evidence,
        **changes,
    }


def verdicts(decision: RouteDecision) -> dict[str, str]:
    return {rule.rule: rule.verdict for rule in decision.rules}


def test_all_is_well() -> None:
    decision = decide(**good())
    assert decision.route is Route.LOCAL
    assert set(verdicts(decision).values()) == {"allows", "not-applicable"}
    assert verdicts(decision)["battery"] == "not-applicable"  # the policy does not ask
    assert decision.policy_version.startswith("local-default-1@")


def test_the_shortfall_is_in_the_reason() -> None:
    state = msgspec.structs.replace(good()["device_state"], memory_available_bytes=size(NEED - 23))
    (reason,) = decide(**good(device_state=state)).reasons
    assert "23 bytes short" in reason
    assert str(NEED) in reason


def test_what_nobody_read_is_not_taken_for_good() -> None:
    policy = Policy(name="strict", decline_when_battery_low=True)
    decision = decide(**good(device_state=DeviceState(), policy=policy))
    found = verdicts(decision)
    assert {found[name] for name in ("memory", "thermal", "battery")} == {"not-applicable"}
    assert all("not known" in rule.reason for rule in decision.rules[-3:])


def test_unknown_need_names_what_is_missing() -> None:
    evidence = RouteEvidence(
        fingerprint="a" * 64, qualified=True, memory=ledger(weights_bytes=UNKNOWN)
    )
    (reason,) = decide(**good(evidence=evidence)).reasons
    assert "weights_bytes" in reason


@pytest.mark.parametrize("task", ["", "Chat", "summarise", "\u20ac" * 500])
def test_a_task_the_policy_does_not_name(task: str) -> None:
    request = msgspec.structs.replace(HELLO, task=task)
    decision = decide(**good(request=request))
    assert decision.route is Route.DECLINE
    assert repr(task) in decision.reasons[0]


def test_deciding_changes_nothing_and_repeats() -> None:
    inputs = good()
    before = {name: msgspec.json.encode(value) for name, value in inputs.items()}
    assert decide(**inputs) == decide(**inputs) == decide(**good())
    assert {name: msgspec.json.encode(value) for name, value in inputs.items()} == before


def test_policy_version_is_of_its_content() -> None:
    policies = [*POLICIES.values(), Policy(name="test2"), DEFAULT_POLICY]
    assert len({policy.version for policy in policies}) == len(policies)
    assert Policy(name="a").version == Policy(name="a").version
    assert Policy(name="a").version.startswith("a@")
