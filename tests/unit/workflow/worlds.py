"""A feature with a real server behind TLS, as one device holds it."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.route.cloud.servers import (
    DONE,
    FINISH,
    Authority,
    Exchange,
    RawServer,
    at,
    chunked,
    delta,
    usage,
)

from edgewise.core.request import Request
from edgewise.core.state import LinkState
from edgewise.route.cloud import CloudClient, Secrets, SpendLedger
from edgewise.route.consent import Choice, ConsentLedger, Origin, record_choice
from edgewise.route.destinations import Basis, Price
from edgewise.route.facts import PolicyTrust
from edgewise.route.minimise import default_detectors
from edgewise.route.policy import CloudUse, ConsentRule, MinimiseRule, Policy, TaskRule
from edgewise.route.policy_file import LoadedPolicy
from edgewise.route.records import Recorder
from edgewise.route.service import Router
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.hybrid import Hybrid

SECRET_KEY = "k-4711"


def echo(exchange: Exchange) -> None:
    """Answer with the user's words, in small pieces: placeholders come back split."""
    asked = json.loads(exchange.body)
    text = f"You wrote: {asked['messages'][-1]['content']}"
    pieces = [delta(text[i : i + 3]) for i in range(0, len(text), 3)]
    chunked(*pieces, FINISH, usage(11, 7), DONE)(exchange)


class World:
    """A policy, its ledger, and the feature over them; the device itself has no deployment."""

    def __init__(self, home: Home, server: RawServer, authority: Authority, **fields: Any) -> None:
        self.context = Context(home)
        self.ledger = ConsentLedger(home)
        place = at(
            server,
            authority.file,
            purpose="help that needs more",
            basis=Basis.CONSENT,
            region="EU",
            retention_days=0,
            price=Price(
                currency="EUR",
                input_per_million=1,
                output_per_million=1,
                daily_limit=fields.pop("limit", 5),
            ),
        )
        classify = fields.pop("classify", None)
        self.policy = Policy(
            **{
                "name": "test",
                "tasks": (
                    TaskRule(name="chat", cloud=CloudUse.WHEN_NEEDED, destinations=("far",)),
                ),
                "destinations": (place,),
                "consent": (ConsentRule(standing_days=7),),
                "minimise": (MinimiseRule(fields=("messages",)),),
            }
            | fields
        )
        loaded = LoadedPolicy(policy=self.policy, trust=PolicyTrust.SIGNED, reason="a key")
        self.recorder = Recorder(home, self.policy, busy_timeout_s=60)
        router = Router(loaded, self.ledger, recorder=self.recorder, classify=classify)
        client = CloudClient(
            router.gate,
            spend=SpendLedger(home),
            secrets=Secrets(env={}, keyring=lambda _service, _name: SECRET_KEY),
        )
        self.hybrid = Hybrid(
            self.context,
            router,
            bundle=None,
            session=None,
            client=client,
            detectors=default_detectors(contacts=("Grace Hopper",)),
            link=lambda: LinkState.ONLINE,
        )

    def agree(self, request: Request, choice: Choice = Choice.ONCE, **more: Any) -> None:
        question = self.hybrid.question(request)
        assert question is not None
        record_choice(self.ledger, question, choice, origin=Origin.API, **more)
