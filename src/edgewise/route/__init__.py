"""Routing: the decision, before anything runs, of where a request may run."""

from edgewise.route.facts import RouteEvidence
from edgewise.route.policy import DEFAULT_POLICY, Policy
from edgewise.route.router import decide

__all__ = ["DEFAULT_POLICY", "Policy", "RouteEvidence", "decide"]
