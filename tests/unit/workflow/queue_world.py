"""A device with a queue, a policy and a server that keeps a ledger of what it did by key."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import socket
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from tests.unit.route.cloud.servers import (
    DONE,
    FINISH,
    Answer,
    Exchange,
    RawServer,
    at,
    chunked,
    delta,
    usage,
)

from edgewise.core.request import Message, Request
from edgewise.core.state import LinkState
from edgewise.route.cloud import CloudClient, Secrets, SpendLedger
from edgewise.route.consent import ConsentLedger, ConsentScope, Origin
from edgewise.route.destinations import Basis, Destination
from edgewise.route.facts import PolicyTrust
from edgewise.route.minimise import default_detectors
from edgewise.route.offline import (
    DrainReport,
    Entry,
    OfflineQueue,
    QueueClock,
    Queued,
    Refused,
    State,
)
from edgewise.route.policy import CloudUse, ConsentRule, MinimiseRule, Policy, TaskRule
from edgewise.route.policy_file import LoadedPolicy
from edgewise.route.records import Recorder
from edgewise.route.service import Router
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.draining import drain_queue, enqueue_request, open_queue

RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0: closing sends RST
PURPOSE = "summaries"
DETECTORS = default_detectors(contacts=("Grace Hopper",))


class Effects:
    """What a server did, by idempotency key; one that deduplicates acts once per key."""

    def __init__(self, *, dedupe: bool) -> None:
        self.dedupe = dedupe
        self.done: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.bodies: list[bytes] = []

    def act(self, exchange: Exchange) -> str:
        key = (
            exchange.headers.get("idempotency-key")
            or json.loads(exchange.body)["messages"][-1]["content"]
        )
        self.asked[key] += 1
        self.bodies.append(exchange.body)
        if not self.dedupe or not self.done[key]:
            self.done[key] += 1
        return key

    def answer(self, exchange: Exchange) -> None:
        """Act, and answer with the last words of the user's."""
        self.act(exchange)
        said = json.loads(exchange.body)["messages"][-1]["content"]
        chunked(delta(f"Short: {said}"), FINISH, usage(11, 7), DONE)(exchange)

    def reset(self, exchange: Exchange) -> None:
        """Act, and tear the connection down."""
        self.act(exchange)
        reset(exchange)

    def then(self, answer: Answer) -> Answer:
        """Act, and answer something else."""

        def both(exchange: Exchange) -> None:
            self.act(exchange)
            answer(exchange)

        return both


def reset(exchange: Exchange) -> None:
    """Tear the connection down; no good-bye of TLS goes before it."""
    with contextlib.suppress(OSError):
        exchange.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        exchange.sock.shutdown(socket.SHUT_RDWR)


def policy_for(place: Destination, **fields: Any) -> Policy:
    far = (place.name,)
    use = CloudUse.WHEN_NEEDED
    told: dict[str, Any] = {
        "name": "test",
        "tasks": (
            TaskRule(name="summarise", cloud=use, destinations=far, delay_safe=True),
            TaskRule(name="chat", cloud=use, destinations=far),
        ),
        "destinations": (place,),
        "consent": (ConsentRule(standing_days=7),),
        "minimise": (MinimiseRule(fields=("messages",)),),
    }
    return Policy(**(told | fields))


class World:
    """One device and one server; ``policy`` can be replaced at any time."""

    def __init__(self, home: Home, server: RawServer, ca_file: Path, **fields: Any) -> None:
        self.context = Context(home)
        self.ledger = ConsentLedger(home)
        told: dict[str, Any] = {
            "purpose": PURPOSE, "basis": Basis.CONSENT, "region": "EU", "retention_days": 0,
            "idempotent": True, "secret": None,
        }  # fmt: skip
        self.place = at(server, ca_file, **(told | fields))
        self.policy = policy_for(self.place)
        self.link = LinkState.ONLINE
        self.trust = PolicyTrust.SIGNED
        self.ahead_s = 0.0

    @property
    def router(self) -> Router:
        loaded = LoadedPolicy(policy=self.policy, trust=self.trust, reason="a key")
        recorder = Recorder(self.context.home, self.policy, busy_timeout_s=60)
        return Router(loaded, self.ledger, recorder=recorder)

    @property
    def queue(self) -> OfflineQueue:
        """The queue, seen from later: ``ahead_s`` seconds from now."""
        found = open_queue(self.context, self.policy)
        found.clock = QueueClock(
            wall=lambda: time.time() + self.ahead_s,
            boot=lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + self.ahead_s,
        )
        return found

    def scope(self, data_class: str = "personal", destination: str = "far") -> ConsentScope:
        return ConsentScope(
            feature=self.policy.feature,
            data_class=data_class,
            destination=destination,
            purpose=PURPOSE,
        )

    def agree(self, uses: int = 1, data_class: str = "personal") -> None:
        """Give consent: one grant holds at a time, and it is for one use, or for all of them."""
        until = dt.datetime.now(dt.UTC) + dt.timedelta(days=2)
        self.ledger.grant(
            self.scope(data_class),
            self.policy.terms(self.place.name),
            origin=Origin.API,
            once=uses == 1,
            expires_at=None if uses == 1 else until,
            standing_allowed=uses != 1,
        )

    def add(self, text: str = "A long text.", **options: Any) -> Queued | Refused:
        names = ("task", "data_class", "stop")
        asked = {name: options.pop(name) for name in names if name in options}
        told: dict[str, Any] = {"task": "summarise", "data_class": "personal"} | asked
        message = Message(role="user", content=text)
        request = Request(messages=(message,), max_tokens=50, **told)
        return enqueue_request(
            self.context, self.router, request, options.pop("destination", "far"), DETECTORS,
            **options,
        )  # fmt: skip

    def queued(self, text: str = "A long text.", **options: Any) -> str:
        found = self.add(text, **options)
        assert isinstance(found, Queued), found
        return found.entry.operation.operation_id

    def drain(self, **options: Any) -> DrainReport:
        router = self.router
        client = CloudClient(
            router.gate,
            spend=SpendLedger(self.context.home),
            secrets=Secrets(env={}, keyring=lambda _service, _name: None),
        )
        told: dict[str, Any] = {"link": lambda: self.link, "queue": self.queue} | options
        return drain_queue(self.context, router, client, **told)

    def later(self, seconds: float = 7200.0) -> None:
        self.ahead_s += seconds

    def entry(self, name: str) -> Entry:
        return self.queue.entry(name)

    def state(self, name: str) -> State:
        return self.entry(name).state

    def change(self, **fields: Any) -> None:
        """Declare the destination otherwise."""
        self.place = msgspec.structs.replace(self.place, **fields)
        self.policy = msgspec.structs.replace(self.policy, destinations=(self.place,))
