"""Fixtures of the runtime suites: real environments, and two layers of the real model.

`make test` installs every runtime into `.cache/runtimes`; EDGEWISE_RUNTIMES names another folder.
The checkpoint is the first two layers of SmolLM2, with its whole embedding, head and tokenizer,
in the HF form: all exporters run in seconds, on real weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgewise.build import BuildReceipt
from edgewise.core.recipe import Recipe
from edgewise.errors import error_from_dict
from edgewise.models.hf_form import gguf_to_hf
from edgewise.store import Home
from edgewise.workflow.building import BuildRequest, build_for
from edgewise.workflow.context import Context

os.environ.setdefault("EDGEWISE_RUNTIMES", str(Path(__file__).parents[2] / ".cache" / "runtimes"))
LAYERS = 2

Builder = Callable[[str, str], BuildReceipt]


@pytest.fixture(scope="session")
def two_layer_hf(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first two layers of SmolLM2 in the HF form, F32."""
    folder = tmp_path_factory.mktemp("hf")
    gguf_to_hf(smollm2_path, folder, layers=LAYERS)
    return folder


@pytest.fixture(scope="session")
def runtimes_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtimes") / "home"


@pytest.fixture(scope="session")
def runtimes_context(runtimes_home: Path) -> Context:
    return Context(Home(runtimes_home))


@pytest.fixture(scope="session")
def built(two_layer_hf: Path, runtimes_context: Context) -> Builder:
    """Build the two-layer checkpoint once for a runtime and a recipe, the way a user does."""

    made: dict[tuple[str, str], BuildReceipt] = {}

    def make(runtime: str, weights: str) -> BuildReceipt:
        if (runtime, weights) in made:
            return made[runtime, weights]
        request = BuildRequest(
            model=str(two_layer_hf),
            runtimes=(runtime,),
            recipe=Recipe(name=weights, weights=weights),
        )
        (result,) = build_for(runtimes_context, request).results
        if result.receipt is None:
            raise error_from_dict(result.error or {})
        made[runtime, weights] = result.receipt
        return result.receipt

    return make
