"""Run ``benchmarks/prefix.toml``: what a saved prefix saves, and that the answer is the same.

Usage: python -m benchmarks.prefix [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.setup import read_scenario, ready_context, spread, write_results
from edgewise.core.outcome import Completed
from edgewise.core.request import Message, Request
from edgewise.run.messages import PrefixSettings
from edgewise.run.session import Session
from edgewise.workflow.context import Context
from edgewise.workflow.opening import open_session

_SENTENCE = (
    "Rule {}: when the tide is at {} feet, the keeper of gate {} opens the sluice by {} turns."
)
_QUOTA = 256 << 20


def main() -> None:
    """Measure, write the results, and fail when an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    scenario = read_scenario("prefix")
    scenario["rounds"] = options.rounds or scenario["rounds"]
    with ready_context(scenario) as context:
        found = run(context, scenario)
    write_results("prefix", found, scenario)
    print(json.dumps(found, indent=1), file=sys.stderr)
    if len(found["texts"]) != 1:
        sys.exit("the answers differ")


def run(context: Context, scenario: dict[str, Any]) -> dict[str, Any]:
    """Return times to the first token and texts of the three ways."""
    system = system_message(scenario["prefix_tokens"])
    disk = PrefixSettings(memory_bytes=_QUOTA, disk_bytes=_QUOTA)
    restored = ("from memory", "from disk", "system prompt from disk")
    ways: dict[str, list[float]] = {way: [] for way in ("evaluated", *restored)}
    texts, tokens = set(), 0
    with open_session(context, prefixes=disk) as first:  # writes the state, so that it is there
        ask(first, system, 0, scenario)
    for number in range(scenario["rounds"]):
        clean = PrefixSettings(memory_bytes=_QUOTA)
        with open_session(context, prefixes=clean) as session:
            other = Request(messages=(Message(role="user", content="Hello"),), max_tokens=1)
            session.ask(other)  # loads the model
            for way in ("evaluated", "from memory"):
                answer = ask(session, system, number, scenario)
                tokens = answer.tokens.reused or tokens
                ways[way].append(ttft(answer))
                texts.add((number, answer.text))
                session.ask(other)
        with open_session(context, prefixes=disk) as session:
            session.ask(other)
            answer = ask(session, system, number, scenario)
            ways["system prompt from disk"].append(ttft(answer))
            texts.add((number, answer.text))
            session.release()  # writes the whole conversation's state
        with open_session(context, prefixes=disk) as session:
            session.ask(other)
            answer = ask(session, system, number, scenario)
            ways["from disk"].append(ttft(answer))
            texts.add((number, answer.text))
    ratios = {
        way: spread([a / b for a, b in zip(ways[way], ways["evaluated"], strict=True)])
        for way in restored
    }
    return {
        "ttft_ms": {way: spread(values) for way, values in ways.items()},
        "ratio_to_evaluated": ratios,
        "reused_tokens": tokens,
        "texts": sorted({text for _, text in texts}) if len(texts) == 1 else _groups(texts),
    }


def _groups(texts: set[tuple[int, str]]) -> list[str]:
    """Return one entry when each round's ways agree, else every text."""
    by_round: dict[int, set[str]] = {}
    for number, text in texts:
        by_round.setdefault(number, set()).add(text)
    agree = all(len(found) == 1 for found in by_round.values())
    return ["equal in every round"] if agree else sorted({text for _, text in texts})


def ask(session: Session, system: str, number: int, scenario: dict[str, Any]) -> Completed:
    """Return the answer to a question below the system message."""
    request = Request(
        messages=(
            Message(role="system", content=system),
            Message(role="user", content=f"What does rule {number + 1} say? Answer briefly."),
        ),
        max_tokens=scenario["max_tokens"],
    )
    outcome = session.ask(request)
    if not isinstance(outcome, Completed):
        sys.exit(f"no answer: {outcome}")
    return outcome


def ttft(outcome: Completed) -> float:
    """Return the time to the first text in milliseconds."""
    return float(getattr(outcome.timings.ttft_ms, "value", 0.0))


def system_message(tokens: int) -> str:
    """Return a message of about so many tokens of SmolLM2's."""
    rules = [_SENTENCE.format(n, n * 3 % 17, n * 7 % 11, n % 5) for n in range(1, tokens // 27)]
    return "\n".join(rules)


if __name__ == "__main__":
    main()
