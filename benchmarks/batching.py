"""Run ``benchmarks/batching.toml``: requests answered together against one after the other.

Usage: python -m benchmarks.batching [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import Any

from benchmarks.setup import read_scenario, ready_context, spread, write_results
from edgewise.core.outcome import Completed
from edgewise.core.request import Message, Request
from edgewise.run.session import Session
from edgewise.workflow.context import Context
from edgewise.workflow.opening import open_sessions

_SUBJECTS = ("a lighthouse", "a bridge", "a bakery", "a river", "an orchard", "a clock", "a train")


def main() -> None:
    """Measure, write the results, and fail when an answer differs without saying so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    scenario = read_scenario("batching")
    scenario["rounds"] = options.rounds or scenario["rounds"]
    with ready_context(scenario) as context:
        found = run(context, scenario)
    write_results("batching", found, scenario)
    print(json.dumps(found, indent=1), file=sys.stderr)
    if found["answers_differ"]:
        sys.exit("answers differ")


def run(context: Context, scenario: dict[str, Any]) -> dict[str, Any]:
    """Return rates of each number of streams, joined and one after the other."""
    sessions = open_sessions(context)
    rates: dict[str, dict[int, list[float]]] = {"joined": {}, "in turn": {}}
    differ = rounded = 0
    try:
        sessions[0].warm()
        for number in range(scenario["rounds"]):
            for streams in scenario["streams"]:
                requests = [_request(number, n, scenario) for n in range(streams)]
                answers = {}
                for way, ask in (("joined", _together), ("in turn", _in_turn)):
                    started = time.perf_counter()
                    answers[way] = ask(sessions, requests)
                    took = time.perf_counter() - started
                    tokens = sum(answer.tokens.completion or 0 for answer in answers[way])
                    rates[way].setdefault(streams, []).append(tokens / took)
                for one, other in zip(answers["joined"], answers["in turn"], strict=True):
                    said = any(event.code == "steps-joined-rounded" for event in one.events)
                    rounded += said
                    differ += one.text != other.text and not said
    finally:
        for session in sessions:
            session.close()
    ratios = {
        streams: spread([a / b for a, b in zip(joined, rates["in turn"][streams], strict=True)])
        for streams, joined in rates["joined"].items()
    }
    return {
        "tok_s": {
            way: {streams: spread(values) for streams, values in by_streams.items()}
            for way, by_streams in rates.items()
        },
        "ratio_joined_to_in_turn": ratios,
        "answers_differ": differ,
        "answers_that_say_rounded": rounded,
    }


def _request(number: int, stream: int, scenario: dict[str, Any]) -> Request:
    subject = _SUBJECTS[(number + stream) % len(_SUBJECTS)]
    text = f"Write a story about {subject} and {stream + 2} friends in chapter {number + 1}."
    return Request(
        messages=(Message(role="user", content=text),),
        max_tokens=scenario["max_tokens"],
        speculate=False,
    )


def _together(sessions: list[Session], requests: list[Request]) -> list[Completed]:
    answers: dict[int, Completed] = {}

    def ask(number: int) -> None:
        answers[number] = _ask(sessions[number], requests[number])

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[n] for n in range(len(requests))]


def _in_turn(sessions: list[Session], requests: list[Request]) -> list[Completed]:
    return [_ask(sessions[0], request) for request in requests]


def _ask(session: Session, request: Request) -> Completed:
    outcome = session.ask(request)
    if not isinstance(outcome, Completed):
        sys.exit(f"no answer: {outcome}")
    return outcome


if __name__ == "__main__":
    main()
