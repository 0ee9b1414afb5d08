"""Run ``benchmarks/classify.toml``: accuracy, bound and cost of the classifier of tasks.

Usage: EDGEWISE_EVAL_DATA=... python -m benchmarks.classify [--table-only]

Rewrites docs/classifying.md. Times are processor time, so that another program's load counts less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.setup import read_results, read_scenario, write_results
from benchmarks.table import ROOT
from edgewise.core.canonical import digest_of
from edgewise.route.classify import (
    ClassifierEvidence,
    LearnSettings,
    TaskCase,
    TaskModel,
    classified,
    learn_tasks,
)
from edgewise.route.classify.cases import distinct

PAGE = ROOT / "docs" / "classifying.md"
_BEGIN, _END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


def main() -> None:
    """Measure, write the results and the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--table-only", action="store_true")
    if not parser.parse_args().table_only:
        scenario = read_scenario("classify")
        folder = Path(os.environ.get("EDGEWISE_EVAL_DATA", ""))
        if not (folder / "gsm8k").is_dir():
            sys.exit("EDGEWISE_EVAL_DATA does not name a folder with the sets")
        write_results("classify", run(scenario, folder), scenario)
    page = PAGE.read_text("utf-8")
    PAGE.write_text(with_table(page), encoding="utf-8")


def run(scenario: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what each set of cases comes to."""
    cases = read_cases(scenario, folder)
    strangers = [
        line.strip()
        for line in (folder / scenario["none"]["file"]).read_text("utf-8").splitlines()
        if len(line) >= scenario["none"]["least_characters"]
    ]
    found = {}
    for name, renamed in scenario["sets"].items():
        named = [TaskCase(prompt=c.prompt, task=renamed.get(c.task, c.task)) for c in cases]
        found[name] = one_set(named, strangers, scenario)
        print(name, json.dumps(found[name]["trials"]), file=sys.stderr)
    return {"sets": found}


def read_cases(scenario: dict[str, Any], folder: Path) -> list[TaskCase]:
    """Return the texts with the task of the set that they are from."""
    found = []
    for file, source in scenario["sources"].items():
        for line in (folder / file).read_text("utf-8").splitlines():
            value = json.loads(line)[source["field"]]
            if isinstance(value, list):  # turns of a conversation: the user's last
                value = [one for one in value[0] if one["role"] == "user"][-1]["content"]
            found.append(TaskCase(prompt=value, task=source["task"]))
    return found


def one_set(
    cases: list[TaskCase], strangers: list[str], scenario: dict[str, Any]
) -> dict[str, Any]:
    """Return the evidence of one set, what is said of strangers, cost, and the trials."""
    settings = LearnSettings(
        target_error=scenario["target_error"],
        confidence=scenario["confidence"],
        seed=scenario["seed"],
    )
    sha256 = digest_of([[case.prompt, case.task] for case in cases])
    began = time.process_time()
    report, model = learn_tasks(cases, settings, dataset_sha256=sha256)
    learned_s = time.process_time() - began
    if model is None:
        sys.exit(f"nothing was learned: {report.refusals}")
    said = [sure(model, report.evidence, text) for text in strangers]
    kept = sum(one is not None for one in said)
    return {
        "evidence": msgspec.to_builtins(report.evidence),
        "strangers": {"texts": len(strangers), "taken_for_a_task": kept},
        "learned_s": round(learned_s, 1),
        "model_bytes": len(model.to_bytes()),
        "us": cost(model, report.evidence, [case.prompt for case in cases]),
        "trials": trials(cases, scenario),
    }


def sure(model: TaskModel, evidence: ClassifierEvidence, text: str) -> str | None:
    """Return the task that a text is taken for, where that is sure enough."""
    said = classified(model, evidence, "", text)
    if said.score is None or said.threshold is None or said.score < said.threshold:
        return None
    return said.task


def cost(model: TaskModel, evidence: ClassifierEvidence, texts: list[str]) -> dict[str, float]:
    """Return percentiles of one request's processor time in microseconds, and of a long one."""
    took = sorted(_took(model, evidence, text) for text in texts)
    shares = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    found = {name: round(took[int(len(took) * share)], 1) for name, share in shares}
    long = " ".join(texts)
    found["longest"] = round(min(_took(model, evidence, long) for _ in range(20)), 1)
    return found


def _took(model: TaskModel, evidence: ClassifierEvidence, text: str) -> float:
    began = time.thread_time_ns()
    sure(model, evidence, text)
    return (time.thread_time_ns() - began) / 1e3


def trials(cases: list[TaskCase], scenario: dict[str, Any]) -> dict[str, Any]:
    """Learn from some of the cases and count what is kept of the others, again and again."""
    apart = list(distinct(cases, scenario["seed"]).cases)
    broken = tasks = kept = wrong = fresh = 0
    for number in range(scenario["trials"]):
        random.Random(number).shuffle(apart)  # noqa: S311 - a split, no secret
        cut = 2 * len(apart) // 3
        settings = LearnSettings(
            target_error=scenario["target_error"], confidence=scenario["confidence"], seed=number
        )
        report, model = learn_tasks(apart[:cut], settings, dataset_sha256="0" * 64)
        if model is None:
            continue
        counts: dict[str, list[int]] = {}
        for case in apart[cut:]:
            said = sure(model, report.evidence, case.prompt)
            if said is not None:
                count = counts.setdefault(said, [0, 0])
                count[0] += 1
                count[1] += said != case.task
        fresh += len(apart) - cut
        kept += sum(count[0] for count in counts.values())
        wrong += sum(count[1] for count in counts.values())
        tasks += len(counts)
        broken += sum(bad / n > scenario["target_error"] for n, bad in counts.values())
    return {
        "fresh_cases": fresh,
        "kept": kept,
        "kept_wrong": wrong,
        "tasks_enabled": tasks,
        "tasks_above_target": broken,
    }


def with_table(page: str) -> str:
    """Return the page with the tables that the results give."""
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}{make_table()}{_END}{after}"


def make_table() -> str:
    """Return the tables as Markdown."""
    results = read_results("classify")
    scenario = results["scenario"]
    rows = []
    for found in results["sets"].values():
        evidence = found["evidence"]
        rows += [
            "| Task | Cases | Taken for it | Right | At least | Sure enough | Of these wrong |",
            "|---|---|---|---|---|---|---|",
            *(_row(one) for one in evidence["tasks"]),
            "",
            _words(found, scenario),
            "",
        ]
    return "\n".join(rows[:-1]) + "\n"


def _row(one: dict[str, Any]) -> str:
    off = one["threshold"] is None
    return (
        f"| `{one['task']}` | {one['cases']} | {one['said']} | {one['right'] / one['said']:.1%} "
        f"| {one['precision_low']:.1%} | {'off' if off else one['kept']} "
        f"| {'-' if off else one['kept_wrong']} |"
    )


def _words(found: dict[str, Any], scenario: dict[str, Any]) -> str:
    evidence, tried, us = found["evidence"], found["trials"], found["us"]
    strangers = found["strangers"]
    return (
        f"Fitted on {evidence['n_fit']} cases, {evidence['n_held']} held out, "
        f"{evidence['duplicates']} left out as copies; accuracy "
        f"{evidence['right'] / evidence['n_held']:.1%} (at least {evidence['accuracy_low']:.1%}). "
        f"In {scenario['trials']} repetitions on other parts, {tried['kept']:,} of "
        f"{tried['fresh_cases']:,} new cases were sure enough, and {tried['kept_wrong']} of these "
        f"({tried['kept_wrong'] / max(tried['kept'], 1):.1%}) wrong; of {tried['tasks_enabled']} "
        f"tasks that were enabled, {tried['tasks_above_target']} were wrong more often than "
        f"{scenario['target_error']:.0%}. Of {strangers['texts']:,} paragraphs of WikiText-2, "
        f"which are of no task, {strangers['taken_for_a_task']:,} "
        f"({strangers['taken_for_a_task'] / strangers['texts']:.0%}) were taken for one. "
        f"One request takes {us['p50']:.0f} µs in the median, {us['p99']:.0f} µs at the 99th "
        f"percentile, and {us['longest'] / 1e3:.1f} ms at any length (processor time); learning "
        f"took {found['learned_s']:.0f} s, and the model has {found['model_bytes'] // 1024} KiB."
    )


if __name__ == "__main__":
    main()
