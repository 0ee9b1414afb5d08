"""Building for many: what is refused, reused, skipped, healed; with the runtime that is always here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.runtimes.conftest import Builder

from edgewise.cli.root import root
from edgewise.core.quantity import Unknown
from edgewise.core.recipe import Recipe
from edgewise.errors import InputError, UnsupportedError
from edgewise.runtimes import launch, registry
from edgewise.store import Home, trees
from edgewise.workflow import building
from edgewise.workflow.artifacts import find_built, label
from edgewise.workflow.building import BuildReport, BuildRequest, Built, build_for
from edgewise.workflow.checkpoints import fetch_checkpoint
from edgewise.workflow.comparing import CompareRequest, compare
from edgewise.workflow.context import Context
from edgewise.workflow.parity import ParityRequest, check_parity
from edgewise.workflow.runtimes import list_runtimes

pytestmark = pytest.mark.model


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Home(tmp_path / "home"))


def make(context: Context, model: Path, weights: str, *runtimes: str, **more: Any) -> BuildReport:
    request = BuildRequest(
        model=str(model),
        runtimes=runtimes or ("llamacpp",),
        recipe=Recipe(name=weights, weights=weights),
        **more,
    )
    return build_for(context, request)


def error_of(result: Built) -> dict[str, Any]:
    assert result.error is not None
    return result.error


def test_a_recipe_that_cannot_be_honoured_is_refused_with_the_nearest(
    context: Context, two_layer_hf: Path
) -> None:
    (result,) = make(context, two_layer_hf, "int3-g64").results
    assert result.status == "refused"
    assert error_of(result)["code"] == "recipe-unsupported"
    assert "nearest" in error_of(result)["hint"]
    assert not list(context.home.staging.glob("work-*"))


def test_a_second_build_is_reused_and_a_damaged_one_made_again(
    context: Context, two_layer_hf: Path
) -> None:
    (first,) = make(context, two_layer_hf, "int8").results
    (second,) = make(context, two_layer_hf, "int8").results
    assert (first.status, second.status) == ("built", "reused")
    assert second.receipt == first.receipt
    path = trees.path_of(context.home, first.receipt.sha256)
    path.chmod(0o644)
    path.write_bytes(b"rotten")
    (third,) = make(context, two_layer_hf, "int8").results
    assert third.status == "built"
    assert third.receipt.sha256 == first.receipt.sha256
    assert trees.verified_path(context.home, third.receipt.sha256) == path
    (again,) = make(context, two_layer_hf, "int8", again=True).results
    assert again.status == "built"


def test_a_quantised_checkpoint_is_quantised_twice_and_it_is_said(
    context: Context, smollm2_path: Path
) -> None:
    model = context.home.root.parent / "m.gguf"
    model.symlink_to(smollm2_path)
    (result,) = make(context, model, "int8").results
    assert result.receipt.double_quantised
    assert result.receipt.source_sha256 == smollm2_path.name


def test_one_that_fails_leaves_the_others_alone(
    context: Context, two_layer_hf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(launch.RUNTIMES_VARIABLE, str(tmp_path / "none"))
    report = make(context, two_layer_hf, "f32", "ik", "llamacpp", "llamacpp")
    assert [result.status for result in report.results] == ["refused", "built"]
    assert error_of(report.results[0])["code"] == "runtime-cannot-export"
    assert error_of(report.results[0])["context"]["missing"]


def test_all_means_what_can_export_here(
    context: Context, two_layer_hf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(launch.RUNTIMES_VARIABLE, str(tmp_path / "none"))
    report = make(context, two_layer_hf, "f32", "all")
    by_status = {result.runtime: result.status for result in report.results}
    assert by_status.pop("llamacpp") == "built"
    assert set(by_status.values()) == {"skipped"}
    assert building.REFERENCE_RUNTIME not in by_status


def test_an_exporter_without_memory_is_a_typed_failure(
    context: Context, two_layer_hf: Path
) -> None:
    (result,) = make(context, two_layer_hf, "int8", memory_limit_bytes=90 << 20).results
    assert result.status == "failed"
    assert error_of(result)["type"] in {"ResourceError", "AdapterError"}
    assert not list(context.home.staging.glob("work-*"))
    (healthy,) = make(context, two_layer_hf, "int8").results
    assert healthy.status == "built"


def test_a_name_that_is_no_runtime(context: Context, two_layer_hf: Path) -> None:
    with pytest.raises(UnsupportedError, match="no runtime is called 'tensorrt'"):
        make(context, two_layer_hf, "f32", "tensorrt")


def test_a_wrong_tokenizer_beside_a_right_model(
    context: Context, two_layer_hf: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in two_layer_hf.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    data = json.loads((broken / "tokenizer.json").read_text())
    data["model"]["vocab"]["one-too-many"] = 60_000
    (broken / "tokenizer.json").write_text(json.dumps(data))
    from edgewise.errors import IntegrityError

    with pytest.raises(IntegrityError):
        make(context, broken, "f32")


def test_builds_are_found_by_the_names_people_use(
    built: Builder, runtimes_context: Context
) -> None:
    receipt = built("llamacpp", "int8")
    assert label(receipt) == "llamacpp/q8_0"
    names = ("llamacpp/q8_0", "llamacpp/int8", receipt.sha256, receipt.fingerprint[:12])
    for name in names:
        assert find_built(runtimes_context, name).sha256 == receipt.sha256
    for bad in ("llamacpp/nothing", "ffff", "", "openvino/int4"):
        with pytest.raises(InputError) as caught:
            find_built(runtimes_context, bad)
        assert caught.value.code == "artifact-not-found"


def test_a_file_that_serves_several_runtimes_has_no_single_build(
    context: Context, two_layer_hf: Path
) -> None:
    (one,) = make(context, two_layer_hf, "as-is").results
    receipt = one.receipt
    assert receipt is not None
    other = msgspec.structs.replace(receipt, runtime="ik", fingerprint="a" * 64)
    context.record("build", other.sha256, other)
    with pytest.raises(InputError, match="ik/as-is, llamacpp/as-is") as caught:
        find_built(context, receipt.sha256[:10])
    assert caught.value.code == "artifact-ambiguous"
    assert find_built(context, "aaaaaa").runtime == "ik"


def test_parity_of_two_builds_and_its_evidence(built: Builder, runtimes_context: Context) -> None:
    first, second = built("llamacpp", "f32"), built("llamacpp", "int8")
    request = ParityRequest(
        first=first.fingerprint, second=second.fingerprint, windows=2, window_tokens=32
    )
    report, digest = check_parity(runtimes_context, request)
    assert report.gate.passed
    assert report.distance.positions == 62
    assert 0 < float(report.distance.kl_mean_nats.number) < 0.05
    assert report.tokenizer_texts > 20
    assert len(report.answers) == 4
    assert runtimes_context.evidence.get(digest)[1].subject == second.fingerprint
    itself, _ = check_parity(
        runtimes_context,
        ParityRequest(
            first=first.fingerprint, second=first.fingerprint, windows=2, window_tokens=32
        ),
    )
    assert itself.distance.kl_max_nats.value == 0
    assert itself.distance.top1_agreement.value == 1


def test_a_text_that_is_too_short(
    built: Builder, runtimes_context: Context, tmp_path: Path
) -> None:
    (tmp_path / "t").write_text("short")
    receipt = built("llamacpp", "f32")
    request = ParityRequest(
        first=receipt.sha256, second=receipt.sha256, text_file=str(tmp_path / "t")
    )
    with pytest.raises(InputError, match="has 1 tokens"):
        check_parity(runtimes_context, request)


def test_figures_that_nobody_took_are_unknown(context: Context, two_layer_hf: Path) -> None:
    make(context, two_layer_hf, "int8")
    (row,) = compare(context, CompareRequest(model=str(two_layer_hf))).rows
    assert isinstance(row.ttft_ms, Unknown)
    assert isinstance(row.kl_mean_nats, Unknown)
    assert row.gate is None


def test_the_commands(built: Builder, two_layer_hf: Path, runtimes_home: Path) -> None:
    receipt = built("llamacpp", "int8")
    environment = {"EDGEWISE_HOME": str(runtimes_home)}

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(root, arguments, env=environment, standalone_mode=False)
        assert result.exception is None, result.exception
        return int(result.return_value or 0), result.stdout

    code, text = run("build", str(two_layer_hf), "--for", "llamacpp", "--recipe", "int8", "--json")
    assert (code, json.loads(text)["results"][0]["status"]) == (0, "reused")
    code, text = run("build", str(two_layer_hf), "--for", "llamacpp", "--recipe", "int2-g7")
    assert (code, "refused" in text) == (3, True)
    code, text = run("compare", str(two_layer_hf), "--markdown")
    assert "| llamacpp/q8_0 |" in text
    code, text = run("runtime", "check", "llamacpp/q8_0")
    assert code == 0
    assert text.count("pass") >= 10
    code, text = run(
        "parity", receipt.sha256, receipt.sha256, "--windows", "1", "--window-tokens", "8"
    )
    assert (code, "top-1 agreement" in text) == (0, True)


def test_a_folder_of_links_is_a_checkpoint(
    context: Context, two_layer_hf: Path, tmp_path: Path
) -> None:
    """Hub caches consist of links; what else lies there does not matter."""
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in two_layer_hf.iterdir():
        (linked / file.name).symlink_to(file)
    (linked / "notes").symlink_to("/nowhere")
    os.mkfifo(linked / "pipe")
    kept = fetch_checkpoint(context, str(linked))
    assert kept.sha256 == fetch_checkpoint(context, str(two_layer_hf)).sha256
    assert not any(path.is_symlink() for path in trees.path_of(context.home, kept.sha256).iterdir())


def test_a_broken_environment_is_a_failure_not_a_skip(
    context: Context, two_layer_hf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(launch.RUNTIMES_VARIABLE, str(tmp_path / "envs"))
    spec = registry.adapter("ik").environment
    assert spec is not None
    folder = launch.environment_folder(spec)
    python = launch.python_of(folder)
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho the library is gone >&2\nexit 1\n")
    python.chmod(0o755)
    stamp = launch.Installed(parts=("run",), lock_sha256="0" * 64, versions={}, size_bytes=1)
    (folder / launch.STAMP).write_bytes(msgspec.json.encode(stamp))
    report = make(context, two_layer_hf, "f32", "all")
    by_name = {result.runtime: result for result in report.results}
    assert by_name["ik"].status == "failed"
    assert error_of(by_name["ik"])["code"] == "runtime-broken"
    assert "the library is gone" in error_of(by_name["ik"])["message"]
    assert "runtime remove ik" in error_of(by_name["ik"])["hint"]
    assert by_name["llamacpp"].status == "built"
    (status,) = list_runtimes(context, ["ik"])
    assert status.state == "broken"
