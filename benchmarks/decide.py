"""Run ``benchmarks/decide.toml``: what one routing decision takes.

Usage: python -m benchmarks.decide
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from tests.property.test_route import Generator

from benchmarks.setup import read_scenario, write_results
from edgewise.route import decide


def main() -> None:
    """Measure, write the results, and fail when the goal is missed."""
    scenario = read_scenario("decide")
    found = run(scenario)
    write_results("decide", found, scenario)
    print(json.dumps(found, indent=1), file=sys.stderr)
    if found["us"]["p99"] > scenario["goal_p99_us"]:
        sys.exit(f"the 99th percentile is above {scenario['goal_p99_us']} us")


def run(scenario: dict[str, Any]) -> dict[str, Any]:
    """Return percentiles in microseconds, wall time of one decision each."""
    make, took, rules = Generator(scenario["seed"]), [], 0
    for at in range(scenario["requests"]):
        if at % 50 == 0:
            policy = make.policy()
            _ = (policy.version, policy.classes, policy.places, policy.by_task)
        inputs = (make.request(), make.one("public", "personal", "notes"), make.state(), policy)
        evidence = make.evidence()
        began = time.perf_counter_ns()
        decision = decide(*inputs, evidence)
        took.append((time.perf_counter_ns() - began) / 1e3)
        rules = max(rules, len(decision.rules))
    took.sort()
    return {
        "us": {
            name: round(took[int(len(took) * share)], 1)
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
        },
        "decisions": len(took),
        "most_rules": rules,
    }


if __name__ == "__main__":
    main()
