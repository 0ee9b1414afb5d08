"""What wllama declares, refuses and reports without a browser."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.builders import tiny_gguf

from edgewise.core.quantity import Measured, Unknown
from edgewise.core.recipe import KvType, Recipe, RunConfig
from edgewise.errors import AdapterError, IntegrityError, UnsupportedError
from edgewise.runtimes import registry
from edgewise.runtimes.launch import RUNTIMES_VARIABLE
from edgewise.runtimes.wllama import adapter, site
from edgewise.runtimes.wllama.report import buffer_bytes, partition_report

# Lines that wllama 3.13.0 logged for a model of 30 layers.
LOG = (
    "D load_tensors:          CPU model buffer size =    92.10 MiB",
    "D llama_context:        CPU  output buffer size =     0.19 MiB",
    "D llama_kv_cache:        CPU KV buffer size =    11.25 MiB",
    "D resolve_fused_ops: Flash Attention enabled",
    "D sched_reserve:        CPU compute buffer size =     1.89 MiB",
    "D sched_reserve: graph: nodes = 939, splits = 1, input objects = 4, input tensors = 9",
)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with no browser and no environment."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr("edgewise.runtimes.browser.chromium._MAC_APPLICATIONS", ())
    monkeypatch.setenv(RUNTIMES_VARIABLE, str(tmp_path / "runtimes"))


def test_it_is_registered() -> None:
    assert registry.adapter("wllama") is adapter
    assert adapter.source_form == "gguf"
    assert adapter.environment.npm[0].name == "@wllama/wllama"


@pytest.mark.usefixtures("bare")
def test_what_is_missing_is_named() -> None:
    found = adapter.capabilities()
    assert found.can_export
    assert not found.can_run
    assert "browser" in found.reason
    assert "@wllama/wllama@3.13.0" in found.reason
    assert len(found.missing) >= 2
    assert found.version is None
    assert adapter.version() == "not-installed"
    with pytest.raises(UnsupportedError):
        adapter.operators_digest()
    with pytest.raises(UnsupportedError):
        adapter.prepare()


@pytest.mark.usefixtures("bare")
def test_an_engine_is_refused_where_it_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        adapter.engine(tiny_gguf(tmp_path / "a.gguf"), RunConfig())
    assert caught.value.code == "npm-package-missing"


def test_a_checkpoint_is_taken_over(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path / "a.gguf")
    out = tmp_path / "out"
    out.mkdir()
    made = adapter.exporter().export(source, out, Recipe(name="as-shipped"), threads=1)
    assert (out / "model.gguf").read_bytes() == source.read_bytes()
    assert [path.name for path in out.iterdir()] == ["model.gguf"]
    assert made.copied
    assert made.resolved is None
    assert made.tools == {"@wllama/wllama": "3.13.0"}
    assert made.types["f32"] > 0


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(name="x", weights="int4"),
        Recipe(name="x", weights="q8_0"),
        Recipe(name="x", embedding="f16"),
        Recipe(name="x", method="imatrix"),
        Recipe(name="x", overrides=(("a", "f16"),)),
    ],
)
def test_any_other_recipe_is_refused(tmp_path: Path, recipe: Recipe) -> None:
    source = tiny_gguf(tmp_path / "a.gguf")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UnsupportedError) as caught:
        adapter.exporter().export(source, out, recipe, threads=1)
    assert "as-is" in str(caught.value.hint)
    assert not list(out.iterdir())


def test_a_file_larger_than_a_browser_takes(tmp_path: Path) -> None:
    big = tmp_path / "big.gguf"
    big.write_bytes(tiny_gguf(tmp_path / "a.gguf").read_bytes())
    os.truncate(big, site.FILE_BYTES_MAX + 1)  # sparse
    out = tmp_path / "out"
    out.mkdir()
    for attempt in (
        lambda: site.gguf_of(big),
        lambda: adapter.exporter().export(big, out, Recipe(name="x"), threads=1),
    ):
        with pytest.raises(UnsupportedError) as caught:
            attempt()
        assert caught.value.code == "wllama-file-too-large"
    assert not list(out.iterdir())


def test_an_artifact_is_a_file_or_a_folder_with_one(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf")
    assert site.gguf_of(path) == site.gguf_of(tmp_path) == path
    tiny_gguf(tmp_path / "b.gguf")
    with pytest.raises(IntegrityError):
        site.gguf_of(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(kv_type=KvType.U4),
        RunConfig(threads=64),
        RunConfig(hints=(("webgpu", "on"),)),
    ],
)
def test_configurations_it_has_not(tmp_path: Path, config: RunConfig) -> None:
    with pytest.raises(UnsupportedError):
        site.load_params(tmp_path / "a.gguf", config)


def test_what_the_page_is_told(tmp_path: Path) -> None:
    told = site.load_params(tmp_path / "a.gguf", RunConfig(context_length=512, threads=3))
    assert told["model"] == "/model/a.gguf"
    assert (told["context_length"], told["threads"], told["kv_type"]) == (512, 3, "f16")


def test_reports_from_the_log() -> None:
    found = partition_report(LOG, 2)
    assert found.operators == {"graph nodes": {"CPU": 939}}
    assert found.fallbacks == ()
    assert found.delegated == 939
    assert "threads=2" in found.features
    assert "flash attention" in found.features
    weights = buffer_bytes(LOG, "model")
    assert isinstance(weights, Measured)
    assert weights.number == int(92.10 * (1 << 20))
    both = buffer_bytes(LOG, "compute", "output")
    assert isinstance(both, Measured)
    assert both.number == int(2.08 * (1 << 20))


def test_a_divided_graph_is_a_fallback() -> None:
    gpu = "D sched_reserve: WebGPU compute buffer size = 1.00 MiB"
    log = [line.replace("splits = 1", "splits = 3") for line in LOG]
    found = partition_report([*log, gpu], 1)
    assert found.fallbacks == ("graph nodes",)
    assert found.delegated == 0


def test_a_silent_log_is_unknown_not_zero() -> None:
    assert isinstance(buffer_bytes((), "KV"), Unknown)
    with pytest.raises(AdapterError):
        partition_report((), 1)
