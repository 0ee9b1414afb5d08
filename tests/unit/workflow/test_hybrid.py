"""A whole request: routed, minimised, agreed to, sent over TLS, restored; or kept here."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.unit.route.cloud.servers import (
    Authority,
    RawServer,
    chunked,
    delta,
    status,
)
from tests.unit.workflow.worlds import SECRET_KEY, World, echo

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import Completed, Declined, Failed, Route
from edgewise.core.quantity import Unknown
from edgewise.core.request import ContextPolicy, Message, Request
from edgewise.core.signals import Escalation
from edgewise.core.state import DeviceState, LinkState
from edgewise.core.tools import Tool
from edgewise.route.cloud import CancelToken, Secrets
from edgewise.route.consent import Origin, record_choice
from edgewise.route.consent.prompt import Choice
from edgewise.route.consent.scopes import ConsentScope, ConsentState
from edgewise.route.destinations import Terms
from edgewise.route.facts import PolicyTrust, RouteEvidence
from edgewise.route.policy import CloudUse, Policy, TaskRule
from edgewise.route.policy_file import LoadedPolicy
from edgewise.store import Home
from edgewise.workflow import routing
from edgewise.workflow.context import Context
from edgewise.workflow.hybrid import hybrid_over, open_hybrid
from edgewise.workflow.opening import open_session
from edgewise.workflow.serving import open_served

MAIL = "ada.lovelace@example.org"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[RawServer]:
    with RawServer(echo, tls=authority.context()).running() as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, server: RawServer, authority: Authority) -> World:
    return World(Home(tmp_path / "home"), server, authority)


def asked(text: str, data_class: str = "personal", **fields) -> Request:
    fields.setdefault("max_tokens", 50)
    return Request(messages=(Message(role="user", content=text),), data_class=data_class, **fields)


LETTER = asked(f"Write to {MAIL} and to Grace Hopper, please.")


def test_nothing_leaves_before_somebody_agreed(world: World, server: RawServer) -> None:
    outcome = world.hybrid.ask(LETTER)
    assert isinstance(outcome, Declined)
    assert outcome.provenance.route.consent is not None
    question = world.hybrid.question(LETTER)
    assert question is not None
    told = msgspec.json.encode(question).decode()
    assert MAIL not in told
    assert "Hopper" not in told
    assert question.reasons
    assert not any("consent" in reason for reason in question.reasons)
    assert {(r.kind, r.count) for r in question.replaced} == {("email", 1), ("contact", 1)}
    assert server.connections == 0


def test_what_was_agreed_to_leaves_minimised_and_comes_back_whole(
    world: World, server: RawServer
) -> None:
    world.agree(LETTER)
    heard: list[str] = []
    outcome = world.hybrid.ask(LETTER, on_text=heard.append)
    assert isinstance(outcome, Completed), outcome
    assert outcome.text == f"You wrote: {LETTER.messages[0].content}"
    assert "".join(heard) == outcome.text
    (exchange,) = server.exchanges
    assert MAIL.encode() not in exchange.body
    assert b"Hopper" not in exchange.body
    assert b"personal" not in exchange.body
    route = outcome.provenance.route
    assert (route.route, route.destination) == (Route.CLOUD, "far")
    assert outcome.provenance.runtime == "cloud:far"
    assert (outcome.tokens.prompt, outcome.tokens.completion) == (11, 7)
    assert isinstance(outcome.timings.prefill_ms, Unknown)
    # One consent, one use.
    again = world.hybrid.ask(LETTER)
    assert isinstance(again, Declined)
    assert server.connections == 1


def test_a_standing_consent_holds_for_its_scope_only(world: World, server: RawServer) -> None:
    until = dt.datetime.now(dt.UTC) + dt.timedelta(days=6)
    world.agree(LETTER, Choice.UNTIL, until=until)
    for _ in range(2):
        assert isinstance(world.hybrid.ask(LETTER), Completed)
    other = asked("x", "sensitive")
    assert isinstance(world.hybrid.ask(other), Declined)
    assert server.connections == 2


@pytest.mark.parametrize("data_class", ["local-only", "unheard-of"])
def test_what_stays_is_not_even_asked_about(
    world: World, server: RawServer, data_class: str
) -> None:
    request = asked("x", data_class)
    assert isinstance(world.hybrid.ask(request), Declined)
    assert world.hybrid.question(request) is None
    assert server.connections == 0


def test_a_request_that_needs_an_undeclared_field_is_declined_with_its_name(
    world: World, server: RawServer
) -> None:
    tool = Tool(name="mail", description="Sends a mail", parameters='{"type": "object"}')
    request = msgspec.structs.replace(LETTER, tools=(tool,))
    world.agree(LETTER)
    outcome = world.hybrid.ask(request)
    assert isinstance(outcome, Declined)
    assert "tools" in outcome.reasons[0]
    assert server.connections == 0
    # The consent was not used up by what was never sent.
    assert isinstance(world.hybrid.ask(LETTER), Completed)


def test_a_deadline_that_no_destination_is_asked_with_uses_up_no_consent(
    world: World, server: RawServer
) -> None:
    late = msgspec.structs.replace(LETTER, deadline_s=1e6)
    assert world.hybrid.question(late) is None  # nobody is asked for what would not be sent
    world.agree(LETTER)
    outcome = world.hybrid.ask(late)
    assert isinstance(outcome, Declined)
    assert "deadline_s" in outcome.reasons[0]
    assert server.connections == 0
    assert isinstance(world.hybrid.ask(LETTER), Completed)


def test_a_context_policy_is_not_dropped_on_the_way(world: World, server: RawServer) -> None:
    world.agree(LETTER)
    request = msgspec.structs.replace(LETTER, context_policy=ContextPolicy.SLIDING_WINDOW)
    outcome = world.hybrid.ask(request)
    assert isinstance(outcome, Declined)
    assert "sliding-window" in outcome.reasons[0]
    assert server.connections == 0


def test_a_server_that_fails_is_a_failure_and_nothing_is_tried_elsewhere(
    world: World, server: RawServer
) -> None:
    server.answers = [status(503)]
    world.agree(LETTER)
    outcome = world.hybrid.ask(LETTER)
    assert isinstance(outcome, Failed)
    assert outcome.error["type"] == "RemoteError"
    assert MAIL not in json.dumps(outcome.error)
    assert server.connections == 1


def test_an_answer_that_breaks_off_is_no_answer(world: World, server: RawServer) -> None:
    server.answers = [chunked(delta("Dear "), whole=False)]
    world.agree(LETTER)
    outcome = world.hybrid.ask(LETTER)
    assert isinstance(outcome, Failed)
    assert outcome.partial_text == "Dear "
    assert server.connections == 1


def test_a_limit_of_spending_ends_it_before_anything_is_sent(
    tmp_path: Path, server: RawServer, authority: Authority
) -> None:
    world = World(Home(tmp_path / "poor"), server, authority, limit=0)
    world.agree(LETTER)
    outcome = world.hybrid.ask(LETTER)
    assert isinstance(outcome, Failed)
    assert server.connections == 0


def test_what_was_cancelled_before_it_is_sent_uses_up_no_consent(
    world: World, server: RawServer
) -> None:
    world.agree(LETTER)
    cancel = CancelToken()
    cancel.cancel()
    outcome = world.hybrid.send(LETTER, cancel=cancel)
    assert isinstance(outcome, Failed)
    assert outcome.error["code"] == "cloud-cancelled"
    assert server.connections == 0
    assert isinstance(world.hybrid.send(LETTER), Completed)


@pytest.mark.parametrize("use", [CloudUse.WHEN_NEEDED, CloudUse.PREFERRED])
@pytest.mark.parametrize("agreed", [False, True])
def test_the_ledger_is_read_only_where_it_can_change_the_route(
    tmp_path: Path,
    server: RawServer,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    use: CloudUse,
    *,
    agreed: bool,
) -> None:
    task = TaskRule(name="chat", cloud=use, destinations=("far",))
    world = World(Home(tmp_path / "able"), server, authority, tasks=(task,))
    if agreed:
        world.agree(LETTER)
    world.hybrid._known = lambda *, resident: RouteEvidence(  # type: ignore[assignment]
        fingerprint="f0" * 32, qualified=True, resident=True, trust=PolicyTrust.SIGNED
    )
    asked_about: list[object] = []
    state = world.ledger.state

    def noted(scope: ConsentScope, terms: Terms, now: float | None = None) -> ConsentState:
        asked_about.append(scope)
        return state(scope, terms, now)

    monkeypatch.setattr(world.ledger, "state", noted)
    found = world.hybrid.decide(LETTER)
    assert bool(asked_about) is (use is CloudUse.PREFERRED)
    whole = world.hybrid.router.decide(
        LETTER, world.hybrid._state(), world.hybrid._evidence(LETTER)
    )
    assert found.route is whole.route
    assert (found.route is Route.CLOUD) is (agreed and use is CloudUse.PREFERRED)


def test_evidence_is_read_now_and_then_and_the_policys_end_is_always_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reads = [100.0], []
    policy = Policy(name="p", tasks=(TaskRule(name="chat"),))
    loaded = LoadedPolicy(policy=policy, trust=PolicyTrust.SIGNED, reason="a key")
    monkeypatch.setattr("edgewise.workflow.routing.time.monotonic", lambda: now[0])
    real = routing.route_evidence

    def noted(context: Context, bundle: Bundle | None, policy: LoadedPolicy) -> RouteEvidence:
        reads.append(1)
        return real(context, bundle, policy)

    monkeypatch.setattr(routing, "route_evidence", noted)
    known = routing.EvidenceReader(Context(Home(tmp_path / "home")), None, loaded)
    assert known(resident=True).resident
    assert not known(resident=False).resident
    assert len(reads) == 1
    monkeypatch.setattr(routing, "in_force", lambda _policy, _now: False)
    assert known(resident=False).policy_expired
    assert len(reads) == 1
    now[0] += 5.1
    known(resident=False)
    assert len(reads) == 2


def test_without_destinations_no_client_is_made(tmp_path: Path) -> None:
    with open_hybrid(Context(Home(tmp_path / "home"))) as hybrid:
        outcome = hybrid.ask(asked("x", "public"))
    assert isinstance(outcome, Declined)
    assert "no deployment is active on this device" in outcome.reasons


ESCALATES = (
    TaskRule(name="chat", cloud=CloudUse.WHEN_NEEDED, destinations=("far",), escalate=True),
)
DOUBTED = Escalation(
    judged=True, suggested=True, reasons=("its score is 0.7",), score=0.7, evidence="e" * 64
)


@pytest.mark.model
@pytest.mark.slow
def test_a_device_that_can_answer_does_and_a_doubted_answer_is_offered(
    ready_home: Path, server: RawServer, authority: Authority
) -> None:
    world = World(Home(ready_home), server, authority, tasks=ESCALATES)
    context, router = world.context, world.hybrid.router
    session = open_session(context, router=router)
    with hybrid_over(context, router, session, link=lambda: LinkState.ONLINE) as hybrid:
        hybrid.client = world.hybrid.client  # whose key is this test's
        request = asked("Say hello.", max_tokens=8)
        assert hybrid.decide(request).route is Route.LOCAL
        first = hybrid.ask(request)
        assert isinstance(first, Completed)
        assert first.provenance.route.route is Route.LOCAL
        assert first.signals is None  # no calibration stands that would need them
        assert first.escalation is not None
        assert not first.escalation.judged  # nothing was calibrated, so nothing is suggested
        told = hybrid.ask(msgspec.structs.replace(request, signals=True))
        assert isinstance(told, Completed)
        assert told.signals is not None
        assert hybrid.question(request, after=first) is None
        assert isinstance(hybrid.ask(request, after=first), Completed)
        assert server.connections == 0

        doubted = msgspec.structs.replace(first, escalation=DOUBTED)
        question = hybrid.question(request, after=doubted)
        assert question is not None
        again = hybrid.ask(request, after=doubted)  # nobody agreed: it is kept here, and says so
        assert isinstance(again, Completed)
        assert again.provenance.route.route is Route.LOCAL
        assert "the answer is not verified: its score is 0.7" in again.provenance.route.reasons
        assert server.connections == 0
        record_choice(world.ledger, question, Choice.ONCE, origin=Origin.API)
        elsewhere = hybrid.ask(request, after=doubted)
        assert isinstance(elsewhere, Completed)
        assert elsewhere.provenance.route.destination == "far"
        assert server.connections == 1


@pytest.mark.model
@pytest.mark.slow
def test_a_server_has_a_feature_only_under_a_policy(ready_home: Path, tmp_path: Path) -> None:
    context = Context(Home(ready_home))
    sessions, feature, _ = open_served(context)
    assert feature is None
    for session in sessions:
        session.close()
    path = tmp_path / "mine.json"
    path.write_bytes(msgspec.json.encode(Policy(name="mine", tasks=(TaskRule(name="chat"),))))
    sessions, feature, _ = open_served(context, policy=path)
    request = asked("Say hello.", "local-only", max_tokens=4)
    try:
        assert feature is not None
        assert feature.decide(request).route is Route.LOCAL
        outcome = sessions[0].ask(request)
        assert isinstance(outcome, Completed)
        assert outcome.provenance.policy_version.startswith("mine")
        assert isinstance(sessions[0].ask(asked("x", "unheard-of")), Declined)
        assert isinstance(feature.send(request), Declined)
    finally:
        for session in sessions:
            session.close()


def test_a_state_is_read_a_few_times_a_second_and_says_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reads = [100.0], []
    monkeypatch.setattr("edgewise.workflow.routing.time.monotonic", lambda: now[0])

    def noted(folder: Path) -> DeviceState:
        reads.append(folder)
        return DeviceState(sources={"power": "made up"})

    monkeypatch.setattr(routing, "read_state", noted)
    state = routing.StateReader(Context(Home(tmp_path / "home")))
    assert state().sources == {"power": "made up"}
    now[0] += 0.15
    assert state().sources == {"power": "made up", "age": "read 150 ms ago"}
    assert len(reads) == 1
    now[0] += 0.1
    assert "age" not in state().sources
    assert len(reads) == 2


@pytest.mark.parametrize("use", list(CloudUse))
@pytest.mark.parametrize("able", [False, True])
@pytest.mark.parametrize("doubt", [None, DOUBTED])
def test_deciding_lazily_leads_to_the_same_place(
    tmp_path: Path,
    server: RawServer,
    authority: Authority,
    use: CloudUse,
    doubt: Escalation | None,
    *,
    able: bool,
) -> None:
    places = () if use is CloudUse.NEVER else ("far",)
    task = TaskRule(name="chat", cloud=use, destinations=places, escalate=bool(places))
    world = World(Home(tmp_path / "home"), server, authority, tasks=(task,))
    hybrid, router = world.hybrid, world.hybrid.router
    hybrid._known = lambda *, resident: RouteEvidence(  # type: ignore[assignment]
        fingerprint="f0" * 32 if able else None, qualified=True, resident=True
    )
    for agreed in (False, True):
        if agreed and (question := hybrid.question(LETTER, after=doubt)) is not None:
            record_choice(world.ledger, question, Choice.ONCE, origin=Origin.API)
        state, evidence = hybrid._state(), hybrid._evidence(LETTER, doubt)
        lazily = router.decide_lazily(LETTER, state, evidence)
        whole = router.decide(LETTER, state, evidence)
        assert (lazily.route, lazily.destination, lazily.reasons, lazily.consent) == (
            (whole.route, whole.destination, whole.reasons, whole.consent)
        )
        told = [rule.reason for rule in lazily.rules if rule.rule == "consent@far"]
        unread = any("nobody looked" in reason for reason in told)
        assert unread is (able and doubt is None and use is CloudUse.WHEN_NEEDED)


def test_signals_that_a_destination_does_not_tell_are_an_event(world: World) -> None:
    world.agree(LETTER)
    outcome = world.hybrid.ask(msgspec.structs.replace(LETTER, signals=True))
    assert isinstance(outcome, Completed)
    assert outcome.signals is None
    assert "signals-unavailable" in [event.code for event in outcome.events]


# -- what is missing on this device costs no consent


def lacking(world: World, request: Request) -> str:
    """Ask in vain; return the code of what is missing, with the consent unused."""
    outcome = world.hybrid.ask(request)
    assert isinstance(outcome, Failed), outcome
    (entry,) = world.ledger.entries()
    assert (entry.state, entry.uses) == ("granted", 0)
    return str(outcome.error["code"])


def test_a_missing_key_uses_up_no_consent(world: World, server: RawServer) -> None:
    world.agree(LETTER)
    client = world.hybrid.client
    assert client is not None
    client._secrets = Secrets(env={}, keyring=lambda _service, _name: None)
    assert lacking(world, LETTER) == "secret-missing"
    client._secrets = Secrets(env={}, keyring=lambda _service, _name: SECRET_KEY)
    assert isinstance(world.hybrid.ask(LETTER), Completed)
    assert len(server.exchanges) == 1


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("ca_file", "/nowhere/ca.pem", "cloud-ca-unreadable"),
        ("proxy", "ftp://proxy.example", "cloud-proxy-unsupported"),
    ],
)
def test_settings_that_cannot_be_used_use_up_no_consent(
    tmp_path: Path,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
    value: str,
    code: str,
) -> None:
    with RawServer(echo, tls=authority.context()).running() as server:
        world = World(Home(tmp_path / "home"), server, authority)
        far = msgspec.structs.replace(world.policy.destinations[0], url="https://far.example/v1")
        if field == "proxy":  # a policy with such a one is refused, and an environment is not
            monkeypatch.setenv("HTTPS_PROXY", value)
        else:
            far = msgspec.structs.replace(far, ca_file=value)
        policy = msgspec.structs.replace(world.policy, destinations=(far,))
        loaded = msgspec.structs.replace(world.hybrid.router.loaded, policy=policy)
        world.hybrid.router.loaded = loaded
        world.agree(LETTER)
        assert lacking(world, LETTER) == code
        assert server.connections == 0


def test_a_missing_library_uses_up_no_consent(
    world: World, server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.agree(LETTER)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "openai.resources.chat.completions", None)
        assert lacking(world, LETTER) == "cloud-extra-missing"
    assert server.connections == 0


def test_loading_the_sdk_is_no_part_of_the_deadline() -> None:
    """In a fresh process whose import of the SDK takes longer than the deadline."""
    done = subprocess.run(
        [sys.executable, "-c", SLOW], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True", "True"]


SLOW = """
import sys, tempfile, time
from pathlib import Path

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "openai.resources.chat.completions":
            time.sleep(1.0)

sys.meta_path.insert(0, Slow())
from edgewise.route.cloud import CloudClient, Secrets, SpendLedger
from edgewise.route.destinations import Destination
from edgewise.route.permits import PermitOffice
from edgewise.store import Home

client = CloudClient(PermitOffice().gate, spend=SpendLedger(Home(Path(tempfile.mkdtemp()))),
                     secrets=Secrets(env={"EDGEWISE_SECRET_KEY": "k"}))
place = Destination(name="far", url="http://127.0.0.1:9/v1", model="m", secret="key")
print("openai" in sys.modules)
means = client.means(place, deadline_s=0.9)
print("openai.resources.chat.completions" in sys.modules)
print(means.took_s < 0.9)
"""
