"""Run ``benchmarks/speculation.toml``: what guessing ahead gains, and that it changes nothing.

Usage: EDGEWISE_EVAL_DATA=... python -m benchmarks.speculation [--prompts N] [--setup NAME]

Keep the machine quiet. Exits with an error when a text differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.setup import read_results, read_scenario, ready_context, spread, write_results
from edgewise.core.bundle import Bundle
from edgewise.core.outcome import Completed
from edgewise.core.request import Message, Request
from edgewise.run.session import Session
from edgewise.workflow.context import Context
from edgewise.workflow.opening import open_session

_CHARACTERS = (300, 1200)
_COUNTS = ("guessed", "accepted", "steps", "drafted")


def main() -> None:
    """Compare, write the results, and fail when an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--setup", action="append", help="Only this one; what is known stays.")
    options = parser.parse_args()
    scenario = read_scenario("speculation")
    scenario["prompts"] = options.prompts or scenario["prompts"]
    found = {} if options.setup is None else read_results("speculation").get("setups", {})
    for setup in scenario["setups"]:
        if options.setup is None or setup["name"] in options.setup:
            found[setup["name"]] = measured(scenario | setup)
    write_results("speculation", {"setups": found}, scenario)
    different = [prompt for each in found.values() for prompt in each["different"]]
    if different:
        sys.exit(f"{len(different)} answers differ: {different[:3]}")


def measured(scenario: dict[str, Any]) -> dict[str, Any]:
    """Return what one setup comes to; the draft model's size and agreement, where it has one."""
    with ready_context(scenario) as context:
        with open_session(context) as session:
            found = run(session, scenario)
            bundle = session.bundle
            found["fingerprint"] = bundle.fingerprint
        if bundle.deployment.draft is not None:
            found["draft"] = drafted(context, bundle)
        found["device"] = context.device.digest
    return found


def drafted(context: Context, bundle: Bundle) -> dict[str, Any]:
    """Return what is known of a deployment's draft model before it guesses."""
    draft = bundle.deployment.draft
    assert draft is not None
    smoke = context.evidence.latest(
        kind="smoke", subject=bundle.fingerprint, device=context.device.digest
    )
    checks = smoke[1].figures["checks"] if smoke is not None else ()
    return {
        "artifact": msgspec.to_builtins(draft.artifact),
        "agrees": next((one["figure"] for one in checks if one["name"] == "draft-agrees"), None),
    }


def run(session: Session, scenario: dict[str, Any]) -> dict[str, Any]:
    """Return rates and ratios per kind of task, and which answers differ."""
    each = scenario["prompts"] // len(scenario["tasks"])
    tasks: dict[str, Any] = {}
    different: list[str] = []
    for task in scenario["tasks"]:
        prompts = [prompt(task, text) for text in texts(task["source"], each)]
        pairs = [pair(session, prompt, scenario["max_tokens"]) for prompt in prompts]
        different += [p for p, (on, off) in zip(prompts, pairs, strict=True) if on.text != off.text]
        timed = prompts[: scenario["timed_prompts"]] * (scenario["rounds"] - 1)
        pairs += [pair(session, prompt, scenario["max_tokens"]) for prompt in timed]
        tasks[task["name"]] = figures(pairs)
        print(task["name"], json.dumps(tasks[task["name"]]), file=sys.stderr)
    return {"tasks": tasks, "different": different, "compared": each * len(scenario["tasks"])}


def pair(session: Session, question: str, max_tokens: int) -> tuple[Completed, Completed]:
    """Return the answers with and without guessing, one after the other."""
    answers = []
    # Once ahead, so that both begin with the same reused prompt.
    session.ask(Request(messages=(Message(role="user", content=question),), max_tokens=1))
    for speculate in (True, False):
        request = Request(
            messages=(Message(role="user", content=question),),
            max_tokens=max_tokens,
            speculate=speculate,
        )
        outcome = session.ask(request)
        if not isinstance(outcome, Completed):
            sys.exit(f"no answer: {outcome}")
        answers.append(outcome)
    return answers[0], answers[1]


def figures(pairs: list[tuple[Completed, Completed]]) -> dict[str, Any]:
    """Return medians and quartiles over pairs that decoded enough to be timed."""
    timed = [(on, off) for on, off in pairs if (off.tokens.completion or 0) >= 32]
    ratios = [rate(on) / rate(off) for on, off in timed]
    guessed = sum(on.speculation.guessed for on, _ in pairs if on.speculation)
    accepted = sum(on.speculation.accepted for on, _ in pairs if on.speculation)
    return {
        "pairs": len(timed),
        "ratio": spread(ratios),
        "decode_tok_s_on": spread([rate(on) for on, _ in timed]),
        "decode_tok_s_off": spread([rate(off) for _, off in timed]),
        "guessed": guessed,
        "accepted": accepted,
        "sources": by_source([on for on, _ in pairs]),
    }


def by_source(answers: list[Completed]) -> dict[str, dict[str, Any]]:
    """Return what became of guesses by where they came from, and why there were none or no more."""
    found: dict[str, dict[str, Any]] = {}
    for answer in answers:
        for source in answer.speculation.sources if answer.speculation else ():
            counts = found.setdefault(source.source, {**dict.fromkeys(_COUNTS, 0), "off": {}})
            for name in _COUNTS:
                counts[name] += getattr(source, name)
            if source.off:
                counts["off"][source.off] = counts["off"].get(source.off, 0) + 1
    return found


def rate(outcome: Completed) -> float:
    """Return the decode rate in tokens a second."""
    return float(getattr(outcome.timings.decode_tok_s, "value", 0.0))


def texts(source: str, count: int) -> Iterator[str]:
    """Yield texts of middling length from a public evaluation set."""
    folder = os.environ.get("EDGEWISE_EVAL_DATA")
    if not folder:
        sys.exit("EDGEWISE_EVAL_DATA names no folder with wikitext2 and gsm8k")
    shortest, longest = _CHARACTERS
    given = 0
    for text in _pool(Path(folder), source):
        if source == "gsm8k" or shortest <= len(text) <= longest:
            given += 1
            yield text
        if given == count:
            return


def _pool(folder: Path, source: str) -> Iterator[str]:
    if source == "wikitext2":
        for line in (folder / source / "test.txt").read_text("utf-8").splitlines():
            if line.strip() and not line.strip().startswith("=") and "<unk>" not in line:
                yield as_written(line.strip())
        return
    for path in sorted((folder / source).glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            yield json.loads(line)["question"]


def prompt(task: dict[str, Any], text: str) -> str:
    """Return what is asked of a text."""
    return f"{task['instruction']}\n\n{mistyped(text) if task.get('typo') else text}"


def mistyped(text: str) -> str:
    """Return a text with two letters of a word in its middle swapped."""
    words = text.split(" ")
    at = next(i for i in range(len(words) // 2, len(words)) if len(words[i]) > 4)
    word = words[at]
    words[at] = word[0] + word[2] + word[1] + word[3:]
    return " ".join(words)


def as_written(text: str) -> str:
    """Return a line of WikiText without the spaces that its tokenisation put in."""
    text = re.sub(r" @(.)@ ", r"\1", text)
    text = re.sub(r" ([,.;:!?)%]|'s\b|n't\b)", r"\1", text)
    return re.sub(r'" ([^"]*) "', r'"\1"', re.sub(r"\( ", "(", text))


if __name__ == "__main__":
    main()
