"""Run ``benchmarks/memory.toml`` and rewrite the README's memory table.

Usage: python -m benchmarks.memory [--table-only]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tomllib
from typing import Any

from benchmarks.table import MEMORY_RESULTS, ROOT, update_readme


def main() -> None:
    """Measure every combination, write the results, rewrite the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table-only", action="store_true")
    if not parser.parse_args().table_only:
        scenario = tomllib.loads((ROOT / "benchmarks" / "memory.toml").read_text())
        lines = [
            measure(model, context, kv)
            for model, kv, context in itertools.product(
                scenario["models"], scenario["kv_types"], scenario["context_lengths"]
            )
        ]
        MEMORY_RESULTS.write_text(
            "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
        )
    update_readme()


def measure(model: str, context: int, kv: str) -> dict[str, Any]:
    """Return the plan's lines and what was measured, in bytes."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "edgewise.cli", "plan", model, "--measure", "--json"),
            *("--context", str(context), "--kv", kv),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"EDGEWISE_HOME": str(ROOT / ".cache" / "bench-home"), **os.environ},
    )
    if done.returncode:
        sys.exit(f"{model} {context} {kv} failed:\n{done.stderr}")
    plan = json.loads(done.stdout)
    memory, measured = plan["memory"], plan["measured"]
    line = {
        "model": model,
        "context_length": context,
        "kv_type": kv,
        "planned": {k: v["value"] for k, v in memory.items() if k != "budget_bytes"},
        "measured_bytes": measured["peak_bytes"]["value"],
        "measured_worker_bytes": measured["worker"]["peak_resident_bytes"]["value"],
        "ratio": measured["planned_over_measured_ratio"],
    }
    print(model, context, kv, line["ratio"], file=sys.stderr, flush=True)
    return line


if __name__ == "__main__":
    main()
