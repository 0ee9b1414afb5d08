"""Run ``benchmarks/kv_quality.toml``: what a quantised KV cache costs, measured deep in a context.

Usage: EDGEWISE_EVAL_DATA=... python -m benchmarks.kv_quality [--help]

Rewrites docs/kv-cache.md. Each format evaluates the whole context once, with one thread: the load
of the machine changes how long it takes, not the figures. What was measured before is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.canaries import Window, make_window, recalled
from benchmarks.compare import ENVIRONMENT, build
from benchmarks.setup import read_results, read_scenario, write_results
from benchmarks.table import ROOT
from edgewise.core.recipe import KvType, RunConfig
from edgewise.qualify.parity_messages import (
    SERVICE,
    Distance,
    DistanceParams,
    Encoded,
    EncodeParams,
    Scored,
    ScoreParams,
)
from edgewise.run.messages import Loaded, LoadParams
from edgewise.runtimes.launch import start_worker
from edgewise.runtimes.worker import WorkerProcess
from edgewise.store import Home
from edgewise.workflow.artifacts import find_built, subject
from edgewise.workflow.context import Context

_STEP_TIMEOUT_S = 3600.0
RESULTS = ROOT / "benchmarks" / "results" / "kv_quality.json"
PAGE = ROOT / "docs" / "kv-cache.md"
_BEGIN, _END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


def main() -> None:
    """Measure what is missing, write each row as it comes, and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table-only", action="store_true")
    parser.add_argument("--runtime", action="append", help="measure these only")
    parser.add_argument("--again", action="store_true", help="measure everything anew")
    arguments = parser.parse_args()
    if not arguments.table_only:
        scenario = read_scenario("kv_quality")
        found = [] if arguments.again else read_results("kv_quality").get("rows", [])
        for runtime in arguments.runtime or scenario["builds"]:
            for one in rows(scenario, runtime, {_key(row) for row in found}):
                found.append(one)
                write_results("kv_quality", {"rows": found}, scenario)
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), encoding="utf-8")


def _key(row: dict[str, Any]) -> tuple[str, int, str]:
    return row["runtime"], row["context_length"], row["kv_type"]


def rows(
    scenario: dict[str, Any], runtime: str, known: Collection[tuple[str, int, str]] = ()
) -> Iterator[dict[str, Any]]:
    """Yield a row for each context length and format of a runtime but its reference."""
    context = Context(Home(Path(ENVIRONMENT["EDGEWISE_HOME"])))
    folder = os.environ.get("EDGEWISE_EVAL_DATA") or sys.exit("EDGEWISE_EVAL_DATA is not set")
    text = (Path(folder) / "wikitext2" / "test.txt").read_text("utf-8")
    scored = int(scenario["scored_positions"])
    reference, *others = scenario["kv_types"][runtime]
    build(scenario["model"], runtime, scenario["builds"][runtime])
    for length in scenario["context_lengths"]:
        missing = [kv for kv in others if (runtime, length, kv) not in known]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as work:
            first = evaluate(context, runtime, (length, reference, text, scored), Path(work))
            for kv in missing:
                second = evaluate(context, runtime, (length, kv, text, scored), Path(work))
                yield row(runtime, first, second, scored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What one format made of a window: the text's distributions in a file, and the recall."""

    kv_type: str
    window: Window
    text: Path
    recalled: int
    recalled_logprob: float


def evaluate(
    context: Context, runtime: str, asked: tuple[int, str, str, int], work: Path
) -> Evaluated:
    """Return what a format (length, format, text, positions to score) makes of its window."""
    length, kv, text, scored = asked
    raw, file = work / "raw.npy", work / f"{kv}.npy"
    with loaded(context, runtime, length, kv) as worker:

        def encode(part: str) -> tuple[int, ...]:
            (found,) = worker.call("encode", EncodeParams(texts=(part,)), list[Encoded])
            return tuple(found.ids)

        window = make_window(encode, text, length, scored=scored)
        skip = window.text_tokens - 1 - scored
        params = ScoreParams(windows=(window.tokens,), file=str(raw), skip=skip)
        worker.start("score", params).result(Scored, notice=int, timeout_s=_STEP_TIMEOUT_S)
    logprobs = np.load(raw)
    np.save(file, logprobs[:scored])
    whole, mean = recalled(window, logprobs, skip + 1)
    return Evaluated(kv_type=kv, window=window, text=file, recalled=whole, recalled_logprob=mean)


def row(runtime: str, first: Evaluated, second: Evaluated, scored: int) -> dict[str, Any]:
    """Return the figures of a row, and print them."""
    figures = {
        "runtime": runtime,
        "context_length": len(first.window.tokens),
        "reference": first.kv_type,
        "kv_type": second.kv_type,
        "codes": len(first.window.answers),
        "codes_recalled_reference": first.recalled,
        "codes_recalled": second.recalled,
        "codes_logprob_reference": round(first.recalled_logprob, 4),
        "codes_logprob": round(second.recalled_logprob, 4),
    }
    figures |= msgspec.to_builtins(compare(runtime, first, second, scored))
    print(json.dumps(figures), file=sys.stderr)
    return figures


@contextmanager
def loaded(context: Context, name: str, length: int, kv: str) -> Iterator[WorkerProcess]:
    """Give a worker with a build loaded under a KV format."""
    one = subject(context, find_built(context, name))
    config: RunConfig = msgspec.structs.replace(
        one.run_config,
        context_length=length,
        kv_type=KvType(kv),
        flash_attention=one.runtime in {"llamacpp", "ik"},
        threads=1,
    )
    worker = start_worker(one.runtime, SERVICE, run_config=config)
    try:
        params = LoadParams(
            runtime=one.runtime, artifact=str(one.artifact), run_config=config, text=one.text
        )
        worker.call("load", params, Loaded, timeout_s=_STEP_TIMEOUT_S)
        yield worker
    finally:
        worker.close()


def compare(runtime: str, first: Evaluated, second: Evaluated, scored: int) -> Distance:
    """Return the distance of two formats over the scored positions of the text."""
    window = first.window.tokens[: first.window.text_tokens]
    worker = start_worker(runtime, SERVICE)
    try:
        params = DistanceParams(
            first=str(first.text),
            second=str(second.text),
            windows=(window,),
            skip=len(window) - 1 - scored,
        )
        return worker.call("distance", params, Distance, timeout_s=_STEP_TIMEOUT_S)
    finally:
        worker.close()


def with_table(page: str, results: Path = RESULTS) -> str:
    """Return the page's text with the table that the results give."""
    head, _, rest = page.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    measured = table(json.loads(results.read_text("utf-8")))
    return f"{head}{_BEGIN}{measured}{_END}{tail}"


def table(results: dict[str, Any]) -> str:
    """Return the table of the results in Markdown."""
    lines = [
        "| Runtime | Context | KV cache | Top-1 | Mean KL (nats) | Perplexity | Codes recalled |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in sorted(results["rows"], key=lambda one: _order(results["scenario"], one)):
        top1, kl = (one[name]["value"] for name in ("top1_agreement", "kl_mean_nats"))
        before, after = (one[name]["value"] for name in ("perplexity", "other_perplexity"))
        lines.append(
            f"| {one['runtime']} | {one['context_length']:,} | {one['kv_type']} "
            f"| {top1:.3f} | {kl:.4f} | {after:.2f} ({before:.2f}) "
            f"| {one['codes_recalled']} ({one['codes_recalled_reference']}) of {one['codes']} |"
        )
    return "\n".join(lines) + "\n"


def _order(scenario: dict[str, Any], one: dict[str, Any]) -> tuple[int, int, int]:
    runtime, length, kv = _key(one)
    return list(scenario["builds"]).index(runtime), length, scenario["kv_types"][runtime].index(kv)


if __name__ == "__main__":
    main()
