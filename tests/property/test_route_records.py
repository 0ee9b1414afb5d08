"""What a record tells again is what was decided, under its own policy and under any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.property.test_route import OWN, PLACES, Generator
from tests.unit.core.values import UNKNOWN, size
from tests.unit.route.states import seconds

from edgewise.core.outcome import Route
from edgewise.core.request import DataClass, Message, Request, Sampling
from edgewise.core.state import DeviceState, LinkState
from edgewise.route import Policy, RouteEvidence, decide
from edgewise.route.policy import AUTO, DataClassRule, Limits
from edgewise.route.policy_diff import policy_diff
from edgewise.route.records import RouteRecord, record_of
from edgewise.route.records.replay import Replayer, Where
from edgewise.route.records.spans import EXPECTED_S, points, span

GENERATED = 6_000
DAY = "2026-12-01"
SECRET = "zebra"


class Wide(Generator):
    """Numbers on both sides of limits, and of the edges of buckets; policies of other names."""

    def policy(self) -> Policy:
        found = super().policy()
        names = self.some((*OWN, "ticket"))
        if self.yes(0.2):
            tasks = (*found.tasks, msgspec.structs.replace(found.tasks[0], name="other"))
        else:
            tasks = found.tasks
        named = {*DataClass, *names}
        tasks = tuple(
            msgspec.structs.replace(
                task, data_classes=tuple(name for name in task.data_classes if name in named)
            )
            for task in tasks
        )
        return msgspec.structs.replace(
            found,
            feature=self.one("assistant", "assistant", "letters"),
            data_classes=tuple(
                DataClassRule(name=name, like=self.one(*DataClass)) for name in names
            ),
            tasks=tasks,
            consent=tuple(rule for rule in found.consent if rule.data_class in {"*", *named}),
            limits=Limits(
                characters=self.rarely(0, 3, 20, 110, 4000, 10**9),
                cloud_characters=self.rarely(2, 100, 111, 4000),
                max_tokens=self.rarely(0, 5, 16, 100, 2**31),
                temperature=self.rarely(0.0, 0.5, 0.55, 200.0),
            ),
        )

    def rarely(self, *values: Any) -> Any:
        return self.one(*values) if self.yes(0.3) else None

    def request(self) -> Request:
        return Request(
            messages=(Message(role="user", content="x" * self.one(1, 3, 4, 100, 110, 111, 4001)),),
            task=self.one(*["chat", "summary"] * 4, "other", SECRET, AUTO, AUTO),
            data_class=self.one(*[*DataClass, *OWN] * 3, "ticket", SECRET),
            max_tokens=self.one(None, 1, 5, 6, 16, 17, 100, 2**31),
            deadline_s=self.one(None, 2.0),
            sampling=Sampling(temperature=self.one(0.0, 0.5, 0.52, 0.57, 100.0)),
        )

    def state(self) -> DeviceState:
        good = DeviceState(memory_available_bytes=size(2**40), link=LinkState.ONLINE)
        return good if self.yes() else super().state()

    def evidence(self) -> RouteEvidence:
        times = (0.0, 1.0, 2.0, 2.5, 3.0, 3.5, 1e308)
        expected = self.one(*[UNKNOWN] * 9, *map(seconds, times))
        found = msgspec.structs.replace(super().evidence(), expected_s=expected)
        if self.yes(0.4):
            return found
        return msgspec.structs.replace(
            found, fingerprint="a" * 64, qualified=True, resident=True, unsupported=()
        )

    def inputs(self) -> tuple[Request, Any, RouteEvidence]:
        return self.request(), self.state(), self.evidence()


def decided(
    request: Request, state: Any, policy: Policy, evidence: RouteEvidence, **kept: Any
) -> tuple[RouteRecord, Where]:
    found = decide(request, request.data_class, state, policy, evidence)
    record = record_of(request, state, policy, evidence, found, day=DAY, **kept)
    return record, Where(route=found.route, destination=found.destination)


def test_a_record_tells_what_was_decided_under_its_policy() -> None:
    make, routes = Wide(7), Counter[str]()
    for at in range(GENERATED):
        if at % 50 == 0:
            policy = make.policy()
            again = Replayer(policy)
        request, state, evidence = make.inputs()
        record, truth = decided(request, state, policy, evidence)
        assert again(record).where == truth, (record, again(record))
        routes[truth.route] += 1
    assert min(routes[route] for route in Route) > 50


def test_under_another_policy_it_tells_the_truth_or_that_it_cannot(
    record_property: Callable[[str, object], None],
) -> None:
    make, told = Wide(8), Counter[str]()
    for at in range(GENERATED):
        if at % 50 == 0:
            policy, other = make.policy(), make.policy()
            again = Replayer(other, (policy,) if make.yes() else ())
        request, state, evidence = make.inputs()
        record, before = decided(request, state, policy, evidence)
        _, truth = decided(request, state, other, evidence)
        found = again(record)
        assert truth in found.places, (record, found)
        assert bool(found.because) == (found.where is None)
        if found.where is None:
            told["undecided"] += 1
        else:
            told["same" if truth == before else "changed"] += 1
    counts = ", ".join(f"{name} {count}" for name, count in sorted(told.items()))
    record_property("shown", f"{GENERATED} records under another policy: {counts}")
    assert min(told[name] for name in ("undecided", "same", "changed")) > 300


def test_what_is_queued_for_one_destination_goes_to_no_other() -> None:
    make, went = Wide(9), Counter[str]()
    for at in range(GENERATED // 2):
        if at % 20 == 0:
            policy, other = make.policy(), make.policy()
        request, state, evidence = make.inputs()
        only = make.one(*PLACES)

        def closed(of: Policy, known: RouteEvidence = evidence, keep: str = only) -> RouteEvidence:
            spent = {*known.spent, *of.places} - {keep}
            spent |= {keep} & set(known.spent)
            return msgspec.structs.replace(known, spent=tuple(sorted(spent)))

        record, first = decided(request, state, policy, closed(policy), only=only)
        assert Replayer(policy)(record).where == first
        _, truth = decided(request, state, other, closed(other))
        found = Replayer(other, (policy,))(record)
        assert truth in found.places
        went[truth.destination] += 1
        assert {one.destination for one in found.places} <= {"", only}
    assert sum(went[name] for name in PLACES) > 10


@given(st.integers(0, 2**32))
def test_nothing_changes_under_the_same_policy(seed: int) -> None:
    make = Wide(seed)
    policy = make.policy()
    records = [decided(*_ordered(make, policy))[0] for _ in range(20)]
    found = policy_diff(policy, policy, records)
    assert (found.changed, found.undecided, found.otherwise) == ((), (), 0)
    assert found.unchanged.records == found.all.records == 20


def _ordered(make: Wide, policy: Policy) -> tuple[Request, Any, Policy, RouteEvidence]:
    request, state, evidence = make.inputs()
    return request, state, policy, evidence


@given(st.integers(0, 2**32))
def test_a_record_survives_its_file_and_names_nothing_that_was_asked(seed: int) -> None:
    make = Wide(seed)
    record, _ = decided(*_ordered(make, make.policy()))
    data = msgspec.json.encode(record)
    assert msgspec.json.decode(data, type=RouteRecord) == record
    assert SECRET.encode() not in data


limits = st.none() | st.integers(-5, 40) | st.floats(-5, 40, allow_nan=False)


@given(st.floats(0, 40), st.lists(limits, max_size=3), st.lists(limits, max_size=3))
def test_a_bucket_stands_for_its_number(value: float, own: list[Any], other: list[Any]) -> None:
    """Its points compare with any limits in every way in which the number might."""
    found = span(value, EXPECTED_S, own)
    assert found.over is None or value > found.over
    assert found.to is None or value <= found.to

    def compared(number: float) -> tuple[bool, ...]:
        return tuple(number <= limit for limit in other if limit is not None)

    assert compared(value) in {compared(point) for point in points(found, other)}
    own_limits = [limit for limit in own if limit is not None]
    assert {tuple(point <= limit for limit in own_limits) for point in points(found, own)} == {
        tuple(value <= limit for limit in own_limits)
    }
