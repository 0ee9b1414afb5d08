"""Run ``benchmarks/route.toml``: record signals, compare scores, and test the calibrated bound.

Usage: EDGEWISE_EVAL_DATA=... python -m benchmarks.route [--home DIR] [--table-only] [--limit N]

Writes benchmarks/results/route.jsonl (recorded signals; a run that was cut short goes on with
it), benchmarks/results/route.json, the table in docs/escalation.md and its plots. With
``--table-only`` the recorded signals are evaluated again and no model is asked.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.setup import read_scenario, ready_context, write_results
from benchmarks.table import ROOT
from edgewise.route.calibrate import (
    CalibrateSettings,
    Case,
    CheckKind,
    never_kept,
    parse_cases,
    read_lines,
)
from edgewise.route.calibrate.curves import aurc, auroc, bootstrap, oracle_aurc, random_aurc
from edgewise.route.calibrate.learning import learn
from edgewise.route.calibrate.measures import COMBINED, risks_of, wrong_of
from edgewise.store import Home
from edgewise.workflow.calibrating import CalibrateRequest, calibrate, write_plots
from edgewise.workflow.context import Context, Step

RECORDED = ROOT / "benchmarks" / "results" / "route.jsonl"
RESULTS = ROOT / "benchmarks" / "results" / "route.json"
PAGE = ROOT / "docs" / "escalation.md"
PLOTS = ROOT / "docs" / "escalation"
_BEGIN, _END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
# BFCL names types as Python does.
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def main() -> None:
    """Record, evaluate, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table-only", action="store_true")
    parser.add_argument("--home", type=Path, help="A home in which the model is active.")
    parser.add_argument("--limit", type=int, help="Ask so many cases only.")
    options = parser.parse_args()
    scenario = read_scenario("route")
    if not options.table_only:
        record(scenario, options.home, options.limit)
    cases = recorded()
    report = learn(cases, settings(scenario), dataset_sha256=_sha256(RECORDED))
    found = {
        "dataset_sha256": _sha256(RECORDED),
        "fingerprint": cases[0].fingerprint,
        "cases": len(cases),
        "wrong": sum(not case.correct for case in cases),
        "cross_fitted": cross_fitted(cases, scenario),
        "bound": bound_trials(cases, scenario, scenario["trials"]),
        "report": msgspec.to_builtins(report),
    }
    write_results("route", found, scenario)
    write_plots(report, PLOTS)
    write_page(json.loads(RESULTS.read_text("utf-8")))


def settings(scenario: dict[str, Any], **changes: Any) -> CalibrateSettings:
    """Return the scenario's settings."""
    names = ("target_error", "confidence", "fit_share", "seed", "bootstrap_rounds")
    return CalibrateSettings(**{**{name: scenario[name] for name in names}, **changes})


def recorded() -> tuple[Case, ...]:
    """Return the cases that were recorded."""
    return parse_cases(read_lines(RECORDED.read_bytes()))


def record(scenario: dict[str, Any], home: Path | None, limit: int | None) -> None:
    """Ask the model all cases that were not asked yet."""
    folder = os.environ.get("EDGEWISE_EVAL_DATA") or sys.exit("EDGEWISE_EVAL_DATA is not set")
    lines = list(bfcl(Path(folder) / "bfcl", scenario["parts"]))[:limit]
    with tempfile.TemporaryDirectory() as work, _context(scenario, home) as context:
        prompts = Path(work) / "cases.jsonl"
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        request = CalibrateRequest(
            cases=str(prompts),
            settings=settings(scenario),
            check=CheckKind.CALL,
            record=str(RECORDED),
            max_tokens=scenario["max_tokens"],
            self_assessment=True,
        )
        report, _ = calibrate(context, request)
    for note in report.notes:
        print(note, file=sys.stderr)


@contextlib.contextmanager
def _context(scenario: dict[str, Any], home: Path | None) -> Iterator[Context]:
    if home is None:
        with ready_context(scenario) as context:
            yield context
        return

    def say(step: Step) -> None:
        if step.done % 20 == 0:
            print(step.message, step.done, "of", step.total, file=sys.stderr)

    yield Context(Home(home), report=say)


def bfcl(folder: Path, parts: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield the chosen cases as lines of prompts, in an order that mixes the parts."""
    chosen = []
    for part, count in parts.items():
        answers = {line["id"]: line["ground_truth"] for line in _lines(folder, f"{part}_answers")}
        lines = sorted(_lines(folder, part), key=lambda line: _place(line["id"]))[:count]
        chosen += [_prompt(line, answers[line["id"]], part) for line in lines]
    yield from sorted(chosen, key=lambda line: _place(line["id"]))


def cross_fitted(cases: tuple[Case, ...], scenario: dict[str, Any]) -> dict[str, Any]:
    """Return the areas of all scores over all cases, each scored by a model that never saw it.

    The combined score is fitted on nine tenths and applied to the tenth that was left out. The
    baselines fit nothing: more entropy, or less self-assessment, is less certain.
    """
    wrong = wrong_of(cases)
    fold = np.array([int(_place(case.id), 16) % scenario["folds"] for case in cases])
    combined = np.zeros(len(cases))
    for number in range(scenario["folds"]):
        inside = [case for case, place in zip(cases, fold, strict=True) if place != number]
        held = np.flatnonzero(fold == number)
        score = learn(
            inside,
            settings(scenario, fit_share=0.9, bootstrap_rounds=0),
            dataset_sha256="0" * 64,
            measured=False,
        ).evidence.score
        assert score is not None
        combined[held] = risks_of(score, [cases[place] for place in held])
    scores = {
        COMBINED: combined,
        "entropy-only": _column(cases, "entropy_mean", 1),
        "entropy-allowed": _column(cases, "allowed_entropy_mean", 1),
        "margin-min": _column(cases, "margin_min", -1),
        "margin-min-allowed": _column(cases, "allowed_margin_min", -1),
        "logprob-mean": _column(cases, "logprob_mean", -1),
        "logprob-sum-allowed": _column(cases, "allowed_logprob_sum", -1),
        "self-assessment": _column(cases, "self_yes", -1),
    }
    limits = bootstrap(
        scores,
        wrong,
        reference=COMBINED,
        rounds=scenario["bootstrap_rounds"],
        seed=scenario["seed"],
    )
    best = oracle_aurc(wrong)
    found: dict[str, Any] = {
        name: {
            "aurc": aurc(risks, wrong),
            "e_aurc": aurc(risks, wrong) - best,
            "auroc": auroc(risks, wrong)[:3],
            "aurc_limits": limits[name]["aurc"],
            "excess": limits[name]["excess"],
        }
        for name, risks in scores.items()
    }
    found["random"] = {"aurc": random_aurc(wrong), "e_aurc": random_aurc(wrong) - best}
    found["oracle"] = {"aurc": best, "e_aurc": 0.0}
    return found


def bound_trials(cases: tuple[Case, ...], scenario: dict[str, Any], trials: int) -> dict[str, Any]:
    """Return how often the bound held over resamples of the recorded cases.

    Each trial draws as many cases as there are, with replacement, fits and calibrates on the
    draw, and looks at the error rate of what the threshold keeps of the whole pool: that is the
    very distribution the draw came from, so that the rate is exact and has no noise of its own.
    """
    random = np.random.Generator(np.random.PCG64(scenario["seed"]))
    wrong = wrong_of(cases)
    held, enabled, shares = 0, 0, []
    for trial in range(trials):
        drawn = [
            msgspec.structs.replace(cases[place], id=f"{trial}-{number}")
            for number, place in enumerate(random.integers(0, len(cases), len(cases)))
        ]
        quick = settings(scenario, bootstrap_rounds=0)
        evidence = learn(drawn, quick, dataset_sha256="0" * 64, measured=False).evidence
        threshold = evidence.thresholds[0].threshold
        if threshold is None or evidence.score is None:
            held += 1  # nothing is kept, so that nothing kept is wrong
            continue
        enabled += 1
        kept = risks_of(evidence.score, cases) <= threshold
        shares.append(float(kept.mean()))
        held += bool(wrong[kept].mean() <= scenario["target_error"]) if kept.any() else True
    return {
        "trials": trials,
        "held": held,
        "enabled": enabled,
        "kept_share_median": float(np.median(shares)) if shares else 0.0,
    }


def write_page(results: dict[str, Any]) -> None:
    """Write the table into the page."""
    head, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    PAGE.write_text(f"{head}{_BEGIN}{table(results)}{_END}{tail}", encoding="utf-8")


def table(results: dict[str, Any]) -> str:
    """Return the table of the results in Markdown."""
    scenario, bound = results["scenario"], results["bound"]
    lines = [
        "| Score | AURC (95%) | E-AURC | AUROC | Above combined (95%) |",
        "|---|---|---|---|---|",
    ]
    for name, one in sorted(results["cross_fitted"].items(), key=lambda pair: pair[1]["aurc"]):
        area, others = f"{one['aurc']:.3f}", "–"
        if "aurc_limits" in one:
            area += " ({:.3f} to {:.3f})".format(*one["aurc_limits"])
        if "excess" in one and name != COMBINED:
            others = "{:+.3f} to {:+.3f}".format(*one["excess"])
        told = f"{one['auroc'][0]:.3f}" if "auroc" in one else "–"
        lines.append(f"| {name} | {area} | {one['e_aurc']:.3f} | {told} | {others} |")
    cases, wrong = results["cases"], results["wrong"]
    what = (
        f"{cases} calls by {scenario['model']}, {wrong} of them wrong ({wrong / cases:.0%}), "
        f"{scenario['folds']}-fold cross-fitted; intervals from {scenario['bootstrap_rounds']} "
        "resamples of the cases."
    )
    held = (
        f"The bound (at most {scenario['target_error']:.0%} of kept answers wrong, at "
        f"{scenario['confidence']:.0%} confidence) held in {bound['held']} of {bound['trials']} "
        f"resampled trials; {bound['enabled']} enabled a threshold, which then kept "
        f"{bound['kept_share_median']:.0%} of the answers (median)."
    )
    return "\n".join([*lines, "", what, "", held]) + "\n"


def _prompt(line: dict[str, Any], truth: Any, part: str) -> dict[str, Any]:
    tools = [
        {
            "name": one["name"],
            "description": one["description"],
            "parameters": json.dumps(_schema(one["parameters"])),
        }
        for one in line["function"]
    ]
    (turn,) = line["question"]
    return {
        "id": line["id"],
        "messages": turn,
        "tools": tools,
        "tool_choice": {"mode": "required"},
        "reference": truth,
        "slices": {"part": part},
    }


def _schema(value: Any) -> Any:
    """Return a BFCL schema as JSON Schema."""
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    # BFCL marks parameters that may be left out by a word of its own; ``required`` says it too.
    kept = {k: item for k, item in value.items() if k != "optional" or not isinstance(item, bool)}
    made = {key: _schema(item) for key, item in kept.items()}
    if isinstance(value.get("type"), str):
        made["type"] = _TYPES.get(value["type"], value["type"])
        if value["type"] == "any":
            del made["type"]
    return made


def _column(cases: tuple[Case, ...], signal: str, sign: int) -> Any:
    """Return a signal as a score; answers that are never kept come last, as the combined has it."""
    values = [
        np.inf if never_kept(case.signals) is not None else sign * float(case.signals[signal])
        for case in cases
    ]
    return np.array(values)


def _lines(folder: Path, name: str) -> list[dict[str, Any]]:
    text = (folder / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _place(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
