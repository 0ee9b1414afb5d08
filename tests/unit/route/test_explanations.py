"""What an explanation says is true, and says nothing about what does not matter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.core.values import ledger, size
from tests.unit.route.policies import WHOLE

from edgewise.cli.root import root
from edgewise.core.request import Message, Request
from edgewise.core.state import DeviceState, LinkState
from edgewise.route import Policy, RouteEvidence, decide
from edgewise.route.consent import ConsentLedger, ConsentScope, Origin
from edgewise.route.facts import ConsentFact, ConsentVerdict, PolicyTrust
from edgewise.route.policy_file import LoadedPolicy, parse_policy
from edgewise.route.service import Router
from edgewise.store import Home

ONLINE = DeviceState(link=LinkState.ONLINE)
SIGNED = RouteEvidence(trust=PolicyTrust.SIGNED)


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(WHOLE, encoding="utf-8")
    return parse_policy(path)


def request(data_class: str) -> Request:
    return Request(
        messages=(Message(role="user", content="x"),), data_class=data_class, task="draft"
    )


def said(policy: Policy, data_class: str, evidence: RouteEvidence = SIGNED) -> dict[str, str]:
    found = decide(request(data_class), data_class, ONLINE, policy, evidence)
    return {rule.rule: f"{rule.verdict}: {rule.reason}" for rule in found.rules}


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (ConsentVerdict.GRANTED, "allows: consent stands: why"),
        (ConsentVerdict.DENIED, "denies: consent was denied: why"),
        (ConsentVerdict.ABSENT, "denies: no consent stands: why"),
        (ConsentVerdict.UNREADABLE, "denies: whether consent stands is not known: why"),
    ],
)
def test_what_is_said_of_a_consent(policy: Policy, verdict: ConsentVerdict, words: str) -> None:
    fact = ConsentFact(destination="acme", verdict=verdict, reason="why")
    evidence = RouteEvidence(trust=PolicyTrust.SIGNED, consents=(fact,))
    assert said(policy, "ticket", evidence)["consent@acme"] == words


def test_a_consent_that_was_used_is_not_said_to_be_absent(policy: Policy, tmp_path: Path) -> None:
    consents = ConsentLedger(Home(tmp_path / "home"))
    scope = ConsentScope(
        feature=policy.feature,
        data_class="ticket",
        destination="acme",
        purpose=policy.places["acme"].purpose,
    )
    terms = policy.terms("acme")
    consents.grant(scope, terms, origin=Origin.CLI)
    consents.consume(scope, terms)
    router = Router(
        LoadedPolicy(policy=policy, trust=PolicyTrust.SIGNED, reason="", key="team"), consents
    )
    found = router.decide(request("ticket"), ONLINE, SIGNED)
    assert found.consent is not None
    told = "no consent stands: the consent was for one use, and was used"
    assert told in found.reasons


def test_nothing_is_said_of_consent_where_data_never_leaves(policy: Policy, tmp_path: Path) -> None:
    told = said(policy, "health")["consent@acme"]
    assert told == "not-applicable: nobody is asked about data that never leaves"
    home = Home(tmp_path / "home")
    router = Router(
        LoadedPolicy(policy=policy, trust=PolicyTrust.SIGNED, reason=""), ConsentLedger(home)
    )
    assert router.known(request("health"), SIGNED).consents == ()
    found = decide(request("health"), "health", ONLINE, policy, SIGNED)
    assert not any("consent" in reason for reason in found.reasons)


def test_a_limit_that_nobody_set_is_not_said_to_be_kept(policy: Policy, tmp_path: Path) -> None:
    assert said(policy, "ticket")["spend@acme"] == (
        "allows: at most 5 EUR a day, which is held against when it is sent"
    )
    path = tmp_path / "free.toml"
    path.write_text(WHOLE.replace("price =", "# price ="), encoding="utf-8")
    free = parse_policy(path)
    assert said(free, "ticket")["spend@acme"].startswith("not-applicable: the policy sets no limit")
    spent = RouteEvidence(trust=PolicyTrust.SIGNED, spent=("acme",))
    assert said(policy, "ticket", spent)["spend@acme"].startswith("denies")


def test_memory_is_said_in_units_for_people(policy: Policy) -> None:
    evidence = RouteEvidence(memory=ledger(weights_bytes=size(3 << 30)))
    state = DeviceState(memory_available_bytes=size(1 << 30))
    found = decide(request("ticket"), "ticket", state, policy, evidence)
    (told,) = (rule.reason for rule in found.rules if rule.rule == "memory")
    assert told == "3.00 GiB are needed and 1.00 GiB are available: 2.00 GiB short"


def test_the_head_of_an_explanation(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    asked = [
        "route",
        "x",
        "--policy",
        str(tmp_path / "policy.toml"),
        "--explain",
        "--task",
        "draft",
    ]
    shown = CliRunner().invoke(root, [*asked, "--data-class", "ticket", "--deadline", "7"]).stdout
    assert "request: task draft, ticket data, treated as personal, deadline 7 s\n" in shown
    assert f"policy: support revision 3 ({policy.digest[:12]}), unsigned, in force until" in shown
    shown = CliRunner().invoke(root, [*asked, "--data-class", "what"]).stdout
    assert "what data, which the policy does not know, deadline 20 s" in shown
    shown = CliRunner().invoke(root, [*asked, "--data-class", "public", "--json"]).stdout
    told = json.loads(shown)
    assert (told["data_class"], told["treated_as"], told["deadline_s"]) == ("public", "public", 20)
    assert told["policy"]["revision"] == 3
