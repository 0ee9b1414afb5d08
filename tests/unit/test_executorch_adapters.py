"""What the ExecuTorch family declares where its libraries are absent, and how a file is reported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.errors import EdgewiseError, IntegrityError, UnsupportedError
from edgewise.runtimes import coreml, executorch, qnn
from edgewise.runtimes.executorch.engine import _refuse_backends, _refuse_config
from edgewise.runtimes.executorch.pte import PteFile
from edgewise.runtimes.executorch.record import (
    ExportRecord,
    partition_of,
    read_record,
    write_record,
)
from edgewise.runtimes.installer import lock_text

PROGRAM = PteFile(
    constants={"get_vocab_size": 49152},
    delegate_calls={"XnnpackBackend": 24},
    kernel_calls={"aten::mean.out": 5, "aten::add.out": 1, "llama::custom_sdpa.out": 2},
    arena_bytes=8978496,
    segments_bytes=255361792,
)
RECORD = ExportRecord(
    format="f32",
    backend="xnnpack",
    method="rtn",
    context_length=2048,
    step_tokens=128,
    kv_bytes_per_token=3072,
    delegated={"aten_linear_default": 15, "aten_mul_tensor": 35},
)
ABSENT = "executorch" not in sys.modules and executorch.native.installed_version() is None


def test_the_lock_pins_exact_versions() -> None:
    lines = lock_text(executorch.ENVIRONMENT).split()
    assert all(line.count("==") == 1 for line in lines)
    assert "torch==2.13.0" in lines
    for requirement in (*executorch.ENVIRONMENT.run, *executorch.ENVIRONMENT.export):
        assert requirement in lines
    names = {line.split("==")[0].lower() for line in lines}
    assert {"filelock", "jinja2", "msgspec", "numpy", "platformdirs", "psutil"} <= names
    assert {"rfc8785", "tokenizers"} <= names
    assert not any("+" in line or "/" in line for line in lines)


@pytest.mark.skipif(not ABSENT, reason="executorch is installed beside Edgewise")
@pytest.mark.parametrize("adapter", [executorch.adapter, coreml.adapter])
def test_without_its_libraries_a_runtime_says_so(adapter) -> None:
    found = adapter.capabilities()
    assert (found.can_export, found.can_run) == (False, False)
    assert "executorch" in found.reason
    assert found.missing
    with pytest.raises(UnsupportedError):
        adapter.operators_digest()


def test_the_runtimes_share_an_environment() -> None:
    assert coreml.adapter.environment is qnn.adapter.environment is executorch.ENVIRONMENT


def test_qnn_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QAIRT_SDK_ROOT", raising=False)
    found = qnn.adapter.capabilities()
    assert not found.can_export
    assert not found.can_run
    assert found.unverified
    assert any("QAIRT" in name for name in found.missing)
    assert "libQnnHtp.so" in found.missing
    for refused in (
        qnn.adapter.exporter,
        qnn.adapter.prepare,
        lambda: qnn.adapter.engine(tmp_path, RunConfig()),
    ):
        with pytest.raises(UnsupportedError) as error:
            refused()
        assert "libQnnHtp.so" in error.value.context["missing"]


def test_qnn_looks_for_the_files_themselves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "lib" / "x86_64-linux-clang" / "libQnnHtp.so"
    library.parent.mkdir(parents=True)
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(tmp_path))
    assert "libQnnHtp.so" in qnn.missing_pieces()
    library.touch()
    assert qnn.missing_pieces() == ("a Snapdragon device with a Hexagon NPU",)
    assert not qnn.adapter.capabilities().can_export


def test_no_worker_lets_the_vendor_kit_be_fetched() -> None:
    for adapter in (executorch.adapter, coreml.adapter, qnn.adapter):
        assert adapter.worker_environment(RunConfig())["QNN_SDK_ROOT"] == ""


def test_huge_pages_are_asked_for_beside_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = "glibc.malloc.hugetlb=1"
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    environment = executorch.adapter.worker_environment
    assert "GLIBC_TUNABLES" not in environment(RunConfig())
    assert environment(RunConfig(huge_pages=True))["GLIBC_TUNABLES"] == ours
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    asked = environment(RunConfig(huge_pages=True))["GLIBC_TUNABLES"]
    assert asked == f"glibc.malloc.arena_max=1:{ours}"


def test_coreml_runs_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as refused:
        coreml.adapter.engine(tmp_path, RunConfig())
    assert refused.value.code == "runtime-cannot-run"


def test_a_partition_counts_inside_a_backend_by_the_record() -> None:
    report = partition_of(PROGRAM, RECORD)
    assert report.requested == "XnnpackBackend"
    assert report.operators["aten_linear_default"] == {"XnnpackBackend": 15}
    assert report.operators["aten::mean.out"] == {"executorch-cpu": 5}
    assert report.fallbacks == ("aten::add.out", "aten::mean.out", "llama::custom_sdpa.out")
    assert (report.delegated, report.fallen_back) == (50, 8)
    assert report.weights == {"XnnpackBackend": 15}


def test_a_partition_without_a_record_counts_calls() -> None:
    report = partition_of(PROGRAM, None)
    assert report.operators["delegate-call"] == {"XnnpackBackend": 24}
    assert (report.delegated, report.fallen_back) == (24, 8)


def test_a_program_for_no_backend_falls_back_nowhere() -> None:
    record = ExportRecord(
        **{name: getattr(RECORD, name) for name in RECORD.__struct_fields__}
        | {"backend": "portable", "delegated": {}}
    )
    program = PteFile(
        constants={},
        delegate_calls={},
        kernel_calls={"aten::mm.out": 3},
        arena_bytes=0,
        segments_bytes=0,
    )
    report = partition_of(program, record)
    assert (report.delegated, report.fallen_back, report.fallbacks) == (3, 0, ())


def test_a_record_survives_and_damage_is_typed(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    write_record(tmp_path, RECORD)
    assert read_record(tmp_path) == RECORD
    path = tmp_path / "export.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))
    with pytest.raises(IntegrityError):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (RunConfig(context_length=4096, kv_type=KvType.F32), "context-too-long"),
        (RunConfig(context_length=64), "kv-type-unsupported"),
        (RunConfig(kv_type=KvType.F32, flash_attention=True), "flash-attention-unsupported"),
        (RunConfig(kv_type=KvType.F32, load_mode=LoadMode.MALLOC), "load-mode-unsupported"),
    ],
)
def test_a_configuration_the_program_lacks_is_refused(config: RunConfig, code: str) -> None:
    with pytest.raises(EdgewiseError) as refused:
        _refuse_config(config, 2048)
    assert refused.value.code == code


def test_a_backend_this_build_lacks_is_named() -> None:
    _refuse_backends(PROGRAM, ["XnnpackBackend", "QnnBackend"])
    with pytest.raises(UnsupportedError) as refused:
        _refuse_backends(PROGRAM, ["QnnBackend"])
    assert refused.value.context["missing"] == ["XnnpackBackend"]
