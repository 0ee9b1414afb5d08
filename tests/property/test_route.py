"""Routing invariants on concrete values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.values import UNKNOWN, size

from edgewise.core.ledger import MemoryLedger
from edgewise.core.outcome import Route
from edgewise.core.quantity import Unknown
from edgewise.core.request import DataClass, Message, Request
from edgewise.core.state import DeviceState, MemoryState, PowerState, StorageState, ThermalState
from edgewise.route import Policy, RouteEvidence, decide

quantities = st.just(UNKNOWN) | st.integers(0, 2**53).map(size) | st.floats(0, 2**53).map(size)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
ledgers = st.builds(
    MemoryLedger,
    weights_bytes=quantities,
    kv_cache_bytes=quantities,
    workspace_bytes=quantities,
    runtime_bytes=quantities,
    app_bytes=quantities,
    budget_bytes=quantities,
)
requests = st.builds(
    Request,
    messages=st.just((Message(role="user", content="x"),)),
    task=st.just("chat") | texts,
    data_class=st.sampled_from(DataClass),
)
states = st.builds(
    DeviceState,
    memory_available_bytes=quantities,
    storage_free_bytes=quantities,
    memory=st.sampled_from(MemoryState),
    storage=st.sampled_from(StorageState),
    power=st.sampled_from(PowerState),
    thermal=st.sampled_from(ThermalState),
)
policies = st.builds(
    Policy,
    name=texts,
    tasks=st.lists(st.just("chat") | texts, max_size=3).map(tuple),
    data_classes=st.lists(st.sampled_from(DataClass), max_size=4).map(tuple),
    decline_when_thermal_critical=st.booleans(),
    decline_when_battery_low=st.booleans(),
)
evidences = st.builds(
    RouteEvidence,
    fingerprint=st.none() | st.just("a" * 64),
    qualified=st.booleans(),
    memory=st.none() | ledgers,
    resident=st.booleans(),
)


@given(requests, st.sampled_from(DataClass), states, policies, evidences)
def test_invariants(
    request: Request,
    data_class: DataClass,
    state: DeviceState,
    policy: Policy,
    evidence: RouteEvidence,
) -> None:
    decision = decide(request, data_class, state, policy, evidence)
    assert decision.route in {Route.LOCAL, Route.DECLINE}
    assert decision.reasons
    assert all(decision.reasons)
    assert decision.policy_version == policy.version
    denies = [rule for rule in decision.rules if rule.verdict == "denies"]
    assert (decision.route is Route.LOCAL) == (not denies)
    assert decision == decide(request, data_class, state, policy, evidence)
    if decision.route is Route.LOCAL:
        assert request.task in policy.tasks
        assert data_class in policy.data_classes
        assert evidence.qualified
        assert evidence.fingerprint
        needed = None if evidence.memory is None else evidence.memory.worker_bytes
        available = state.memory_available_bytes
        if not evidence.resident:
            assert needed is not None
            assert not isinstance(needed, Unknown)
            if not isinstance(available, Unknown):
                assert needed.number <= available.number + 1


@given(states, evidences, st.integers(0, 2**52))
def test_more_memory_never_turns_yes_into_no(
    state: DeviceState, evidence: RouteEvidence, more: int
) -> None:
    import msgspec

    available = state.memory_available_bytes
    if isinstance(available, Unknown):
        return
    request = Request(messages=(Message(role="user", content="x"),))
    policy = Policy(name="p")
    roomier = msgspec.structs.replace(state, memory_available_bytes=size(available.number + more))
    before = decide(request, DataClass.PUBLIC, state, policy, evidence)
    after = decide(request, DataClass.PUBLIC, roomier, policy, evidence)
    assert not (before.route is Route.LOCAL and after.route is Route.DECLINE)
