"""The ik runtime without its library: layouts, refusals, memory lines."""

from __future__ import annotations

import ctypes
from pathlib import Path

import msgspec
import pytest
from tests.unit.core.values import GEMMA3, SMOLLM2

from edgewise.core.recipe import KvType, LoadMode, Recipe, RunConfig
from edgewise.errors import InputError, UnsupportedError
from edgewise.models.architecture import ModelShape
from edgewise.runtimes.ik import adapter
from edgewise.runtimes.ik.bindings import QuantizeParams, Tensor
from edgewise.runtimes.ik.exporter import FORMATS, IkExporter
from edgewise.runtimes.ik.library import IkLibrary
from edgewise.runtimes.llamacpp.upstream import LlamaCppLibrary

MIB = 1 << 20
FLASH = RunConfig(context_length=2048, flash_attention=True, batch_tokens=128)


def test_layouts_are_those_of_the_header() -> None:
    # ik_llama.cpp keeps a gradient pointer that llama.cpp has dropped: sources lie 8 bytes later.
    upstream = LlamaCppLibrary.tensor
    assert Tensor.buffer.offset == upstream.buffer.offset == 8
    assert Tensor.src.offset == upstream.src.offset + 8
    assert Tensor.name.offset == 264
    assert QuantizeParams.imatrix.offset == 64
    assert ctypes.sizeof(QuantizeParams) == 96


def test_its_quantiser_takes_no_extras() -> None:
    assert all(offer.methods == ("rtn",) for offer in FORMATS)


def test_an_override_is_refused_and_the_way_is_named(smollm2_path: Path, tmp_path: Path) -> None:
    recipe = Recipe(name="x", weights="q4_0", overrides=(("ffn_down", "q8_0"),))
    with pytest.raises(UnsupportedError) as caught:
        IkExporter().export(smollm2_path, tmp_path, recipe, threads=1)
    assert caught.value.code == "overrides-unsupported"
    assert "llamacpp" in str(caught.value.hint)
    imatrix = Recipe(name="x", weights="q4_0", method="imatrix")
    with pytest.raises(UnsupportedError):
        IkExporter().export(smollm2_path, tmp_path, imatrix, threads=1)
    assert list(tmp_path.iterdir()) == []


class _NoLibrary(IkLibrary):
    def bindings(self) -> object:
        return object()


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (RunConfig(hints=(("repack", "1"),)), "repack-needs-malloc"),
        (RunConfig(hints=(("repack", "yes"),), load_mode=LoadMode.MALLOC), "hint-invalid"),
    ],
)
def test_a_contradicting_setting_is_refused(config: RunConfig, code: str) -> None:
    with pytest.raises(InputError) as caught:
        _NoLibrary().load_model(Path("x.gguf"), config)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("shape", "kv_cache", "workspace"),
    # MiB as its log says them (2026-11-30).
    [(SMOLLM2, 45.0, 24.5), (GEMMA3, 36.0, 129.3)],
)
def test_memory_lines_are_what_it_logged(
    shape: ModelShape, kv_cache: float, workspace: float
) -> None:
    lines = adapter.footprint(shape, FLASH)
    assert lines.weights_bytes.number == shape.weights_bytes
    assert lines.kv_cache_bytes.number / MIB == pytest.approx(kv_cache, rel=0.01)
    assert workspace <= lines.workspace_bytes.number / MIB <= workspace * 1.1


def test_a_tied_embedding_is_held_twice_unless_it_is_mapped() -> None:
    in_memory = msgspec.structs.replace(FLASH, load_mode=LoadMode.MALLOC)
    lines = adapter.footprint(SMOLLM2, in_memory)
    second = (lines.weights_bytes.number - SMOLLM2.weights_bytes) / MIB
    assert second == pytest.approx(120.8 - 92.1, rel=0.01)  # as its log says (2026-11-30)


def test_a_quantised_cache_takes_its_share() -> None:
    half = msgspec.structs.replace(FLASH, kv_type=KvType.Q8_0)
    lines = adapter.footprint(SMOLLM2, half)
    assert lines.kv_cache_bytes.number / MIB == pytest.approx(23.9, rel=0.01)


def test_it_says_what_is_missing_where_it_is_not_installed() -> None:
    found = adapter.capabilities()
    if found.version is None:
        assert not found.can_run
        assert "not installed" in found.reason
    assert adapter.environment.run == ("ik_llama_cpp_python==0.1.5",)
