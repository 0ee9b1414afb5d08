"""Planning: the memory ledger, the roofline, and the verdict for a tier."""

from edgewise.planner.plans import Candidate, Change, DraftCandidate, Plan, Verdict, make_plan
from edgewise.planner.tiers import THIS_DEVICE, load_tier, tier_names

__all__ = [
    "THIS_DEVICE",
    "Candidate",
    "Change",
    "DraftCandidate",
    "Plan",
    "Verdict",
    "load_tier",
    "make_plan",
    "tier_names",
]
