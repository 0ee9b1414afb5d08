"""The router at work: consent asked, used up at the moment of sending, permits minted."""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path

import msgspec
import pytest
from tests.unit.route.policies import WHOLE

from edgewise.core.outcome import Route
from edgewise.core.request import Message, Request
from edgewise.core.state import DeviceState, LinkState
from edgewise.errors import IntegrityError
from edgewise.route import RouteEvidence
from edgewise.route.consent import ConsentLedger, ConsentScope, Origin
from edgewise.route.destinations import Basis, Destination, Terms
from edgewise.route.facts import PolicyTrust
from edgewise.route.policy import ConsentRule
from edgewise.route.policy_file import LoadedPolicy, parse_policy
from edgewise.route.service import Permitted, Router
from edgewise.store import Home
from edgewise.store.database import STATE_DATABASE

NOW = dt.datetime(2026, 12, 1, tzinfo=dt.UTC).timestamp()
ONLINE = DeviceState(link=LinkState.ONLINE)
NOTHING = RouteEvidence()  # no local deployment: the cloud is needed
PAYLOAD = b'{"messages":[]}'
SCOPE = ConsentScope(
    feature="support-assistant",
    data_class="ticket",
    destination="acme",
    purpose="drafts that need a larger model",
)

TERMS = Terms(
    name="acme",
    url="https://api.acme.example/v1",
    model="acme-large",
    purpose="drafts that need a larger model",
    region="EU",
    retention_days=0,
    basis=Basis.CONSENT,
    fields=("messages",),
)


def asked(data_class: str = "ticket") -> Request:
    return Request(
        messages=(Message(role="user", content="x"),), task="draft", data_class=data_class
    )


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> ConsentLedger:
    return ConsentLedger(Home(tmp_path / "home"), clock=clock, busy_timeout_s=5)


@pytest.fixture
def router(tmp_path: Path, ledger: ConsentLedger, clock: Clock) -> Router:
    path = tmp_path / "policy.toml"
    path.write_text(WHOLE, encoding="utf-8")
    loaded = LoadedPolicy(policy=parse_policy(path), trust=PolicyTrust.SIGNED, reason="a key")
    return Router(loaded, ledger, clock=clock)


def send(router: Router, data_class: str = "ticket") -> Permitted:
    return router.permit(asked(data_class), ONLINE, NOTHING, PAYLOAD, destination="acme")


def test_a_consent_is_asked_for_given_and_used_once(router: Router, ledger: ConsentLedger) -> None:
    first = send(router)
    assert first.permit is None
    assert first.decision.route is Route.DECLINE
    assert first.decision.consent is not None
    assert msgspec.to_builtins(first.decision.consent) == msgspec.to_builtins(SCOPE)
    grant = ledger.grant(SCOPE, TERMS, origin=Origin.CLI)
    assert router.decide(asked(), ONLINE, NOTHING).route is Route.CLOUD
    assert router.decide(asked(), ONLINE, NOTHING).route is Route.CLOUD  # looking uses nothing up
    sent = send(router)
    assert sent.decision.route is Route.CLOUD
    assert sent.permit is not None
    assert sent.permit.consent == grant.id
    place = router.policy.places["acme"]
    router.gate.redeem(sent.permit, place, PAYLOAD)
    with pytest.raises(IntegrityError, match="used before"):
        router.gate.redeem(sent.permit, place, PAYLOAD)
    assert send(router).decision.route is Route.DECLINE


def test_what_was_prepared_for_another_destination_uses_no_consent_up(
    router: Router, ledger: ConsentLedger
) -> None:
    ledger.grant(SCOPE, TERMS, origin=Origin.CLI)
    found = router.permit(asked(), ONLINE, NOTHING, PAYLOAD, destination="elsewhere")
    assert found.permit is None
    assert found.decision.route is Route.DECLINE
    assert "acme" in found.decision.reasons[0]
    assert send(router).permit is not None


@pytest.mark.parametrize("meanwhile", ["the policy ended", "the network went"])
def test_it_is_decided_again_after_what_was_waited_for(
    router: Router, ledger: ConsentLedger, clock: Clock, meanwhile: str
) -> None:
    """Whoever unlocks a keyring may take minutes for it."""

    def ready(place: Destination) -> DeviceState | None:
        assert place.name == "acme"
        if meanwhile == "the policy ended":
            clock.now += 365 * 86_400 * 2000.0
            return None
        return msgspec.structs.replace(ONLINE, link=LinkState.OFFLINE)

    ledger.grant(SCOPE, TERMS, origin=Origin.CLI)
    found = router.permit(asked(), ONLINE, NOTHING, PAYLOAD, destination="acme", ready=ready)
    assert found.permit is None
    assert found.decision.route is Route.DECLINE
    assert str(ledger.state(SCOPE, TERMS).verdict) == "granted"  # it was not used up


def test_a_permit_is_for_these_bytes_only(router: Router, ledger: ConsentLedger) -> None:
    ledger.grant(SCOPE, TERMS, origin=Origin.CLI)
    permit = send(router).permit
    assert permit is not None
    with pytest.raises(IntegrityError) as caught:
        router.gate.redeem(permit, router.policy.places["acme"], PAYLOAD + b" ")
    assert caught.value.context["why"] == "payload"


def test_another_routers_permit_is_refused(
    router: Router, ledger: ConsentLedger, clock: Clock
) -> None:
    ledger.grant(SCOPE, TERMS, origin=Origin.CLI)
    permit = send(Router(router.loaded, ledger, clock=clock)).permit
    assert permit is not None
    with pytest.raises(IntegrityError) as caught:
        router.gate.redeem(permit, router.policy.places["acme"], PAYLOAD)
    assert caught.value.context["why"] == "altered"


def test_of_many_at_once_one_sends(router: Router, ledger: ConsentLedger) -> None:
    ledger.grant(SCOPE, TERMS, origin=Origin.CLI)
    start, found = threading.Barrier(8), []

    def work() -> None:
        start.wait()
        found.append(send(router))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each.permit is not None for each in found) == 1
    late = [each.decision for each in found if each.permit is None]
    assert {decision.route for decision in late} == {Route.DECLINE}
    assert all(decision.reasons for decision in late)


@pytest.mark.parametrize("data_class", ["local-only", "health", "unheard-of"])
def test_no_consent_opens_a_way_for_what_stays(
    router: Router, ledger: ConsentLedger, data_class: str
) -> None:
    if data_class != "local-only":  # for which the ledger takes none
        scope = msgspec.structs.replace(SCOPE, data_class=data_class)
        ledger.grant(scope, TERMS, origin=Origin.CLI)
    found = send(router, data_class)
    assert found.permit is None
    assert found.decision.route is Route.DECLINE
    assert found.decision.consent is None


def test_a_no_is_not_asked_again(router: Router, ledger: ConsentLedger) -> None:
    ledger.deny(SCOPE, origin=Origin.API)
    found = send(router).decision
    assert found.route is Route.DECLINE
    assert found.consent is None
    assert "consent was denied: the user said no" in " ".join(found.reasons)


def test_a_ledger_that_cannot_be_read_allows_nothing(
    router: Router, ledger: ConsentLedger, tmp_path: Path
) -> None:
    ledger.grant(SCOPE, TERMS, origin=Origin.CLI)
    for side in ("", "-wal", "-shm"):
        (tmp_path / "home" / f"{STATE_DATABASE}{side}").unlink(missing_ok=True)
    (tmp_path / "home" / STATE_DATABASE).write_bytes(b"no database" * 999)
    found = send(router)
    assert found.permit is None
    assert found.decision.route is Route.DECLINE
    assert found.decision.consent is None
    assert "whether consent stands is not known" in " ".join(found.decision.reasons)


def test_a_clock_set_back_allows_nothing(
    router: Router, ledger: ConsentLedger, clock: Clock
) -> None:
    until = dt.datetime.fromtimestamp(NOW + 86400, dt.UTC)
    ledger.grant(SCOPE, TERMS, origin=Origin.CLI, expires_at=until)
    assert router.decide(asked(), ONLINE, NOTHING).route is Route.CLOUD
    clock.now = NOW + 90000
    assert router.decide(asked(), ONLINE, NOTHING).route is Route.DECLINE
    clock.now = NOW
    assert send(router).decision.route is Route.DECLINE


def test_a_policy_that_is_over_allows_nothing(
    router: Router, ledger: ConsentLedger, clock: Clock
) -> None:
    ledger.grant(SCOPE, TERMS, origin=Origin.CLI)
    clock.now = dt.datetime(3000, 1, 1, tzinfo=dt.UTC).timestamp()
    found = send(router).decision
    assert found.route is Route.DECLINE
    assert "expired" in " ".join(found.reasons)


def test_an_unsigned_policy_allows_nothing(
    router: Router, ledger: ConsentLedger, clock: Clock
) -> None:
    ledger.grant(SCOPE, TERMS, origin=Origin.CLI)
    unsigned = msgspec.structs.replace(router.loaded, trust=PolicyTrust.UNSIGNED)
    found = send(Router(unsigned, ledger, clock=clock)).decision
    assert found.route is Route.DECLINE
    assert found.consent is None
    assert "not signed" in " ".join(found.reasons)


def _on_contract(router: Router, ledger: ConsentLedger, clock: Clock) -> Router:
    """Return a router under a policy that asks nobody and ends in a month."""
    acme = msgspec.structs.replace(router.policy.places["acme"], basis=Basis.CONTRACT)
    policy = msgspec.structs.replace(
        router.policy,
        destinations=(acme,),
        consent=(ConsentRule(ask=False),),
        expires_at="2027-01-01T00:00:00Z",
    )
    loaded = msgspec.structs.replace(router.loaded, policy=policy)
    return Router(loaded, ledger, clock=clock)


def test_a_policy_that_was_over_once_is_over_when_the_clock_goes_back(
    router: Router, ledger: ConsentLedger, clock: Clock
) -> None:
    contract = _on_contract(router, ledger, clock)
    assert send(contract).permit is not None
    clock.now = NOW + 200 * 86_400
    ledger.expire()
    assert send(contract).decision.route is Route.DECLINE
    clock.now = NOW + 60
    again = send(contract)
    assert again.permit is None
    denied = {rule.rule for rule in again.decision.rules if rule.verdict == "denies"}
    assert {"policy-in-force@acme", "clock@acme"} <= denied
    ledger.trust_clock(origin=Origin.CLI)
    assert send(contract).permit is not None


def test_dates_hold_nothing_open_where_nobody_knows_how_late_it_was(
    router: Router, ledger: ConsentLedger, clock: Clock, tmp_path: Path
) -> None:
    contract = _on_contract(router, ledger, clock)
    database = tmp_path / "home" / STATE_DATABASE
    database.parent.mkdir(exist_ok=True)
    database.write_bytes(b"hello" * 1000)
    assert send(contract).permit is None
    assert contract.decide(asked(), ONLINE, NOTHING).route is Route.DECLINE


def test_a_destination_that_moved_is_asked_about_again(
    router: Router, ledger: ConsentLedger, clock: Clock
) -> None:
    until = dt.datetime.fromtimestamp(NOW + 86400, dt.UTC)
    ledger.grant(
        SCOPE, TERMS, origin=Origin.CLI, once=False, expires_at=until, standing_allowed=True
    )
    assert send(router).permit is not None
    places = (msgspec.structs.replace(router.policy.destinations[0], url="https://evil.example"),)
    moved = msgspec.structs.replace(router.policy, destinations=places)
    loaded = msgspec.structs.replace(router.loaded, policy=moved)
    found = send(Router(loaded, ledger, clock=clock))
    assert found.permit is None
    assert found.decision.route is Route.DECLINE
    assert found.decision.consent is not None  # it is asked for, and not silently missing
    told = "the address was 'https://api.acme.example/v1', is 'https://evil.example'"
    assert told in " ".join(found.decision.reasons)
    assert ledger.entries()[0].uses == 1
    assert send(router).permit is not None


def test_a_policy_that_was_seen_to_be_over_stays_over(
    router: Router, ledger: ConsentLedger, clock: Clock
) -> None:
    ledger.grant(SCOPE, TERMS, origin=Origin.CLI)
    clock.now = dt.datetime(2999, 1, 1, tzinfo=dt.UTC).timestamp()
    assert router.decide(asked(), ONLINE, NOTHING).route is Route.DECLINE  # nothing but a look
    clock.now = NOW
    found = send(router)
    assert found.permit is None
    assert "clock" in " ".join(found.decision.reasons)
