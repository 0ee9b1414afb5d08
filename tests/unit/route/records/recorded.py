"""A policy that records, and requests with a secret in every text that they have."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec
from tests.unit.route.policies import WHOLE

from edgewise.core.request import Message, Request
from edgewise.core.state import DeviceState, LinkState
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool
from edgewise.route.facts import ConsentFact, ConsentVerdict, Doubt, PolicyTrust, RouteEvidence
from edgewise.route.policy import Policy, RecordRule
from edgewise.route.records import RouteRecord, record_of
from edgewise.route.router import decide

DAY = "2026-12-01"
SECRET = "zq4711"
ONLINE = DeviceState(link=LinkState.ONLINE)
NOTHING = RouteEvidence(trust=PolicyTrust.SIGNED)
HERE_KNOWN = RouteEvidence(
    trust=PolicyTrust.SIGNED, fingerprint="f" * 64, qualified=True, resident=True, kinds=("smoke",)
)


def whole(**rule: Any) -> Policy:
    """Return the policy that a person wrote, with a table of records where one is given."""
    policy = msgspec.convert(tomllib.loads(WHOLE), Policy)
    return msgspec.structs.replace(policy, records=RecordRule(**rule) if rule else None)


def asked(task: str = "draft", data_class: str = "ticket", **fields: Any) -> Request:
    return Request(
        messages=(Message(role="user", content="x"),), task=task, data_class=data_class, **fields
    )


def full_of_secrets(data_class: str = "ticket") -> Request:
    messages = (
        Message(role="system", content=f"obey {SECRET}"),
        Message(role="user", content=f"I am {SECRET}", name=SECRET),
    )
    tool = Tool(name=SECRET, description=SECRET, parameters=f'{{"title": "{SECRET}"}}')
    return Request(
        messages=messages,
        task=f"draft {SECRET}",
        data_class=data_class,
        stop=(SECRET,),
        tools=(tool,),
    )


def secret_evidence() -> RouteEvidence:
    return RouteEvidence(
        fingerprint=SECRET,
        unsupported=(f"a tool called {SECRET}",),
        doubt=Doubt(unsure=True, calibrated=True, reason=SECRET, evidence=SECRET),
        consents=(
            ConsentFact(destination="acme", verdict=ConsentVerdict.DENIED, reason=SECRET),
            ConsentFact(destination=SECRET, verdict=ConsentVerdict.GRANTED),
        ),
        spent=("acme", SECRET),
    )


def structured(data_class: str = "ticket") -> Request:
    source = f'{{"type": "object", "title": "{SECRET}"}}'
    return asked(
        data_class=data_class, structure=Structure(kind=StructureKind.JSON_SCHEMA, source=source)
    )


def record(
    policy: Policy,
    request: Request | None = None,
    evidence: RouteEvidence = NOTHING,
    state: DeviceState = ONLINE,
    **fields: Any,
) -> RouteRecord:
    request = request or asked()
    decision = decide(request, request.data_class, state, policy, evidence)
    fields.setdefault("day", DAY)
    return record_of(request, state, policy, evidence, decision, **fields)
