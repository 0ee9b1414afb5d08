"""What broke the builds when they were attacked: each stays a typed error with a hint."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.hf_forms import edit_json, random_gguf

from edgewise.build import limits
from edgewise.cli.build import _exit_code
from edgewise.core.recipe import Recipe, resolve
from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    InputError,
    IntegrityError,
    RemoteError,
    ResourceError,
    UnsupportedError,
)
from edgewise.models.hf_form import gguf_to_hf, hf_to_gguf, read_hf
from edgewise.run import service
from edgewise.runtimes.installer import _pip_error
from edgewise.runtimes.mlx.formats import FORMATS
from edgewise.store import Home, trees
from edgewise.workflow.building import Built
from edgewise.workflow.context import Context
from edgewise.workflow.converting import ConvertRequest, convert_checkpoint
from edgewise.workflow.parity import _material
from edgewise.workflow.up import UpRequest, bring_up


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")
    source = random_gguf(root / "m.gguf", metadata={"tokenizer.chat_template": "{{ 1 }}"})
    folder = root / "hf"
    folder.mkdir()
    gguf_to_hf(source, folder)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "hf"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 10**9),  # its tensors were listed until memory ran out
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", float("inf")),
        ("rms_norm_eps", 10**400),
        ("rope_scaling", "yarn"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),  # and rope_parameters: default
        ("rope_parameters", [1, 2]),
        ("rope_parameters", {"rope_theta": 10**400}),
    ],
)
def test_absurd_and_contradicting_settings(folder: Path, field: str, value: Any) -> None:
    edit_json(folder / "config.json", **{field: value})
    with pytest.raises(IntegrityError) as caught:
        read_hf(folder)
    assert (caught.value.code, caught.value.context["field"].split(".")[0]) == (
        "hf-config-invalid",
        "rope_theta" if value == {"rope_theta": 10**400} else field,
    )


def test_index_whose_shard_names_are_lists(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.embed_tokens.weight": ["a.safetensors"]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(IntegrityError) as caught:
        read_hf(folder)
    assert caught.value.code == "hf-index-invalid"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("a", "b"), 2),
        (UnsupportedError("a", "b"), 3),
        (ResourceError("a", "b"), 5),
        (AdapterError("a", "b"), 7),
    ],
)
def test_exit_code_is_that_of_the_runtimes_error(error: EdgewiseError, code: int) -> None:
    assert _exit_code(Built(runtime="x", status="failed", error=error.to_dict())) == code
    assert _exit_code(Built(runtime="x", status="skipped", error=error.to_dict())) == 0
    assert _exit_code(Built(runtime="x", status="built")) == 0


@pytest.mark.parametrize(
    "line",
    [
        "llama_model_quantize: failed to quantize: std::bad_alloc",
        "OpenBLAS error: Memory allocation still failed after 10 retries, giving up.",
        "cannot allocate memory for thread-local data: ABORT",
    ],
)
def test_native_code_that_ran_out_of_memory(line: str) -> None:
    crash = AdapterError("worker-crashed", "it ended", context={"native_log": [line]})
    found = limits.explain(crash, 50 << 20)
    assert isinstance(found, ResourceError)
    assert found.code == "worker-out-of-memory"
    assert "50 MiB" in found.message
    assert "--memory-limit" in str(found.hint)


def test_crash_that_says_nothing_names_the_limit() -> None:
    crash = AdapterError("worker-crashed", "signal SIGSEGV", context={"native_log": []})
    found = limits.explain(crash, 50 << 20)
    assert found.code == "worker-crashed"
    assert "50 MiB" in str(found.hint)
    other = UnsupportedError("a", "b", hint="c")
    assert limits.explain(other, 50 << 20) is other
    assert other.hint == "c"


def test_interpreter_that_does_not_start_is_one_runtimes_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("")
    python.chmod(0o644)
    monkeypatch.setattr("edgewise.runtimes.launch.interpreter", lambda _adapter: str(python))
    found = service.capabilities_in_worker("llamacpp")
    assert not found.can_export
    assert "cannot be started" in found.reason


def test_refusal_of_an_unknown_name_is_short() -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolve(Recipe(name="x", weights="nonsense"), FORMATS, runtime="mlx")
    assert len(str(caught.value.hint)) < 300
    assert "more" in str(caught.value.hint)


def test_unreachable_index_is_no_missing_wheel() -> None:
    tail = ["ERROR: No matching distribution found for filelock"]
    assert isinstance(_pip_error("x", tail, unreachable=True), RemoteError)
    assert isinstance(_pip_error("x", tail), UnsupportedError)


def test_checkpoint_that_is_there_is_not_copied_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    home.folder("trees")
    entries = trees.index(folder)
    kept = trees.copy_in(home, folder, entries)
    monkeypatch.setattr("edgewise.store.trees.shutil.copyfile", lambda *_: pytest.fail("copied"))
    assert trees.copy_in(home, folder, entries) == kept


def convert(tmp_path: Path, model: Path, form: str, destination: Path) -> EdgewiseError:
    request = ConvertRequest(model=str(model), form=form, destination=str(destination))
    with pytest.raises(EdgewiseError) as caught:
        convert_checkpoint(Context(Home(tmp_path / "home")), request)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("form", ["hf", "gguf"])
def test_destinations_that_cannot_be(folder: Path, tmp_path: Path, form: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    model = folder
    if form == "hf":
        model = tmp_path / "m.gguf"
        hf_to_gguf(folder, model)
    assert isinstance(convert(tmp_path, model, form, file / "x"), ResourceError)
    assert isinstance(convert(tmp_path, model, form, tmp_path / ("a" * 300)), EdgewiseError)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    assert convert(tmp_path, model, form, link).code == "destination-exists"
    assert not (tmp_path / "elsewhere").exists()


def test_text_to_score_on_that_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError) as caught:
        _material(str(tmp_path / "pipe"))
    assert caught.value.code == "text-unreadable"


def test_wrong_runtime_is_said_before_the_device_is_measured(tmp_path: Path) -> None:
    steps: list[Any] = []
    with pytest.raises(UnsupportedError) as caught:
        bring_up(Context(Home(tmp_path), report=steps.append), UpRequest(runtime="nonsense"))
    assert (caught.value.code, steps) == ("runtime-unknown", [])
