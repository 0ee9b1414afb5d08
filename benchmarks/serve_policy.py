"""Run ``benchmarks/serve_policy.toml``: what a policy adds to a request of the local API.

Usage: python -m benchmarks.serve_policy [--pairs N]

Keep the machine quiet. It fails when the goal is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serve import body, served
from benchmarks.setup import read_scenario, ready_context, spread, write_results
from edgewise.core.request import Message, Request
from edgewise.core.state import LinkState
from edgewise.device import read_state
from edgewise.device.link import read_link
from edgewise.workflow.context import Context
from edgewise.workflow.hybrid import hybrid_over
from edgewise.workflow.serving import open_served

# Nothing ever leaves under it: the data is local-only, and nobody listens there.
POLICY = """
name = "measured"
require_signature = false

[[tasks]]
name = "chat"
cloud = "when-needed"
destinations = ["far"]

[[destinations]]
name = "far"
url = "https://127.0.0.1:9/v1"
model = "far"
purpose = "measuring"
basis = "consent"

[[minimise]]
destination = "far"
fields = ["messages"]
"""
_TIMEOUT_S = 300.0
_WARM = 5


def main() -> None:
    """Measure, write the results, and fail when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int)
    options = parser.parse_args()
    scenario = read_scenario("serve_policy")
    scenario["pairs"] = options.pairs or scenario["pairs"]
    with ready_context(scenario) as context, tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.toml"
        policy.write_text(POLICY, encoding="utf-8")
        home = str(context.home.root)
        with served(home) as (_, without), served(home, "--policy", str(policy)) as (_, under):
            found = requests(without, under, scenario)
        found["steps_ms"] = steps(context, policy, scenario)
        found["device"] = context.device.digest
    write_results("serve_policy", found, scenario)
    print(json.dumps(found, indent=1), file=sys.stderr)
    if found["added_ms"][1] > scenario["goal_added_ms"]:
        sys.exit(f"a policy adds more than {scenario['goal_added_ms']} ms")


def requests(without: str, under: str, scenario: dict[str, Any]) -> dict[str, Any]:
    """Return the milliseconds of a request to both servers, and of each pair's difference."""
    took: dict[str, list[float]] = {"without": [], "under": []}
    asked = body(scenario) | {"stream": False}
    with (
        httpx.Client(base_url=without, timeout=_TIMEOUT_S) as plain,
        httpx.Client(base_url=under, timeout=_TIMEOUT_S) as routed,
    ):
        both = [("without", plain), ("under", routed)]
        for number in range(scenario["pairs"] + _WARM):
            for name, client in both if number % 2 else reversed(both):
                started = time.perf_counter()
                reply = client.post("/v1/chat/completions", json=asked)
                ended = time.perf_counter()
                if reply.status_code != 200:
                    sys.exit(f"no answer: {reply.status_code} {reply.text}")
                if number >= _WARM:
                    took[name].append((ended - started) * 1e3)
    pairs = zip(took["under"], took["without"], strict=True)
    return {
        "request_ms": {name: spread(values) for name, values in took.items()},
        "added_ms": spread([a - b for a, b in pairs]),
    }


def steps(context: Context, policy: Path, scenario: dict[str, Any]) -> dict[str, list[float]]:
    """Return the milliseconds of what is done for each request, without any server."""
    sessions, feature, _ = open_served(context, policy=policy)
    assert feature is not None
    request = Request(messages=(Message(role="user", content=scenario["prompt"]),))
    fresh = hybrid_over(context, feature.router, sessions[0], link=lambda: LinkState.ONLINE)
    calls: dict[str, Callable[[], object]] = {
        "read the state": lambda: read_state(context.home.root),
        "read the link": read_link,
        "decide, as the server does": lambda: feature.decide(request),
        "decide, the state read anew": lambda: fresh.decide(request),
    }
    try:
        return {name: spread(_times(call, scenario["steps"])) for name, call in calls.items()}
    finally:
        for session in sessions:
            session.close()


def _times(call: Callable[[], object], times: int) -> list[float]:
    call()
    took = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        took.append((time.perf_counter() - started) * 1e3)
    return took


if __name__ == "__main__":
    main()
