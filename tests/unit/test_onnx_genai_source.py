"""What the onnx-genai adapter takes and refuses before it loads anything native."""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.test_onnx_genai_formats import float_model, model, node

from edgewise.core.formats import OfferedFormat, TensorFormat
from edgewise.core.recipe import KvType, LoadMode, Recipe, RunConfig
from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    InputError,
    IntegrityError,
    UnsupportedError,
)
from edgewise.runtimes.onnx_genai import adapter, native
from edgewise.runtimes.onnx_genai import engine as engine_module
from edgewise.runtimes.onnx_genai import exporter as exporter_module
from edgewise.runtimes.onnx_genai.engine import OnnxGenAiEngine
from edgewise.runtimes.onnx_genai.exporter import OnnxExporter
from edgewise.runtimes.onnx_genai.formats import FORMATS, Weight
from edgewise.runtimes.onnx_genai.graph import parse_graph
from edgewise.runtimes.onnx_genai.source import read_source

CPU = native.CPU


def config(**more: object) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "eos_token_id": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "vocab_size": 100,
        **more,
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config()))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def rewrite(folder: Path, **more: object) -> None:
    (folder / "config.json").write_text(json.dumps(config(**more)))


def test_a_checkpoint_says_what_it_is(checkpoint: Path) -> None:
    source = read_source(checkpoint)
    assert source.architecture == "LlamaForCausalLM"
    assert source.tied
    assert source.context_length == 512
    assert source.end_tokens == (0, 2)


def test_end_tokens_need_no_generation_config(checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").unlink()
    assert read_source(checkpoint).end_tokens == (2,)
    rewrite(checkpoint, eos_token_id=None)
    assert read_source(checkpoint).end_tokens == ()


@pytest.mark.parametrize("named", ["MambaForCausalLM", "GptOssForCausalLM", None, 7])
def test_an_architecture_without_rules_is_refused_by_name(checkpoint: Path, named: object) -> None:
    rewrite(checkpoint, architectures=[named])
    with pytest.raises(UnsupportedError) as caught:
        read_source(checkpoint)
    assert caught.value.code == "architecture-unsupported"
    assert str(named) in caught.value.message


def test_a_known_unfaithful_export_is_refused_with_its_reason(checkpoint: Path) -> None:
    rewrite(checkpoint, architectures=["OlmoForCausalLM"])
    with pytest.raises(UnsupportedError, match="does not compute what the model does"):
        read_source(checkpoint)


@pytest.mark.parametrize("value", [None, [], "LlamaForCausalLM", {}])
def test_a_config_that_names_no_architecture_is_refused(checkpoint: Path, value: object) -> None:
    rewrite(checkpoint, architectures=value)
    with pytest.raises(UnsupportedError):
        read_source(checkpoint)


def test_quantised_weights_are_refused(checkpoint: Path) -> None:
    rewrite(checkpoint, quantization_config={"quant_method": "gptq"})
    with pytest.raises(UnsupportedError) as caught:
        read_source(checkpoint)
    assert caught.value.code == "source-quantised"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_a_part_is_refused(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    with pytest.raises(InputError):
        read_source(checkpoint)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_a_malformed_config_is_refused(checkpoint: Path, text: str) -> None:
    (checkpoint / "config.json").write_text(text)
    with pytest.raises(IntegrityError) as caught:
        read_source(checkpoint)
    assert caught.value.code == "json-malformed"


@pytest.mark.parametrize("key", ["vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [None, 0, -1, "512"])
def test_a_config_without_its_sizes_is_refused(checkpoint: Path, key: str, value: object) -> None:
    rewrite(checkpoint, **{key: value})
    with pytest.raises(IntegrityError):
        read_source(checkpoint)


class Tokenizer:
    vocab_size = 100

    def __init__(self, folder: Path) -> None:
        assert (folder / "tokenizer.json").is_file()


@pytest.fixture
def any_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module, "HfTokenizer", Tokenizer)
    monkeypatch.setattr(engine_module, "HfTokenizer", Tokenizer)


@pytest.mark.parametrize(
    ("recipe", "code"),
    [
        (Recipe(name="r", weights="f16"), "recipe-unsupported"),
        (Recipe(name="r", weights="f32", kv=KvType.U8), "recipe-unsupported"),
        (Recipe(name="r", weights="f32", overrides=(("x", "f32"),)), "recipe-unsupported"),
        (Recipe(name="r", weights="f32", context_length=513), "context-too-long"),
    ],
)
@pytest.mark.usefixtures("any_tokenizer")
def test_a_recipe_is_refused_before_anything_is_built(
    checkpoint: Path, tmp_path: Path, recipe: Recipe, code: str
) -> None:
    destination = tmp_path / "out"
    destination.mkdir()
    with pytest.raises(UnsupportedError) as caught:
        OnnxExporter().export(checkpoint, destination, recipe, threads=1)
    assert caught.value.code == code
    assert caught.value.hint
    assert list(destination.iterdir()) == []


@pytest.mark.usefixtures("any_tokenizer")
def test_a_calibration_set_that_nothing_would_use_is_refused(
    checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        OnnxExporter().export(
            checkpoint,
            tmp_path,
            Recipe(name="r", weights="int4"),
            threads=1,
            calibration=tmp_path / "texts",
        )
    assert caught.value.code == "calibration-unused"


@pytest.mark.usefixtures("any_tokenizer")
def test_a_tokenizer_of_another_model_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    rewrite(checkpoint, vocab_size=99)
    with pytest.raises(IntegrityError) as caught:
        OnnxExporter().export(checkpoint, tmp_path, Recipe(name="r", weights="f32"), threads=1)
    assert caught.value.code == "tokenizer-mismatch"


@pytest.mark.usefixtures("any_tokenizer")
def test_a_failed_export_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = tmp_path / "out"
    destination.mkdir()

    def half(_checkpoint: object, folder: Path, *_: object) -> int:
        (folder / ".cache").mkdir()
        (folder / "model.onnx").write_bytes(b"half")
        return 0

    monkeypatch.setattr(exporter_module, "_build", half)
    with pytest.raises(IntegrityError):
        OnnxExporter().export(checkpoint, destination, Recipe(name="r", weights="f32"), threads=1)
    assert list(destination.iterdir()) == []


@pytest.mark.usefixtures("any_tokenizer")
def test_a_finished_export_holds_what_is_read_later_and_no_more(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = tmp_path / "out"
    destination.mkdir()

    def build(_checkpoint: object, folder: Path, *_: object) -> int:
        (folder / ".cache").mkdir()
        (folder / "vocab.json").write_text("{}")
        (folder / "model.onnx").write_bytes(float_model())
        write_artifact(folder, {"eos_token_id": 2})
        return 0

    monkeypatch.setattr(exporter_module, "_build", build)
    result = OnnxExporter().export(
        checkpoint, destination, Recipe(name="r", weights="f32"), threads=1
    )
    assert {path.name for path in destination.iterdir()} == {
        "genai_config.json",
        "model.onnx",
        "tokenizer.json",
    }
    assert result.resolved.name == "fp32"
    assert result.types == {"f32": 2}
    assert result.notes == ("end tokens corrected from [2] to [0, 2]",)


class SafetensorError(Exception):
    """As the library's own, which is known by its name."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk-full"),
        (RuntimeError("write failed: No space left on device"), "disk-full"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "export-out-of-memory"),
        (MemoryError(), "export-out-of-memory"),
        (SafetensorError("header"), "source-damaged"),
        (OSError("no file named model.safetensors"), "export-failed"),
        (KeyError("rope_type"), "export-failed"),
        (AdapterError("own", "an error with a type of its own"), "own"),
    ],
)
def test_a_failing_builder_leaves_a_typed_error(
    tmp_path: Path, error: Exception, code: str
) -> None:
    with (
        pytest.raises(EdgewiseError) as caught,
        exporter_module._typed_failures(tmp_path, io.StringIO("last words")),
    ):
        raise error
    assert caught.value.code == code


def weight(part: str, text: TensorFormat) -> Weight:
    return Weight(tensor=f"{part}.weight", part=part, format=text)


def offer(name: str) -> OfferedFormat:
    return next(one for one in FORMATS if one.name == name)


def test_an_export_that_is_not_as_promised_is_refused() -> None:
    wanted, other = offer("rtn-int4"), offer("rtn-int8")
    good = (
        weight("embedding", wanted.embedding),
        weight("body", wanted.weights),
        weight("head", wanted.output),
    )
    exporter_module._require(wanted, good)
    for index, promised in enumerate((other.embedding, other.weights, other.output)):
        changed = list(good)
        changed[index] = weight(good[index].part, promised)
        with pytest.raises(AdapterError) as caught:
            exporter_module._require(wanted, tuple(changed))
        assert caught.value.code == "export-not-as-promised"


def test_a_matrix_in_another_format_is_a_deviation() -> None:
    wanted = offer("rtn-int4")
    mixed = (weight("body", wanted.weights), weight("body", offer("rtn-int8").weights))
    found = list(exporter_module._deviations(wanted, mixed))
    assert [(one.asked, one.got) for one in found] == [("int4-g32-sym-f32", "int8-g32-sym-f32")]


@pytest.mark.parametrize(
    ("written", "expected", "notes"),
    [([0, 2], [0, 2], 0), (2, [0, 2], 1), (None, [0, 2], 1), ([0, 2, 5], [0, 2, 5], 0)],
)
def test_end_tokens_are_those_of_source_and_builder_together(
    checkpoint: Path, written: object, expected: list[int], notes: int
) -> None:
    made = {"model": {"eos_token_id": written, "context_length": 512}}
    said = list(exporter_module._correct(made, read_source(checkpoint), 512))
    assert made["model"]["eos_token_id"] == expected
    assert len(said) == notes


def test_a_shorter_context_is_written_and_said(checkpoint: Path) -> None:
    made = {"model": {"eos_token_id": [0, 2], "context_length": 512}}
    said = list(exporter_module._correct(made, read_source(checkpoint), 128))
    assert made == {
        "model": {"eos_token_id": [0, 2], "context_length": 128},
        "search": {"max_length": 128},
    }
    assert said == ["context length set from 512 to 128"]


def test_a_filled_in_tensor_is_refused() -> None:
    exporter_module._refuse_incomplete(["something else"])
    with pytest.raises(IntegrityError) as caught:
        exporter_module._refuse_incomplete(["model.norm.weight | MISSING | newly initialized"])
    assert caught.value.code == "checkpoint-incomplete"


def test_a_rotary_base_by_layer_type_is_put_where_the_builder_reads_it() -> None:
    nested = SimpleNamespace(
        rope_parameters={
            "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        }
    )
    exporter_module._flatten_rope(nested)
    assert nested.rope_parameters == {"rope_theta": 1e6, "rope_type": "default"}
    assert (nested.rope_theta, nested.rope_local_base_freq) == (1e6, 1e4)
    flat = SimpleNamespace(rope_parameters={"rope_theta": 1e5, "rope_type": "default"})
    exporter_module._flatten_rope(flat)
    assert vars(flat) == {"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}}


def test_a_window_without_layer_types_is_one_for_every_layer() -> None:
    whole = SimpleNamespace(sliding_window=32, num_hidden_layers=3)
    assert exporter_module._state_windows(whole) == 3
    assert whole.layer_types == ["sliding_attention"] * 3
    mixed = SimpleNamespace(
        sliding_window=32, layer_types=["sliding_attention", "full_attention"], num_hidden_layers=2
    )
    assert exporter_module._state_windows(mixed) == 1
    for none in (SimpleNamespace(sliding_window=None), SimpleNamespace()):
        assert exporter_module._state_windows(none) == 0


def test_a_graph_that_lost_its_windows_is_refused() -> None:
    attention = node("GroupQueryAttention", "a", ["q"], local_window_size=32)
    full = node("GroupQueryAttention", "b", ["q"], local_window_size=-1)
    graph = parse_graph(model(attention, full))
    exporter_module._require_windows(graph, 1)
    for wrong in (0, 2):
        with pytest.raises(AdapterError) as caught:
            exporter_module._require_windows(graph, wrong)
        assert caught.value.code == "export-not-as-promised"


LINEAR = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    "stated",
    [
        {"rope_parameters": LINEAR},
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": {}}},
    ],
)
def test_rotary_scaling_that_the_builder_may_ignore_is_refused(
    checkpoint: Path, stated: dict[str, Any]
) -> None:
    rewrite(checkpoint, **stated)
    with pytest.raises(UnsupportedError) as caught:
        read_source(checkpoint)
    assert caught.value.code == "rope-unsupported"


@pytest.mark.parametrize(
    "stated",
    [
        {"rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
    ],
)
def test_rotary_scaling_that_came_out_right_is_taken(
    checkpoint: Path, stated: dict[str, Any]
) -> None:
    rewrite(checkpoint, **stated)
    assert read_source(checkpoint).architecture == "LlamaForCausalLM"


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_tokenizer: None) -> Path:
    monkeypatch.setattr(native, "loaded_providers", lambda: (CPU,))
    folder = tmp_path / "artifact"
    folder.mkdir()
    write_artifact(folder)
    (folder / "model.onnx").write_bytes(float_model())
    (folder / "tokenizer.json").write_text("{}")
    return folder


def write_artifact(folder: Path, model: dict[str, Any] | None = None, **more: Any) -> None:
    decoder = {
        "filename": "model.onnx",
        "num_hidden_layers": 2,
        "num_key_value_heads": 3,
        "head_size": 64,
        **more,
    }
    facts = {"vocab_size": 100, "context_length": 512, "decoder": decoder, **(model or {})}
    (folder / "genai_config.json").write_text(json.dumps({"model": facts}))


def run(artifact: Path, **more: object) -> str:
    settings: dict[str, Any] = {"kv_type": KvType.F32, "context_length": 256, **more}
    with pytest.raises(EdgewiseError) as caught:
        OnnxGenAiEngine(artifact, RunConfig(**settings))
    return caught.value.code


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"kv_type": KvType.F16}, "kv-type-unsupported"),
        ({"load_mode": LoadMode.MALLOC}, "load-mode-unsupported"),
        ({"context_length": 513}, "context-too-long"),
        ({"hints": (("execution_provider", "CUDAExecutionProvider"),)}, "backend-not-loaded"),
        ({"hints": (("allow_spinning", "yes"),)}, "hint-invalid"),
        ({"hints": (("precision", "f16"),)}, "hint-unknown"),
    ],
)
def test_what_would_run_otherwise_than_configured_is_refused(
    artifact: Path, settings: dict[str, object], code: str
) -> None:
    assert run(artifact, **settings) == code


@pytest.mark.parametrize(
    "more",
    [
        {"filename": "../model.onnx"},
        {"num_hidden_layers": 0},
        {"head_size": None},
        {"filename": "other.onnx"},
    ],
)
def test_a_damaged_artifact_is_refused(artifact: Path, more: dict[str, Any]) -> None:
    write_artifact(artifact, **more)
    assert run(artifact) in {"artifact-damaged", "onnx-unreadable"}


def test_an_artifact_without_its_parts_is_refused(artifact: Path) -> None:
    (artifact / "genai_config.json").write_text('{"model": []}')
    assert run(artifact) == "artifact-damaged"
    (artifact / "genai_config.json").unlink()
    assert run(artifact) == "json-malformed"


def test_the_wrong_tokenizer_beside_the_right_model_is_refused(artifact: Path) -> None:
    write_artifact(artifact, {"vocab_size": 99})
    assert run(artifact) == "tokenizer-mismatch"


def test_memory_that_runs_out_is_a_resource_error() -> None:
    from edgewise.errors import ResourceError

    for error in (MemoryError(), RuntimeError("Failed to allocate memory for 12 bytes")):
        assert isinstance(engine_module._typed(error, "decode-failed", "x"), ResourceError)
    assert engine_module._typed(RuntimeError("x"), "decode-failed", "x").code == "decode-failed"


def test_importing_the_adapter_loads_no_library() -> None:
    assert adapter.source_form == "hf"
    assert adapter.environment.package == "onnx_genai"
    assert not {"onnxruntime", "onnxruntime_genai", "torch"} & set(sys.modules)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(native, "installed_version", lambda: None)
    native.load.cache_clear()
    native.load_runtime.cache_clear()


@pytest.mark.usefixtures("nothing_installed")
def test_without_its_libraries_it_says_so() -> None:
    found = adapter.capabilities()
    assert (found.can_run, found.can_export, found.version) == (False, False, None)
    assert found.reason
    assert adapter.version() == "not-installed"
    for call in (adapter.prepare, adapter.operators_digest, adapter.exporter):
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert "runtime install onnx-genai" in str(caught.value.hint)


def test_the_lock_pins_what_the_environment_asks_for() -> None:
    lock = Path(native.__file__).with_name("lock.txt").read_text().splitlines()
    assert all("==" in line and "@" not in line for line in lock)
    spec = adapter.environment
    assert {*spec.run, *spec.export} <= set(lock)


def test_huge_pages_are_asked_for_before_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "a=b")
    assert adapter.worker_environment(RunConfig()) == {}
    assert adapter.worker_environment(RunConfig(huge_pages=True)) == {
        "GLIBC_TUNABLES": "a=b:glibc.malloc.hugetlb=1"
    }
