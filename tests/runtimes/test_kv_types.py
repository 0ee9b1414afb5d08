"""A KV format that a runtime lacks is refused before anything is built, with those that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.core.recipe import KvType, Recipe
from edgewise.run.service import capabilities_in_worker
from edgewise.runtimes import registry
from edgewise.workflow.building import BuildRequest, build_for
from edgewise.workflow.context import Context

pytestmark = [pytest.mark.runtime, pytest.mark.model]


@pytest.mark.parametrize("name", registry.names())
def test_fp8_is_refused_by_name(two_layer_hf: Path, runtimes_context: Context, name: str) -> None:
    capabilities = capabilities_in_worker(name)
    if not capabilities.can_export:
        pytest.skip(capabilities.reason)
    offered = capabilities.kv_types
    recipe = Recipe(name="as-is", kv=KvType.FP8)
    request = BuildRequest(model=str(two_layer_hf), runtimes=(name,), recipe=recipe)
    (result,) = build_for(runtimes_context, request).results
    assert result.status == "refused"
    assert result.error is not None
    assert result.error["code"] == "kv-type-unsupported"
    assert result.error["message"] == f"{name} has no fp8 KV cache"
    assert offered
    assert result.error["hint"] == f"it has: {', '.join(offered)}"
