"""The routing policy: what may run where, versioned, as a value.

A policy only ever narrows. What it does not name does not leave the device, and no policy can
allow what DESIGN's rules forbid: local-only data stays, whatever is written here.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from edgewise.core.canonical import digest_of, is_digest
from edgewise.core.request import DataClass
from edgewise.core.state import LinkState, ThermalState
from edgewise.errors import InputError
from edgewise.route.consent.scopes import ConsentScope
from edgewise.route.destinations import Destination, Terms
from edgewise.route.policy_flaws import (
    ANY,
    date_of,
    invalid,
    numbers,
    require_seen,
    require_unique,
    undefined,
)

__all__ = [
    "AUTO",
    "DEFAULT_POLICY",
    "FIELDS",
    "NUMBER_MAX",
    "SCHEMA_VERSION",
    "ClassifierRule",
    "CloudUse",
    "ConsentRule",
    "DataClassRule",
    "DeviceLimits",
    "Limits",
    "MinimiseRule",
    "Policy",
    "RecordRule",
    "TaskRule",
]

SCHEMA_VERSION = 2
# What a request says as its task where a classifier is to find it out.
AUTO = "auto"
# What a request says; everything else of it are numbers.
FIELDS = ("messages", "tools", "structure", "stop")
# Tables that came after version 2 began; see `Policy.digest`.
_LATER = ("classifier", "records")
_RECORDS_MAX = 1_000_000
_RECORD_DAYS_MAX = 366
NUMBER_MAX = 2**53 - 1  # the largest integer that RFC 8785 carries exactly
_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")


class CloudUse(StrEnum):
    """When a task may go to a destination.

    ``NEVER``: this device answers, or nobody. ``WHEN_NEEDED``: where this device cannot answer,
    or a calibrated doubt says that it should not. ``PREFERRED``: wherever it is allowed.
    """

    NEVER = "never"
    WHEN_NEEDED = "when-needed"
    PREFERRED = "preferred"


class DataClassRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A data class of one's own. ``like`` says which of the four its data is treated as."""

    name: str
    like: DataClass = DataClass.LOCAL_ONLY


class TaskRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be done with requests of a task class.

    Attributes:
        name: The task class.
        data_classes: Which data it takes; every known class when none is named.
        cloud: When it may leave.
        destinations: Where to, most wanted first, by name.
        escalate: Whether a calibrated doubt about the local answer counts as a need.
        deadline_s: Longest time a local answer may be expected to take, seconds.
        evidence: Kinds of evidence that the deployment must have for it, e.g. ``smoke``.
        delay_safe: Whether it may wait in the offline queue.
    """

    name: str
    data_classes: tuple[str, ...] = ()
    cloud: CloudUse = CloudUse.NEVER
    destinations: tuple[str, ...] = ()
    escalate: bool = False
    deadline_s: float | None = None
    evidence: tuple[str, ...] = ()
    delay_safe: bool = False


class ClassifierRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which local classifier may say the task of a request whose task is ``auto``.

    It says a task and nothing else: the data class is the caller's to say.

    Attributes:
        evidence: Digest of the evidence of the classifier that is trusted, in full.
        minimum_accuracy: How much of what it takes for a task must be shown to be of that task.
        minimum_confidence: How sure that must be.
        max_age_days: How old the evidence may be.
        otherwise: The task of a request whose task is not found out; such a request stays on the
            device, whatever that task allows. Empty: it is declined.
        may_leave: Tasks whose requests may leave although a classifier said the task. None, when
            none is named.
    """

    evidence: str
    minimum_accuracy: float = 0.9
    minimum_confidence: float = 0.95
    max_age_days: int = 180
    otherwise: str = ""
    may_leave: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_digest(self.evidence):
            raise invalid("its classifier's evidence is no digest of 64 hex digits")
        for name in ("minimum_accuracy", "minimum_confidence"):
            if not 0 < getattr(self, name) < 1:
                raise invalid(f"its classifier's {name} is not between 0 and 1")
        if self.max_age_days < 1:
            raise invalid("its classifier's max_age_days is below 1")


class ConsentRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether somebody must be asked before data of a class goes to a destination.

    Attributes:
        data_class: The class, or ``*``.
        destination: The destination, or ``*``.
        ask: Whether live consent is needed. Where no rule fits, it is.
        standing_days: How many days one consent may hold; 0 allows one use only.
    """

    data_class: str = ANY
    destination: str = ANY
    ask: bool = True
    standing_days: int = 0


class MinimiseRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of a request leaves for a destination.

    Attributes:
        destination: The destination, or ``*``.
        fields: Which fields of a request leave: ``messages``, ``tools``, ``structure``, ``stop``.
            Identifiers in them are replaced, all kinds that are known; a request that needs
            another field is declined.
    """

    destination: str = ANY
    fields: tuple[str, ...] = ()


class DeviceLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In which state the device still answers by itself.

    Attributes:
        thermal_max: The hottest state in which it does.
        when_battery_low: Whether it does with a low battery.
        when_memory_short: Whether it does under memory pressure.
        when_storage_low: Whether it does with little free storage.
        unknown_counts_as_bad: Whether a signal that nobody reads stands in the way.
        links: In which states of the network a request may leave.
    """

    thermal_max: ThermalState = ThermalState.SERIOUS
    when_battery_low: bool = True
    when_memory_short: bool = True
    when_storage_low: bool = True
    unknown_counts_as_bad: bool = False
    links: tuple[LinkState, ...] = (LinkState.ONLINE,)


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How large a request may be, and how it may be sampled; ``None`` sets no limit.

    Attributes:
        characters: Longest conversation, in characters, anywhere.
        cloud_characters: Longest one that may leave.
        max_tokens: Longest answer that may be asked for, in tokens.
        temperature: Highest temperature.
    """

    characters: int | None = None
    cloud_characters: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None


class RecordRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which decisions are recorded in the home, without content; without this table none is.

    Attributes:
        share: Of how many decisions one is drawn by chance: more than 0, at most 1, which is all.
        keep: Most records that are kept; the oldest go first.
        days: How many days a record is kept.
        local_only: Whether decisions about data that never leaves are recorded too.
    """

    share: float
    keep: int = 10_000
    days: int = 30
    local_only: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise invalid(f"records.share is {self.share:g}; it is more than 0 and at most 1")
        if not 1 <= self.keep <= _RECORDS_MAX:
            raise invalid(f"records.keep is {self.keep}; it is 1 to {_RECORDS_MAX}")
        if not 1 <= self.days <= _RECORD_DAYS_MAX:
            raise invalid(f"records.days is {self.days}; it is 1 to {_RECORD_DAYS_MAX}")


class Policy(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True, weakref=True
):
    """What the router may decide.

    Attributes:
        schema_version: Version of this form.
        name: Name that a person chose.
        revision: Counts up with each change; an older one never replaces a newer.
        feature: What consents are given for.
        issued_at: When it was issued, RFC 3339; empty for one that is built in.
        expires_at: From when on it allows nothing to leave; empty for never.
        data_classes: Data classes beside the four.
        tasks: Task classes that are answered.
        classifier: What may say the task of a request that leaves it open.
        destinations: The allow-list; nothing goes elsewhere.
        consent: Who must be asked when; the first rule that fits holds.
        minimise: What leaves; the first rule that fits holds. Without one nothing does.
        device: In which state the device answers.
        limits: How large a request may be.
        require_signature: Whether anything may leave only under a signed policy.
        records: Which decisions are recorded; ``None`` for none.
    """

    schema_version: int = SCHEMA_VERSION
    name: str
    revision: int = 1
    feature: str = "assistant"
    issued_at: str = ""
    expires_at: str = ""
    data_classes: tuple[DataClassRule, ...] = ()
    tasks: tuple[TaskRule, ...] = (TaskRule(name="chat"),)
    classifier: ClassifierRule | None = None
    destinations: tuple[Destination, ...] = ()
    consent: tuple[ConsentRule, ...] = ()
    minimise: tuple[MinimiseRule, ...] = ()
    device: DeviceLimits = DeviceLimits()
    limits: Limits = Limits()
    require_signature: bool = True
    records: RecordRule | None = None

    def __post_init__(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            raise invalid(f"its schema_version is {self.schema_version}; {SCHEMA_VERSION} is read")
        if not self.name:
            raise invalid("it has no name")
        require_seen(self.name)
        _ = (self.issued, self.expires)  # a date that is none is found now
        for rule in self.data_classes:
            if _NAME.fullmatch(rule.name) is None:
                raise invalid(f"a data class is called {rule.name!r}; use a-z, 0-9 and hyphens")
        for minimised in self.minimise:
            for field in minimised.fields:
                if field not in FIELDS:
                    all_fields = ", ".join(FIELDS)
                    raise invalid(f"it lets a field {field!r} leave; there are {all_fields}")
        self._require_carried()
        self._require_askable()
        self._require_classifiable()
        require_unique("task", (task.name for task in self.tasks))
        require_unique("destination", (place.name for place in self.destinations))
        require_unique("data class", (*DataClass, *(rule.name for rule in self.data_classes)))
        for what, name in self._named():
            known = self.classes if what == "data class" else self.places
            if name != ANY and name not in known:
                raise undefined(f"it names the {what}", name, known)

    def _require_carried(self) -> None:
        """Refuse numbers that have no canonical form: what is signed would have no digest."""
        for name in self.__struct_fields__:
            for where, number in numbers(name, getattr(self, name)):
                if not (math.isfinite(number) and abs(number) <= NUMBER_MAX):
                    raise invalid(f"{where} is {number:g}; it is a number of at most 2^53 - 1")

    def _require_askable(self) -> None:
        """Refuse what no consent could be given for, before anybody has to be asked."""
        for place in self.destinations:
            if not place.purpose:
                continue  # nothing leaves for it, and the check says so
            try:
                ConsentScope(
                    feature=self.feature,
                    data_class=DataClass.PUBLIC,
                    destination=place.name,
                    purpose=place.purpose,
                )
            except InputError as error:
                raise invalid(error.message) from error

    def _require_classifiable(self) -> None:
        found = self.classifier
        if found is None:
            return
        names = {task.name for task in self.tasks}
        if AUTO in names:
            raise invalid(f"a task is called {AUTO!r}, which is what a classifier finds out")
        for name in (*found.may_leave, *filter(None, (found.otherwise,))):
            if name not in names:
                raise undefined("its classifier names the task", name, names)

    def _named(self) -> Iterable[tuple[str, str]]:
        for task in self.tasks:
            yield from (("data class", name) for name in task.data_classes)
            yield from (("destination", name) for name in task.destinations)
        for rule in self.consent:
            yield from (("data class", rule.data_class), ("destination", rule.destination))
        for minimised in self.minimise:
            yield "destination", minimised.destination

    @functools.cached_property
    def issued(self) -> dt.datetime | None:
        """Return when it was issued; ``None`` for one that is built in."""
        return date_of(self.issued_at)

    @functools.cached_property
    def expires(self) -> dt.datetime | None:
        """Return when it ends; ``None`` for never."""
        return date_of(self.expires_at)

    @functools.cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the policy's canonical form."""
        facts: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        # A table that came later counts where it is used: the digests of older policies, and
        # with them their signatures, stay what they were.
        for name in _LATER:
            if facts[name] is None:
                del facts[name]
        return digest_of(facts)

    @functools.cached_property
    def version(self) -> str:
        """Return the name with the head of the policy's digest."""
        return f"{self.name}@{self.digest[:12]}"

    @functools.cached_property
    def classes(self) -> dict[str, DataClass]:
        """Return what each data class is treated as, by name."""
        return {
            **{name.value: name for name in DataClass},
            **{rule.name: rule.like for rule in self.data_classes},
        }

    @functools.cached_property
    def places(self) -> dict[str, Destination]:
        """Return the destinations by name."""
        return {place.name: place for place in self.destinations}

    @functools.cached_property
    def by_task(self) -> dict[str, TaskRule]:
        """Return the rules of tasks by name."""
        return {task.name: task for task in self.tasks}

    def asks(self, data_class: str, destination: str) -> ConsentRule:
        """Return the rule of consent that holds; the strictest where none fits."""
        for rule in self.consent:
            if rule.data_class in {ANY, data_class} and rule.destination in {ANY, destination}:
                return rule
        return _STRICTEST

    def minimises(self, destination: str) -> MinimiseRule | None:
        """Return what leaves for a destination; ``None`` where nobody declared it."""
        for rule in self.minimise:
            if rule.destination in {ANY, destination}:
                return rule
        return None

    def terms(self, destination: str) -> Terms:
        """Return what a user agrees to who lets data go to a destination of this policy."""
        rule = self.minimises(destination)
        return self.places[destination].terms(() if rule is None else rule.fields)


_STRICTEST = ConsentRule()


DEFAULT_POLICY = Policy(name="local-default-2")
