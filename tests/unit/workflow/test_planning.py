"""Planning a file as the command line and the Python interface do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders import tiny_gguf
from tests.unit.core.values import UNKNOWN

import edgewise
from edgewise.core.quantity import Declared, Estimated, Measured, Unknown
from edgewise.core.recipe import KvType, LoadMode
from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.planner import Verdict
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.planning import PlanRequest, app_share, device_tier, locate, plan_model


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Home(tmp_path / "home"))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path / "tiny.gguf")


def request(path: Path, **fields: Any) -> PlanRequest:
    return PlanRequest(model=str(path), **{"tier": "raspberry-pi", **fields})


def test_a_tiny_file_fits(context: Context, tiny: Path) -> None:
    plan = plan_model(context, request(tiny))
    assert plan.verdict is Verdict.FITS
    assert plan.tier.name == "raspberry-pi"
    assert plan.model == {
        "name": "tiny.gguf",
        "sha256": None,
        "architecture": "llama",
        "parameters": 18848,
        "context_length_trained": 128,
        "file_size_bytes": tiny.stat().st_size,
    }
    assert isinstance(plan.memory.weights_bytes, Estimated)
    assert plan.memory.weights_bytes.value == 18848 * 4
    assert any("trained for" in reason for reason in plan.reasons)  # 2048 asked, 128 trained
    assert plan.run_config.flash_attention


def test_a_local_file_is_read_where_it_lies(context: Context, tiny: Path) -> None:
    plan_model(context, request(tiny))
    assert locate(context, str(tiny))[0] == tiny
    assert not context.home.root.exists()


def test_an_unknown_architecture_is_a_verdict(context: Context, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", architecture="mamba")
    plan = plan_model(context, request(path))
    assert plan.verdict is Verdict.UNKNOWN
    assert any("kv_cache_bytes" in reason for reason in plan.reasons)
    assert plan.model["architecture"] == "mamba"
    assert plan.model["parameters"] is None
    assert isinstance(plan.memory.kv_cache_bytes, Unknown)
    assert "mamba" in plan.memory.kv_cache_bytes.reason
    data = msgspec.json.encode(plan)
    assert b"NaN" not in data
    assert b"Infinity" not in data
    assert msgspec.json.decode(data)["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"tier": "toaster"}, InputError, "tier-unknown"),
        ({"context_length": 0}, InputError, "run-config-invalid"),
        ({"context_length": 2**31 + 1}, InputError, "run-config-invalid"),
        ({"runtime": "none"}, UnsupportedError, "runtime-unknown"),
        ({"model": "/no/such.gguf"}, InputError, "file-missing"),
    ],
)
def test_questions_that_cannot_be_answered(
    context: Context, tiny: Path, fields: dict[str, Any], error: Any, code: str
) -> None:
    with pytest.raises(error) as caught:
        plan_model(context, msgspec.structs.replace(request(tiny), **fields))
    assert caught.value.code == code


def test_a_damaged_file(context: Context, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(IntegrityError):
        plan_model(context, request(path))


def test_the_applications_share(tiny: Path) -> None:
    assert app_share(request(tiny), here=False) == Declared(
        value=64 << 20, source="reserve for a hosting application; state another with --app"
    )
    stated = app_share(request(tiny, app_bytes=0), here=True)
    assert stated == Declared(value=0, source="stated by the caller")
    here = app_share(request(tiny), here=True)
    assert isinstance(here, Measured)
    assert here.number > 1 << 20


def test_this_device_as_a_tier(context: Context) -> None:
    profile = context.device
    tier = device_tier(profile, huge_pages=False)
    assert tier.name == "this-device"
    assert tier.memory_budget_bytes == profile.memory.budget_bytes
    assert tier.memory_total_bytes == profile.memory.total_bytes
    assert tier.page_bytes in {4096, 16384, 65536}
    assert isinstance(tier.memory_bandwidth_bytes_s, Unknown)  # nothing was measured


def test_an_unreadable_device_stays_unknown(context: Context) -> None:
    profile = context.device
    blind = msgspec.structs.replace(
        profile,
        memory=msgspec.structs.replace(
            profile.memory, budget_bytes=UNKNOWN, total_bytes=UNKNOWN, page_bytes=UNKNOWN
        ),
        cpu=msgspec.structs.replace(profile.cpu, model=UNKNOWN),
    )
    tier = device_tier(blind, huge_pages=True)
    assert tier.memory_budget_bytes == UNKNOWN
    assert tier.title == "this device (unknown)"
    assert tier.page_bytes == 4096


def test_the_python_interface(tiny: Path, tmp_path: Path) -> None:
    plan = edgewise.plan(
        str(tiny), tier="laptop", context_length=100, kv_type="q8_0", app_bytes=5, home=tmp_path
    )
    assert plan.verdict is edgewise.Verdict.FITS
    assert plan.run_config.kv_type is KvType.Q8_0
    assert plan.run_config.context_length == 100
    assert plan.memory.app_bytes == Declared(value=5, source="stated by the caller")
    assert plan.run_config.load_mode in LoadMode
    with pytest.raises(InputError) as caught:
        edgewise.plan(str(tiny), tier="laptop", kv_type="q4")
    assert caught.value.code == "kv-type-unknown"
    with pytest.raises(UnsupportedError) as refused:
        edgewise.plan(str(tiny), tier="laptop", kv_type="fp8")
    assert refused.value.code == "kv-type-unsupported"
    assert refused.value.hint == "it has: f16, q8_0, q4_0"


def test_a_draft_with_another_vocabulary_is_refused_with_both_names(
    context: Context, tiny: Path, tmp_path: Path
) -> None:
    other = tiny_gguf(tmp_path / "other.gguf", metadata={"tokenizer.ggml.pre": "gpt-2"})
    with pytest.raises(InputError, match="draft-vocabulary") as caught:
        plan_model(context, request(tiny, draft=str(other)))
    assert "other.gguf" in caught.value.message
    assert "tiny.gguf" in caught.value.message
    assert len(set(map(str, caught.value.context.values()))) == 4


def test_a_draft_no_smaller_than_the_model_is_refused(context: Context, tiny: Path) -> None:
    with pytest.raises(InputError, match="draft-too-large"):
        plan_model(context, request(tiny, draft=str(tiny)))


def test_a_draft_that_is_no_model_is_refused(context: Context, tiny: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[:200])
    with pytest.raises(IntegrityError):
        plan_model(context, request(tiny, draft=str(cut)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"runtime": "openvino"}, "openvino"), ({"parallel": 2}, "one request at a time")],
    ids=["runtime", "parallel"],
)
def test_where_there_is_no_place_for_a_draft(
    context: Context, tiny: Path, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedError, match="draft-unsupported") as caught:
        plan_model(context, request(tiny, draft=str(tiny), **fields))
    assert words in caught.value.message
