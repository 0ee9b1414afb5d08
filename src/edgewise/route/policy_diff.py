"""Which recorded decisions another policy would make otherwise, how many, and by which rule.

Both policies decide about each record again (:mod:`edgewise.route.records.replay`); what the record
leaves open is counted by itself and never as unchanged. The consents, the trust in the policy and
the date are those of the recorded moment: the new policy is taken for one that is signed and in
force like the one that decided then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from edgewise.core.quantity import Estimated
from edgewise.errors import InputError
from edgewise.route.policy import Policy
from edgewise.route.records.record import RouteRecord
from edgewise.route.records.replay import Replayed, Replayer, Where
from edgewise.store.regular import read_regular

__all__ = ["Changed", "PolicyDiff", "Tally", "Undecided", "policy_diff", "read_records"]

_BYTES_MAX = 1 << 30
_USE = "cloud-permitted"


class Tally(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many decisions.

    Attributes:
        records: How many records.
        requests: For how many they stand: the sum of their weights.
        standard_error: Of that sum, by chance of drawing; 0 where all were recorded.
    """

    records: int
    requests: Estimated
    standard_error: float


class Changed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decisions that change in the same way.

    Attributes:
        task: Task class; ``None`` for one that the policy did not name.
        data_class: Data class; ``None`` for one that the policy did not know.
        queued_for: The destination of queued operations; empty for other requests.
        before: Where they run under the old policy.
        after: Where they run under the new one.
        rules: Which rules say otherwise now.
        tally: How many.
    """

    task: str | None
    data_class: str | None
    queued_for: str
    before: Where
    after: Where
    rules: tuple[str, ...]
    tally: Tally


class Undecided(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decisions of which cannot be told whether they change.

    Attributes:
        task: Task class; ``None`` for one that the policy did not name.
        data_class: Data class; ``None`` for one that the policy did not know.
        queued_for: The destination of queued operations; empty for other requests.
        before: Where they may run under the old policy.
        after: Where they may run under the new one.
        because: What the records do not tell, such as ``characters`` or ``consent``.
        tally: How many.
    """

    task: str | None
    data_class: str | None
    queued_for: str
    before: tuple[Where, ...]
    after: tuple[Where, ...]
    because: tuple[str, ...]
    tally: Tally


class PolicyDiff(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What two policies make of the same records.

    Attributes:
        since: The first day of the records.
        until: The last one.
        all: All records.
        unchanged: Those that stay where they were.
        changed: Those that go elsewhere, the most first.
        undecided: Those of which it cannot be told, the most first.
        otherwise: How many were recorded under the old policy with another decision than it makes
            now: by an Edgewise with other rules, or they are damaged.
    """

    since: str
    until: str
    all: Tally
    unchanged: Tally
    changed: tuple[Changed, ...]
    undecided: tuple[Undecided, ...]
    otherwise: int


_NONE = Tally(records=0, requests=Estimated(value=0, source="no records"), standard_error=0.0)
_G = TypeVar("_G", Changed, Undecided)


def read_records(path: Path) -> tuple[RouteRecord, ...]:
    """Read exported records, one JSON object a line.

    Raises:
        InputError: the file cannot be read, or a line is no record; it is named.
    """
    try:
        lines = read_regular(path, limit_bytes=_BYTES_MAX).splitlines()
    except OSError as error:
        raise _unsound(path, str(error.strerror or error)) from error
    found = []
    for at, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=RouteRecord))
        except (msgspec.MsgspecError, ValueError) as error:
            raise _unsound(path, f"line {at}: {error}") from error
        except InputError as error:
            raise _unsound(path, f"line {at}: {error.message}") from error
    return tuple(found)


def policy_diff(before: Policy, after: Policy, records: Iterable[RouteRecord]) -> PolicyDiff:
    """Return what changes for recorded decisions when one policy takes another's place.

    Raises:
        InputError: there are no records, so that nothing can be told (``route-records-none``).
    """
    everything = tuple(records)
    if not everything:
        raise InputError(
            "route-records-none",
            "there are no records, so nobody can say what would change",
            hint="let the policy record decisions ([records] in it), or name exported ones",
        )
    old, new = Replayer(before), Replayer(after, (before,))
    same: list[RouteRecord] = []
    changed: dict[Changed, list[RouteRecord]] = {}
    undecided: dict[Undecided, list[RouteRecord]] = {}
    otherwise = 0
    for record in everything:
        was, now = old(record), new(record)
        told = Where(route=record.route, destination=record.destination)
        otherwise += record.policy == before.version and was.where not in {None, told}
        if was.where is None or now.where is None:
            key = Undecided(
                task=record.task,
                data_class=record.data_class,
                queued_for=record.only,
                before=was.places,
                after=now.places,
                because=tuple(sorted({*was.because, *now.because})),
                tally=_NONE,
            )
            undecided.setdefault(key, []).append(record)
        elif was.where == now.where:
            same.append(record)
        else:
            change = Changed(
                task=record.task,
                data_class=record.data_class,
                queued_for=record.only,
                before=was.where,
                after=now.where,
                rules=_rules(was, now, reordered=_reordered(before, after, record)),
                tally=_NONE,
            )
            changed.setdefault(change, []).append(record)
    return PolicyDiff(
        since=min(record.day for record in everything),
        until=max(record.day for record in everything),
        all=_tally(everything),
        unchanged=_tally(same),
        changed=_most_first(changed),
        undecided=_most_first(undecided),
        otherwise=otherwise,
    )


def _most_first(groups: dict[_G, list[RouteRecord]]) -> tuple[_G, ...]:
    """Return the groups with their tallies; each key is its group without one."""
    found = [msgspec.structs.replace(key, tally=_tally(some)) for key, some in groups.items()]
    return tuple(sorted(found, key=lambda one: -one.tally.requests.number))


def _tally(records: Iterable[RouteRecord]) -> Tally:
    """Return a count with its error: each record is there by a chance of one in its weight.

    The sum of the weights is the estimator of Horvitz and Thompson (1952); for decisions that are
    drawn one by one its variance is estimated by the sum of w (w - 1).
    """
    weights = [record.weight for record in records]
    return Tally(
        records=len(weights),
        requests=Estimated(value=round(sum(weights), 6), source="the weights of the records"),
        standard_error=round(math.sqrt(sum(w * (w - 1) for w in weights)), 6),
    )


def _rules(was: Replayed, now: Replayed, *, reordered: bool) -> tuple[str, ...]:
    """Return which rules say otherwise, whatever the record leaves open; what is left is order."""
    by_way = [
        {
            name
            for name in {*one, *other}
            if (one.get(name) == "denies") != (other.get(name) == "denies")
        }
        for one, other in zip(was.verdicts, now.verdicts, strict=False)
    ]
    found = set.intersection(*by_way) or set.union(*by_way)
    # Rules about a destination count where something went there, or goes there now.
    found = {name for name in found if _matters(name, was, now)}
    if not found:
        found = {"destinations"} if reordered else {_USE}
    return tuple(sorted(found))


def _matters(name: str, was: Replayed, now: Replayed) -> bool:
    _, _, place = name.partition("@")
    ends = {one.destination for one in (was.where, now.where) if one is not None}
    return not place or place in ends


def _reordered(before: Policy, after: Policy, record: RouteRecord) -> bool:
    """Whether the two name other destinations for the task, or in another order."""
    rules = [policy.by_task.get(record.task or "") for policy in (before, after)]
    places = [() if rule is None else rule.destinations for rule in rules]
    uses = [None if rule is None else rule.cloud for rule in rules]
    return places[0] != places[1] and uses[0] == uses[1]


def _unsound(path: Path, why: str) -> InputError:
    return InputError(
        "route-records-invalid",
        f"the records {path} cannot be used: {why}",
        context={"path": str(path)},
        hint="export them with `edgewise policy records export FILE`",
    )
