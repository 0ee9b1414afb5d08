"""A server under a policy, with a destination behind TLS and a ledger on disk."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
from tests.unit.core.values import DEPLOYMENT
from tests.unit.route.calibrate.made import made_cases
from tests.unit.route.cloud.servers import Answer, Authority, RawServer
from tests.unit.serve.fakes import FINGERPRINT, MODEL, FakeSession, Served, serving
from tests.unit.workflow.worlds import World, echo

from edgewise.route.calibrate import (
    EVIDENCE_KIND,
    CalibrateSettings,
    calibrate_cases,
    sections_of,
)
from edgewise.route.facts import PolicyTrust, RouteEvidence
from edgewise.route.policy import CloudUse, TaskRule
from edgewise.serve.elsewhere import Routing
from edgewise.store import Home
from edgewise.workflow.judging import Judge

MAIL = "ada.lovelace@example.org"
LETTER = f"Write to {MAIL} and to Grace Hopper, please."
PERSONAL = {"data_class": "personal"}


@dataclass
class Place:
    """The server under test, its destination and what they keep."""

    served: Served
    far: RawServer
    world: World
    session: FakeSession

    def chat(self, text: str = LETTER, **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", {})
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 50}
        body |= {"edgewise": PERSONAL} | fields
        url = f"{self.served.url}/v1/chat/completions"
        return httpx.post(url, json=body, headers=headers, timeout=20)

    def question(self, text: str = LETTER, **fields: Any) -> dict[str, Any]:
        reply = self.chat(text, **fields)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (403, "consent-required"), reply.text
        asked: dict[str, Any] = error["edgewise"]["question"]
        return asked

    def answer(self, name: str, choice: str = "once", **more: Any) -> httpx.Response:
        headers = more.pop("headers", {})
        url = f"{self.served.url}/edgewise/v1/consent/{name}"
        return httpx.post(url, json={"choice": choice, **more}, headers=headers, timeout=20)

    def decisions(self) -> list[tuple[str, str]]:
        return [(str(one.state), one.origin) for one in self.world.ledger.entries()]

    def page(self, name: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.served.url}/edgewise/consent/{name}", headers=headers, timeout=20)

    def form(self, name: str, fields: dict[str, str], **headers: str) -> httpx.Response:
        """Send a form as a browser does; a header of ``None`` is left out."""
        told = {"origin": self.served.url, "sec-fetch-site": "same-origin"} | {
            key.replace("_", "-"): value for key, value in headers.items()
        }
        return httpx.post(
            f"{self.served.url}/edgewise/consent/{name}", data=fields, headers=told, timeout=20
        )

    def token(self, name: str) -> str:
        found = re.search(r'name="token" value="([^"]+)"', self.page(name).text)
        assert found is not None
        return found[1]


ESCALATES = (
    TaskRule(name="chat", cloud=CloudUse.WHEN_NEEDED, destinations=("far",), escalate=True),
)


def calibrate(world: World, slice_by: str | None = None) -> str:
    """Have a calibration that stands judge the answers; return its digest.

    With ``slice_by``, all of its cases are of the slice ``chat`` by that key.
    """
    slices = {} if slice_by is None else {slice_by: "chat"}
    cases = tuple(
        msgspec.structs.replace(case, signals={"entropy_mean": case.signals["u"]}, slices=slices)
        for case in made_cases(500, 1, fingerprint=DEPLOYMENT.fingerprint)
    )
    report = calibrate_cases(
        cases,
        CalibrateSettings(bootstrap_rounds=0, slice_by=slice_by),
        dataset_sha256="0" * 64,
        sections=sections_of(DEPLOYMENT),
    )
    assert report.enabled
    bundle: Any = SimpleNamespace(deployment=DEPLOYMENT)
    world.hybrid.judged = Judge(world.context, bundle, world.policy)
    return world.context.record(EVIDENCE_KIND, DEPLOYMENT.fingerprint, report.evidence)


@contextlib.contextmanager
def routed(
    folder: Path,
    authority: Authority,
    *,
    answer: Answer = echo,
    able: bool = False,
    judged: bool = False,
    slice_by: str | None = None,
    session: FakeSession | None = None,
    serve: dict[str, Any] | None = None,
    **policy: Any,
) -> Iterator[Place]:
    """Run a server whose policy sends personal data, with consent, to a destination.

    With ``able``, this device can answer too, and the policy prefers the destination. With
    ``judged``, it can, and a calibration judges its answers: it keeps those with little entropy.
    ``slice_by`` is the key of that calibration's slices.
    """
    with RawServer(answer, tls=authority.context()).running() as far:
        if able:
            task = TaskRule(name="chat", cloud=CloudUse.PREFERRED, destinations=("far",))
            policy = {"tasks": (task,)} | policy
        if judged:
            policy = {"tasks": ESCALATES} | policy
        world = World(Home(folder), far, authority, **policy)
        if judged:
            calibrate(world, slice_by)
        if able or judged:
            world.hybrid._known = _able  # type: ignore[assignment]
        lane = session or FakeSession()
        routing = Routing(feature=world.hybrid, ledger=world.ledger)
        with serving(lane, routing=routing, **(serve or {})) as served:
            yield Place(served, far, world, lane)


def _able(*, resident: bool) -> RouteEvidence:
    del resident
    return RouteEvidence(
        fingerprint=FINGERPRINT,
        qualified=True,
        resident=True,
        context_length=2048,
        trust=PolicyTrust.SIGNED,
    )
