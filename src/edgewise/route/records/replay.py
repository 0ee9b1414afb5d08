"""Decide about a record again, under any policy.

A record tells less than the request did. What it leaves open is tried in every way that could make
a difference; only where all ways lead to the same place is the answer known.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from edgewise.core.ledger import MemoryLedger
from edgewise.core.outcome import Route, RouteDecision
from edgewise.core.quantity import Estimated, Quantity, Unknown
from edgewise.core.request import DataClass, Message, Request, Sampling
from edgewise.core.state import DeviceState
from edgewise.route.cloud_rules import scope_of
from edgewise.route.facts import ClassifiedTask, ConsentFact, ConsentVerdict, Doubt, RouteEvidence
from edgewise.route.policy import AUTO, Limits, Policy
from edgewise.route.records.record import (
    ContextKept,
    DeadlineKept,
    DoubtKept,
    MemoryKept,
    RouteRecord,
    TaskSaid,
    classifier_of,
    terms_of,
)
from edgewise.route.records.spans import Number, Span, points
from edgewise.route.router import decide

__all__ = ["Replayed", "Replayer", "Where"]

# No person calls a task this: it stands for one that the policy does not name.
_NO_TASK = "\x00"
_NO_DAY = "2000-01-01"
_LONGEST_S = 1e9
_SHORTEST_S = 1e-9
_MOST, _HOTTEST = 2**31, 100.0  # of tokens, and a temperature, that a request may ask for


class _Asked(NamedTuple):
    """How a task was said.

    Attributes:
        task: The task that comes of it.
        found: What a classifier made of it, empty for nothing; ``None`` where the caller said it.
    """

    task: str
    found: str | None = None


class Where(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a request runs: the route and, for ``cloud``, the destination."""

    route: Route
    destination: str = ""

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.route} {self.destination}".strip()


class Replayed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a policy decides about a record.

    Attributes:
        places: Where it may run; one when that can be told.
        because: What of the record leaves it open; empty when nothing does.
        verdicts: What each rule said, by its name, for each way that was tried.
    """

    places: tuple[Where, ...]
    because: tuple[str, ...]
    verdicts: tuple[dict[str, str], ...]

    @property
    def where(self) -> Where | None:
        """Return where it runs; ``None`` when that cannot be told."""
        return self.places[0] if len(self.places) == 1 else None


class Replayer:
    """Decides about records under one policy; the same inputs are decided once.

    Args:
        policy: The policy.
        recorders: Policies that records may be of. A task that such a policy did not name is
            none of those it names.
    """

    def __init__(self, policy: Policy, recorders: tuple[Policy, ...] = ()) -> None:
        self.policy = policy
        self._recorders = {one.version: one for one in (policy, *recorders)}
        limits = policy.limits
        self._lengths = sorted(
            {n for n in (limits.characters, limits.cloud_characters) if n is not None}
        )
        self._deciding = msgspec.structs.replace(
            policy,
            limits=Limits(
                characters=self._ranked(limits.characters),
                cloud_characters=self._ranked(limits.cloud_characters),
                max_tokens=limits.max_tokens,
                temperature=limits.temperature,
            ),
        )
        self._done: dict[RouteRecord, Replayed] = {}

    def __call__(self, record: RouteRecord) -> Replayed:
        """Return what the policy decides about a record. It raises nothing."""
        bare = msgspec.structs.replace(
            record, day=_NO_DAY, weight=1.0, route=Route.DECLINE, destination=""
        )
        if bare not in self._done:
            self._done[bare] = self._replayed(bare)
        return self._done[bare]

    def _ranked(self, limit: int | None) -> int | None:
        """Return a limit's place among the limits: no text as long as a limit is ever made."""
        return None if limit is None else 2 * self._lengths.index(limit) + 2

    def _replayed(self, record: RouteRecord) -> Replayed:
        tried = [(way, self._decided(record, way)) for way in self._ways(record)]
        places = {Where(route=one.route, destination=one.destination): None for _, one in tried}
        return Replayed(
            places=tuple(places),
            because=_because(tried) if len(places) > 1 else (),
            verdicts=tuple(
                {rule.rule: rule.verdict for rule in decision.rules} for _, decision in tried
            ),
        )

    def _ways(self, record: RouteRecord) -> Iterator[dict[str, Hashable]]:
        """Yield what the record leaves open, in each way that may matter."""
        policy, limits = self.policy, self.policy.limits
        lengths = points(record.characters, self._lengths)
        doubts: tuple[Hashable, ...] = (record.doubt,)
        if record.doubt is DoubtKept.UNRECORDED:
            doubts = (DoubtKept.SURE, DoubtKept.UNSURE)
        for task, data_class in itertools.product(self._tasks(record), self._classes(record)):
            rule = policy.by_task.get(task.task)
            deadline_s = None if rule is None else rule.deadline_s
            axes: dict[str, tuple[Hashable, ...]] = {
                "task": (task,),
                "data_class": (data_class,),
                "characters": tuple(bisect.bisect_left(self._lengths, n) for n in lengths),
                "max_tokens": _points(record.max_tokens, limits.max_tokens),
                "temperature": _points(record.temperature, limits.temperature),
                "expected_s": _points(record.expected_s, deadline_s),
                "doubt": doubts,
                # Where several ways may be open, the first that is open is taken: one at a time
                # shows them all.
                "consent": ("", *self._unasked(record, task.task, data_class)),
            }
            for values in itertools.product(*axes.values()):
                yield dict(zip(axes, values, strict=True))

    def _tasks(self, record: RouteRecord) -> tuple[_Asked, ...]:
        if record.said is not TaskSaid.CALLER:
            return self._open(record)
        return tuple(map(_Asked, self._named(record)))

    def _named(self, record: RouteRecord) -> tuple[str, ...]:
        """Return which tasks a record's may be: its own, or what its policy did not name."""
        if record.task is not None:
            return (record.task,)
        recorder = self._recorders.get(record.policy)
        named = () if recorder is None else tuple(recorder.by_task)
        return (_NO_TASK, *(name for name in self.policy.by_task if name not in named))

    def _open(self, record: RouteRecord) -> tuple[_Asked, ...]:
        """Return how a task that a classifier was to say may be said under this policy."""
        trusted, tasks = self.policy.classifier, self.policy.by_task
        if AUTO in tasks:  # here it is a task like any other
            return (_Asked(AUTO),)
        if trusted is None:
            return (_Asked("", ""),)
        lost = _Asked(trusted.otherwise, "")
        if record.classifier == classifier_of(self.policy):
            if record.said is TaskSaid.NOBODY:
                return (lost,)
            return tuple(_Asked(name, name) for name in self._named(record))
        return (lost, *(_Asked(name, name) for name in (_NO_TASK, *tasks)))

    def _classes(self, record: RouteRecord) -> tuple[str, ...]:
        if record.data_class is not None:
            return (record.data_class,)
        recorder = self._recorders.get(record.policy)
        known = tuple(DataClass) if recorder is None else tuple(recorder.classes)
        return (_NO_TASK, *(name for name in self.policy.classes if name not in known))

    def _unasked(self, record: RouteRecord, task: str, data_class: str) -> Iterator[str]:
        """Yield the destinations whose consent nobody looked up for these terms."""
        told = {(kept.destination, kept.terms) for kept in record.consents}
        for name in self._destinations(task):
            asks = scope_of(self.policy, data_class, self.policy.places[name]) is not None
            known = record.data_class is not None and (name, terms_of(self.policy, name)) in told
            if asks and not known:
                yield name

    def _destinations(self, task: str) -> tuple[str, ...]:
        rule = self.policy.by_task.get(task)
        return () if rule is None else rule.destinations

    def _decided(self, record: RouteRecord, way: Mapping[str, Hashable]) -> RouteDecision:
        data_class, asked = str(way["data_class"]), way["task"]
        assert isinstance(asked, _Asked)
        length: object = way["characters"]
        assert isinstance(length, int)
        request = Request(
            messages=(Message(role="user", content="." * (2 * length + 1)),),
            task=asked.task if asked.found is None else AUTO,
            max_tokens=_whole(way["max_tokens"]),
            deadline_s={
                DeadlineKept.NONE: None,
                DeadlineKept.MET: _LONGEST_S,
                DeadlineKept.MISSED: _SHORTEST_S,
            }[record.deadline],
            sampling=Sampling(temperature=min(_real(way["temperature"]) or 0.0, _HOTTEST)),
        )
        state = DeviceState(
            memory_available_bytes=_available(record.memory),
            memory=record.pressure,
            storage=record.storage,
            power=record.power,
            thermal=record.thermal,
            link=record.link,
        )
        known = self._evidence(record, way, asked)
        return decide(request, data_class, state, self._deciding, known)

    def _evidence(
        self, record: RouteRecord, way: Mapping[str, Hashable], asked: _Asked
    ) -> RouteEvidence:
        doubt = way["doubt"]
        closed = () if not record.only else (n for n in self.policy.places if n != record.only)
        told = {(kept.destination, kept.terms): kept.verdict for kept in record.consents}
        facts = []
        for name in self._destinations(asked.task):
            verdict = told.get((name, terms_of(self.policy, name)))
            if way["consent"] == name:
                verdict = ConsentVerdict.GRANTED
            facts.append(ConsentFact(destination=name, verdict=verdict or ConsentVerdict.ABSENT))
        return RouteEvidence(
            fingerprint="recorded" if record.active else None,
            qualified=record.qualified,
            memory=None if record.memory is MemoryKept.UNPLANNED else _LEDGER,
            resident=record.memory is MemoryKept.RESIDENT,
            kinds=record.kinds,
            context_length=None if record.context is ContextKept.UNKNOWN else 2**40,
            prompt_tokens=2**41 if record.context is ContextKept.TOO_LONG else 0,
            expected_s=_expected(_real(way["expected_s"])),
            unsupported=() if record.able else ("recorded",),
            doubt=None
            if doubt is DoubtKept.NONE
            else Doubt(unsure=doubt is DoubtKept.UNSURE, calibrated=True, reason="recorded"),
            classified=self._classified(asked),
            trust=record.trust,
            clock_right=record.clock_right,
            policy_expired=not record.in_force,
            consents=tuple(facts),
            spent=(*record.spent, *closed),
        )

    def _classified(self, asked: _Asked) -> ClassifiedTask | None:
        trusted = self.policy.classifier
        if trusted is None or not asked.found:
            return None
        return ClassifiedTask(
            stands=True, task=asked.found, score=1.0, threshold=0.0, evidence=trusted.evidence
        )


_BYTE = Estimated(value=1, source="a record")
_LEDGER = MemoryLedger(
    weights_bytes=_BYTE,
    kv_cache_bytes=_BYTE,
    workspace_bytes=_BYTE,
    runtime_bytes=_BYTE,
    app_bytes=_BYTE,
    budget_bytes=_BYTE,
)


def _available(memory: MemoryKept) -> Quantity:
    if memory is MemoryKept.UNREAD:
        return Unknown(reason="not read")
    return Estimated(value=0 if memory is MemoryKept.SHORT else 2**40, source="a record")


def _expected(seconds: float | None) -> Quantity:
    if seconds is None:
        return Unknown(reason="not recorded")
    return Estimated(value=seconds, source="a record")


def _points(found: Span | None, limit: Number | None) -> tuple[Hashable, ...]:
    return (None,) if found is None else points(found, (limit,))


def _whole(value: Hashable) -> int | None:
    return None if not isinstance(value, int | float) else max(1, min(int(value), _MOST))


def _real(value: Hashable) -> float | None:
    return None if not isinstance(value, int | float) else float(value)


def _because(tried: Sequence[tuple[Mapping[str, Hashable], RouteDecision]]) -> tuple[str, ...]:
    """Return which open facts make a difference, each with the others held still."""
    found = []
    for name in tried[0][0]:
        by_rest: dict[tuple[Hashable, ...], set[tuple[Route, str]]] = {}
        for way, decision in tried:
            rest = tuple(value for key, value in way.items() if key != name)
            by_rest.setdefault(rest, set()).add((decision.route, decision.destination))
        if any(len(places) > 1 for places in by_rest.values()):
            found.append(name)
    return tuple(found)
