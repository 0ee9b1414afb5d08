"""Every runtime: one checkpoint built, run, held to the contract, and compared with its source.

The whole path of a user: `build`, `runtime check`, `parity source …`, `compare`.
"""

from __future__ import annotations

import pytest
from tests.runtimes.conftest import Builder

from edgewise.qualify.parity import References
from edgewise.qualify.parity_gate import GATES
from edgewise.runtimes import registry
from edgewise.runtimes.launch import look_for
from edgewise.store import trees
from edgewise.testing import Verdict
from edgewise.workflow.artifacts import label
from edgewise.workflow.comparing import CompareRequest, compare
from edgewise.workflow.context import Context
from edgewise.workflow.contract import check_contract
from edgewise.workflow.parity import ParityRequest, check_parity

# Runtime, recipe, and the gate that its parity with the F32 source is held to.
MATRIX = [
    ("llamacpp", "f32", "float"),
    ("llamacpp", "int4", "int4"),
    ("ik", "int8", "int8"),
    ("onnx-genai", "f32", "float"),
    ("onnx-genai", "int4", "int4"),
    ("openvino", "f32", "float"),
    ("openvino", "int8", "int8"),
    ("executorch", "f32", "float"),
    ("executorch", "w4a8", "int4"),
    ("litert", "f32", "float"),
    ("litert", "int8", "int8"),
    ("mlx", "f32", "float"),
    ("tvm", "f32", "float"),
    ("wllama", "as-is", "as-shipped"),
]
CASES = [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in MATRIX]

pytestmark = [pytest.mark.runtime, pytest.mark.model]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("references"))


def _require(*names: str) -> None:
    for name in names:
        presence = look_for(registry.adapter(name))
        if presence.absent or not presence.can_export:
            pytest.skip(presence.reason)


@pytest.mark.parametrize(("runtime", "recipe", "gate"), CASES)
def test_it_is_built_and_the_receipt_is_complete(
    built: Builder, runtimes_context: Context, runtime: str, recipe: str, gate: str
) -> None:
    _require(runtime)
    receipt = built(runtime, recipe)
    assert receipt.runtime == runtime
    assert receipt.runtime_version not in {"", "not-installed"}
    assert receipt.size_bytes == sum(entry.size_bytes for entry in receipt.files)
    assert len(receipt.operators) == 64
    assert len(receipt.fingerprint) == 64
    assert not receipt.double_quantised  # the checkpoint is a float one
    assert receipt.seconds.number > 0
    assert receipt.peak_memory_bytes.number > 1 << 20
    assert trees.verified_path(runtimes_context.home, receipt.sha256).exists()
    if receipt.resolved is not None:
        assert receipt.resolved.weights.kind == ("float" if gate == "float" else "int")
        assert receipt.tools
    assert not list(runtimes_context.home.staging.glob("work-*"))


@pytest.mark.parametrize(("runtime", "recipe", "gate"), CASES)
def test_the_contract_holds(
    built: Builder, runtimes_context: Context, runtime: str, recipe: str, gate: str
) -> None:
    _require(runtime)
    report = check_contract(runtimes_context, built(runtime, recipe).fingerprint)
    assert report.passed, report.failures
    assert any(check.verdict is Verdict.PASS for check in report.checks)


@pytest.mark.parametrize(("runtime", "recipe", "gate"), CASES)
def test_it_is_the_same_model(
    built: Builder,
    runtimes_context: Context,
    references: References,
    runtime: str,
    recipe: str,
    gate: str,
) -> None:
    _require(runtime, "transformers")
    receipt = built(runtime, recipe)
    request = ParityRequest(first="source", second=receipt.fingerprint, windows=2, window_tokens=48)
    report, _ = check_parity(runtimes_context, request, references)
    assert report.gate.gate == GATES[gate]
    assert report.gate.passed, (report.gate.reasons, report.distance)
    assert report.tokenizer_differs == ()
    assert all(answer.same_prompt for answer in report.answers)
    assert report.distance is not None
    assert report.distance.positions == 94


def test_the_table_has_a_row_for_each(
    built: Builder, runtimes_context: Context, two_layer_hf: object
) -> None:
    _require("transformers")
    made = {label(built(runtime, recipe)) for runtime, recipe, _ in MATRIX if _there(runtime)}
    comparison = compare(runtimes_context, CompareRequest(model=str(two_layer_hf)))
    assert made <= {row.label for row in comparison.rows}
    for row in comparison.rows:
        assert row.size_bytes > 0
        assert row.evidence


def _there(runtime: str) -> bool:
    presence = look_for(registry.adapter(runtime))
    return not presence.absent and presence.can_export
