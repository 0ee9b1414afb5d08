"""What two policies make of the same records: which change, how many, by which rule, or unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.route.records.recorded import (
    HERE_KNOWN,
    NOTHING,
    ONLINE,
    SECRET,
    asked,
    full_of_secrets,
    record,
    secret_evidence,
    structured,
    whole,
)

from edgewise.core.outcome import Route
from edgewise.core.quantity import Estimated
from edgewise.core.request import DataClass, Message, Request
from edgewise.core.state import DeviceState, LinkState, ThermalState
from edgewise.errors import InputError
from edgewise.route.facts import ConsentFact, ConsentVerdict, Doubt
from edgewise.route.policy import (
    CloudUse,
    ConsentRule,
    DataClassRule,
    DeviceLimits,
    Limits,
    Policy,
    TaskRule,
)
from edgewise.route.policy_diff import PolicyDiff, policy_diff, read_records
from edgewise.route.records import RouteRecord
from edgewise.route.records.record import DoubtKept
from edgewise.route.records.spans import Span

POLICY = whole()
SEVEN = Estimated(value=7.5, source="a test")
AGREED = (ConsentFact(destination="acme", verdict=ConsentVerdict.GRANTED),)


def changed(**fields: Any) -> Policy:
    return msgspec.structs.replace(POLICY, **fields)


def with_task(**fields: Any) -> Policy:
    chat, draft = POLICY.tasks
    return changed(tasks=(chat, msgspec.structs.replace(draft, **fields)))


def long(characters: int) -> Request:
    return Request(
        messages=(Message(role="user", content="x" * characters),),
        task="draft",
        data_class="ticket",
    )


def diff(new: Policy, *records: RouteRecord, old: Policy = POLICY) -> PolicyDiff:
    return policy_diff(old, new, records)


def test_what_goes_elsewhere_is_counted_by_what_it_is() -> None:
    found = record(POLICY, evidence=HERE_KNOWN)
    new = with_task(evidence=("smoke", "quality"))
    told = diff(new, found, found, record(POLICY, asked(task="chat"), HERE_KNOWN))
    (change,) = told.changed
    assert (change.task, change.data_class) == ("draft", "ticket")
    assert (change.before.route, change.after.route) == (Route.LOCAL, Route.DECLINE)
    assert change.rules == ("evidence",)
    assert (change.tally.records, change.tally.requests.number) == (2, 2)
    assert (told.all.records, told.unchanged.records) == (3, 1)
    assert (told.since, told.until) == ("2026-12-01", "2026-12-01")


def test_weights_are_added_up_with_their_error() -> None:
    found = record(POLICY, evidence=HERE_KNOWN, weight=10.0)
    told = diff(with_task(evidence=("quality",)), *[found] * 4)
    tally = told.changed[0].tally
    assert (tally.records, tally.requests.number) == (4, 40)
    assert tally.standard_error == pytest.approx((4 * 10 * 9) ** 0.5)
    assert told.unchanged.requests.number == told.unchanged.standard_error == 0


def to_cloud_by_rule(rule: str) -> tuple[RouteRecord, Policy]:
    """Return a record and a policy that sends what it is of to acme, by a rule."""
    agreed = msgspec.structs.replace(HERE_KNOWN, consents=AGREED)
    if rule == "cloud-permitted":
        return record(POLICY, evidence=agreed), with_task(cloud=CloudUse.PREFERRED)
    if rule == "thermal":
        warm = msgspec.structs.replace(ONLINE, thermal=ThermalState.FAIR)
        new = changed(device=DeviceLimits(thermal_max=ThermalState.NOMINAL))
        return record(POLICY, evidence=agreed, state=warm), new
    if rule == "doubt":
        doubt = Doubt(unsure=True, calibrated=True, reason="a score")
        old = with_task(escalate=False)
        doubted = msgspec.structs.replace(agreed, doubt=doubt)
        return record(old, evidence=doubted), POLICY
    unasked = changed(
        destinations=tuple(
            msgspec.structs.replace(p, basis="contract") for p in POLICY.destinations
        ),
        consent=(ConsentRule(ask=False),),
    )
    return record(POLICY), unasked


@pytest.mark.parametrize("rule", ["cloud-permitted", "thermal", "doubt", "consent@acme"])
def test_the_rule_that_made_the_change_is_named(rule: str) -> None:
    found, new = to_cloud_by_rule(rule)
    old = with_task(escalate=False) if rule == "doubt" else POLICY
    (change,) = diff(new, found, old=old).changed
    assert (str(change.after), change.rules) == ("cloud acme", (rule,))


def test_another_destination_first() -> None:
    second = msgspec.structs.replace(POLICY.destinations[0], name="beta")
    old = changed(
        destinations=(*POLICY.destinations, second),
        tasks=(TaskRule(name="draft", cloud=CloudUse.PREFERRED, destinations=("acme", "beta")),),
        consent=(ConsentRule(ask=False),),
        minimise=(msgspec.structs.replace(POLICY.minimise[0], destination="*"),),
    )
    old = msgspec.structs.replace(
        old,
        destinations=tuple(msgspec.structs.replace(p, basis="contract") for p in old.destinations),
    )
    new = msgspec.structs.replace(
        old, tasks=(msgspec.structs.replace(old.tasks[0], destinations=("beta", "acme")),)
    )
    (change,) = diff(new, record(old, evidence=HERE_KNOWN), old=old).changed
    assert (str(change.before), str(change.after)) == ("cloud acme", "cloud beta")
    assert change.rules == ("destinations",)


@pytest.mark.parametrize(
    ("limit", "length", "known"),
    [
        (1000, 999, True),  # an edge of the buckets
        (1000, 1001, True),
        (900, 950, False),  # within one of them
        (900, 400, True),
    ],
)
def test_a_limit_that_splits_a_bucket_cannot_be_told(limit: int, length: int, known: bool) -> None:
    new = changed(limits=Limits(characters=limit))
    told = diff(new, record(POLICY, long(length), HERE_KNOWN))
    assert (not told.undecided) is known
    if not known:
        (found,) = told.undecided
        assert found.because == ("characters",)
        assert {str(one) for one in found.after} == {"local", "decline"}
        assert [str(one) for one in found.before] == ["local"]
        assert told.unchanged.records == 0


def test_a_limit_of_the_policy_itself_is_never_split() -> None:
    old = changed(limits=Limits(characters=937))
    for length in (936, 937, 938):
        found = record(old, long(length), HERE_KNOWN)
        assert not diff(old, found, old=old).undecided
        assert (found.route is Route.DECLINE) == (length > 937)


def test_consent_that_nobody_looked_up_cannot_be_told() -> None:
    other = (msgspec.structs.replace(POLICY.destinations[0], purpose="something else"),)
    new = changed(destinations=other)
    (found,) = diff(
        new, record(POLICY, evidence=msgspec.structs.replace(NOTHING, consents=AGREED))
    ).undecided
    assert found.because == ("consent",)
    assert {str(one) for one in found.after} == {"cloud acme", "decline"}


def test_a_task_that_the_policy_did_not_name() -> None:
    found = record(POLICY, asked(task=SECRET), HERE_KNOWN)
    assert found.task is None
    assert diff(POLICY, found).unchanged.records == 1
    more = changed(tasks=(*POLICY.tasks, TaskRule(name="letter")))
    (unknown,) = diff(more, found).undecided
    assert unknown.because == ("task",)
    fewer = changed(tasks=POLICY.tasks[:1])
    assert diff(fewer, found).unchanged.records == 1


def test_a_class_that_the_policy_did_not_know() -> None:
    found = record(POLICY, asked(task="chat", data_class="unheard-of"), HERE_KNOWN)
    assert found.data_class is None
    more = changed(data_classes=(*POLICY.data_classes, DataClassRule(name="diary")))
    assert diff(more, found).undecided[0].because == ("data_class",)


def test_a_record_that_says_something_else_than_its_policy_is_told_of() -> None:
    found = msgspec.structs.replace(record(POLICY, evidence=HERE_KNOWN), route=Route.DECLINE)
    told = diff(POLICY, found)
    assert (told.otherwise, told.changed) == (1, ())
    elsewhere = msgspec.structs.replace(found, policy="another@0123456789ab")
    assert diff(POLICY, elsewhere).otherwise == 0


def test_no_records_is_no_answer() -> None:
    with pytest.raises(InputError) as caught:
        diff(POLICY)
    assert caught.value.code == "route-records-none"


def test_a_limit_beyond_any_text_takes_no_memory() -> None:
    new = changed(limits=Limits(characters=10**15, cloud_characters=10**14))
    assert not diff(new, record(POLICY, long(1001), HERE_KNOWN)).undecided
    (most,) = diff(new, record(POLICY, long(600_001), HERE_KNOWN)).undecided
    assert most.because == ("characters",)


# -- what is in a record


@pytest.mark.parametrize("data_class", ["ticket", SECRET, "local-only"])
def test_nothing_that_somebody_wrote_is_in_a_record(data_class: str) -> None:
    for request in (full_of_secrets(data_class), structured(data_class)):
        found = record(POLICY, request, secret_evidence())
        assert SECRET.encode() not in msgspec.json.encode(found)


def test_two_texts_of_about_one_length_leave_the_same_record() -> None:
    assert record(POLICY, long(1001)) == record(POLICY, long(1999))
    assert record(POLICY, long(1001)) != record(POLICY, long(2001))


def test_of_what_never_leaves_the_length_is_not_kept() -> None:
    doubt = Doubt(unsure=True, calibrated=True, reason="a score")
    known = msgspec.structs.replace(HERE_KNOWN, doubt=doubt, expected_s=SEVEN)
    texts = [
        Request(messages=(Message(role="user", content="x" * n),), task="chat") for n in (3, 9000)
    ]
    assert {request.data_class for request in texts} == {DataClass.LOCAL_ONLY}
    short, much = (record(POLICY, request, known) for request in texts)
    assert short == much
    # Only the policy's own limits are told, which are those of what may leave.
    assert (short.characters, short.expected_s) == (Span(to=20000), Span())
    assert short.doubt is DoubtKept.UNRECORDED


def test_a_device_is_told_by_its_states_and_not_by_its_bytes() -> None:
    found = msgspec.json.decode(msgspec.json.encode(record(POLICY, state=DeviceState())))
    assert "sources" not in found
    assert not [name for name in found if name.endswith("_bytes")]
    assert found["link"] == LinkState.UNKNOWN


# -- files


def test_records_are_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    line = msgspec.json.encode(record(POLICY))
    path.write_bytes(line + b"\n\n" + line + b"\n")
    assert read_records(path) == (record(POLICY),) * 2
    path.write_bytes(line + b"\n{}\n")
    with pytest.raises(InputError, match="line 2") as caught:
        read_records(path)
    assert caught.value.code == "route-records-invalid"
    with pytest.raises(InputError):
        read_records(tmp_path / "none")


def with_field(name: str, written: str) -> bytes:
    """Return an exported record whose field is what somebody wrote."""
    told = msgspec.to_builtins(record(POLICY, evidence=HERE_KNOWN))
    del told[name]
    return msgspec.json.encode(told)[:-1] + f',"{name}":{written}}}'.encode()


@pytest.mark.parametrize(
    ("name", "written"),
    [
        *(("weight", w) for w in ("NaN", "1e999", "-1", "0", "0.5", "1e-320", "1e308", "true")),
        ("weight", "1" + "0" * 400),
        ("weight", '"1"'),
        ("characters", '{"over":500,"to":1}'),
        ("characters", '{"over":1e300}'),
        ("characters", '{"to":1' + "0" * 400 + "}"),
        ("characters", '{"to":NaN}'),
        ("characters", '{"to":true}'),
        ("max_tokens", '{"over":0,"to":1e18}'),
        ("temperature", '{"over":-1e300}'),
        ("expected_s", '{"to":1' + "0" * 400 + "}"),
        ("expected_s", "7"),
        *(("day", day) for day in ('"x"', '""', '"2026-13-45"', '"20261201"', "20261201")),
        *(("schema_version", version) for version in ("2", "-1", "true", "1e400")),
        ("kinds", "{}"),
        ("active", "1"),
    ],
)
def test_a_hostile_value_is_a_typed_error_that_names_the_line(
    tmp_path: Path, name: str, written: str
) -> None:
    file = tmp_path / "records.jsonl"
    good = msgspec.json.encode(record(POLICY, evidence=HERE_KNOWN))
    file.write_bytes(good + b"\n\n" + with_field(name, written) + b"\n")
    with pytest.raises(InputError) as caught:
        read_records(file)
    assert caught.value.code == "route-records-invalid"
    assert "line 3: " in caught.value.message


def test_the_largest_weights_have_a_finite_sum(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_bytes(b"\n".join([with_field("weight", "1e30")] * 50))
    told = diff(POLICY, *read_records(file))
    assert told.all.requests.number == pytest.approx(5e31)
    assert told.all.standard_error < 1e31
