"""Run ``benchmarks/decode.toml`` and rewrite the README's table from its results.

Usage: python -m benchmarks.decode [SCENARIO.toml] [--rounds N] [--table-only]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.table import RESULTS, update_readme
from edgewise.models.template import ChatTemplate
from edgewise.store import Home
from edgewise.workflow.context import Context, Step
from edgewise.workflow.up import UpRequest, bring_up

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Set the model up in a home of its own, run all rounds, write results and table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", nargs="?", default=str(ROOT / "benchmarks" / "decode.toml"))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--table-only", action="store_true")
    options = parser.parse_args()
    if not options.table_only:
        scenario = tomllib.loads(Path(options.scenario).read_text(encoding="utf-8"))
        if options.rounds:
            scenario["rounds"] = options.rounds
        run(scenario)
    update_readme()


def run(scenario: dict[str, Any]) -> None:
    """Run all contenders in turn and write one line of JSON per trial."""
    with tempfile.TemporaryDirectory() as folder:
        settings, header = prepare(Path(folder), scenario)
        lines: list[dict[str, Any]] = [header]
        for trial in range(scenario["rounds"]):
            for contender in scenario["contenders"]:
                result = run_trial(contender["name"], settings)
                lines.append({"trial": trial, "contender": contender["name"], **result})
                rate, start = result["decode_tok_s"], result["cold_start_ms"]
                print(
                    f"{trial} {contender['name']:<12} {rate:7.1f} tok/s, cold {start:6.0f} ms",
                    file=sys.stderr,
                )
        check_same_text(lines[1:])
        lines.append({"contender": "overhead", **run_trial("overhead", settings)})
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))


def prepare(folder: Path, scenario: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Bring the model up and return the settings of a trial and the header of the results."""

    def report(step: Step) -> None:
        if step.status in {"done", "note"}:
            print(f"{step.stage}: {step.message}", file=sys.stderr)

    context = Context(Home(folder), report=report)
    request = UpRequest(model=scenario["model"], context_length=scenario["context_length"])
    outcome = bring_up(context, request)
    if outcome.status != "ready":
        sys.exit(f"the model cannot be set up: {outcome.status}: {outcome.reasons}")
    bundle = context.bundles.active()
    template = ChatTemplate(source=bundle.text.template_source, name=bundle.text.template_name)
    rendered = template.render(
        [{"role": "user", "content": scenario["prompt"]}],
        bos_token=bundle.text.bos_token,
        eos_token=bundle.text.eos_token,
    )
    config = msgspec.to_builtins(bundle.deployment.compute.run_config)
    settings = {
        **{k: scenario[k] for k in ("prompt", "decode_tokens", "context_length", "overhead_pairs")},
        "text": msgspec.to_builtins(bundle.text),
        "home": str(folder),
        "artifact": str(context.bundles.artifact(bundle)),
        "run_config": config,
        "rendered": rendered,
    }
    device = context.device
    header = {
        "scenario": scenario,
        "taken": dt.datetime.now(dt.UTC).date().isoformat(),
        "fingerprint": bundle.fingerprint,
        "run_config": config,
        "device": device.digest,
        "cpu": str(getattr(device.cpu.model, "value", "unknown")),
        "cores_usable": getattr(device.cpu.cores_usable, "value", None),
        "runtime": bundle.deployment.runtime.version,
    }
    return settings, header


def run_trial(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return one trial's figures, from a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.contenders", name],
        input=json.dumps({**settings, "started": time.time()}),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def check_same_text(trials: list[dict[str, Any]]) -> None:
    """Refuse results in which the contenders did not do the same work."""
    tokens = {t["tokens"] for t in trials}
    if len(tokens) != 1:
        sys.exit(f"the contenders decoded different numbers of tokens: {tokens}")
    texts = {t["contender"]: t.pop("text") for t in trials}
    if texts["edgewise"] != texts["raw"]:
        sys.exit("the session and the raw loop, with the same settings, gave different texts")


if __name__ == "__main__":
    main()
