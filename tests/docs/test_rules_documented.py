"""The page on concepts names every rule of the router, in the router's order."""

from __future__ import annotations

import re

from edgewise.core.state import LinkState
from edgewise.route.facts import RouteEvidence
from edgewise.route.policy import CloudUse
from edgewise.route.router import decide
from tests.docs.pages import DOCS, sections
from tests.unit.route.states import DEVICE, PLACE, REQUEST, policies


def test_every_rule_is_in_the_tables_in_order() -> None:
    told = sections(DOCS / "concepts.md")["Route"]
    rows = [line.split("|")[1] for line in told.splitlines() if line.startswith("| `")]
    documented = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row)]
    policy = policies()[CloudUse.PREFERRED, True, True, "none"]
    state = DEVICE[False, LinkState.ONLINE]
    decision = decide(REQUEST, "personal", state, policy, RouteEvidence())
    tried = [found.rule.removesuffix(f"@{PLACE}") for found in decision.rules]
    assert documented == tried
