"""What the benchmarks of a session share: a model that is ready, spreads, a results file."""

from __future__ import annotations

import datetime as dt
import json
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.table import ROOT
from edgewise.core.recipe import KvType, Recipe
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.up import UpRequest, bring_up

__all__ = ["read_results", "read_scenario", "ready_context", "spread", "write_results"]


def read_scenario(name: str) -> dict[str, Any]:
    """Return the scenario of a benchmark."""
    return tomllib.loads((ROOT / "benchmarks" / f"{name}.toml").read_text("utf-8"))


@contextmanager
def ready_context(scenario: dict[str, Any]) -> Iterator[Context]:
    """Give a context whose home, removed afterwards, has the scenario's model active."""
    with tempfile.TemporaryDirectory() as folder:
        context = Context(Home(Path(folder)))
        recipe = _recipe(scenario.get("recipe", "as-shipped"))
        request = UpRequest(
            model=scenario["model"],
            context_length=scenario["context_length"],
            recipe=recipe,
            draft=scenario.get("draft"),
            draft_recipe=_recipe(scenario.get("draft_recipe", "as-shipped")),
            parallel=scenario.get("parallel", 1),
            runtime=scenario.get("runtime", "llamacpp"),
            kv_type=KvType(scenario["kv_type"]) if "kv_type" in scenario else None,
        )
        outcome = bring_up(context, request)
        if outcome.status != "ready":
            sys.exit(f"the model cannot be set up: {outcome.reasons}")
        yield context


def _recipe(name: str) -> Recipe:
    return Recipe(name=name, weights="as-is" if name == "as-shipped" else name)


def write_results(name: str, found: dict[str, Any], scenario: dict[str, Any]) -> None:
    """Write what was found, with its scenario and date."""
    found |= {"scenario": scenario, "taken": dt.datetime.now(dt.UTC).date().isoformat()}
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_results(name: str) -> dict[str, Any]:
    """Return what was found before; nothing where nothing was."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def spread(values: list[float]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return [round(v, 3) for v in values]
    return [round(v, 3) for v in statistics.quantiles(values, n=4)]
