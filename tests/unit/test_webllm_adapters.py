"""What ``tvm`` and ``webllm`` declare where their pieces are missing, and the shims' own order."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from edgewise.core.formats import OfferedFormat
from edgewise.core.recipe import KvType, RunConfig
from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.runtimes.tvm import adapter as tvm_adapter
from edgewise.runtimes.webllm import adapter as webllm_adapter
from edgewise.runtimes.webllm import native, webruntime
from edgewise.runtimes.webllm.artifact import About, read_about
from edgewise.runtimes.webllm.formats import FORMATS
from edgewise.runtimes.webllm.site import load_params, web_about
from edgewise.runtimes.webllm.tiny import make

LOCKS = Path(native.__file__).parent


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No emscripten, no browser and no TVM."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "absent"))
    monkeypatch.setattr(native, "installed_version", lambda: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)


@pytest.mark.usefixtures("bare")
def test_every_missing_piece_is_named_with_a_way_to_get_it() -> None:
    found = webllm_adapter.capabilities()
    assert not found.can_export
    assert not found.can_run
    text = "\n".join(found.missing)
    for word in ("emcc", "apt-get install emscripten", "tvm is not installed", "browser"):
        assert word in text
    assert found.formats == FORMATS


@pytest.mark.usefixtures("bare")
def test_without_tvm_neither_half_of_the_twin_works() -> None:
    found = tvm_adapter.capabilities()
    assert not found.can_export
    assert not found.can_run
    assert "not installed" in found.reason
    with pytest.raises(UnsupportedError) as caught:
        tvm_adapter.prepare()
    assert caught.value.code == "runtime-not-installed"


@pytest.mark.usefixtures("bare")
def test_linking_without_emscripten_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError) as caught:
        webruntime.runtime_objects()
    assert caught.value.code == "native-piece-missing"
    assert "emcc" in caught.value.context["missing"][0]
    assert "emscripten" in (caught.value.hint or "")


def test_the_shims_are_the_headers_that_their_list_names() -> None:
    listed = (webruntime.SHIMS / "README.md").read_text()
    headers = {path.name for path in webruntime.SHIMS.rglob("*.h")}
    assert len(headers) == 9
    assert headers <= set(re.findall(r"[\w/]*?(\w+\.h)`", listed))


def test_both_locks_pin_exactly_what_the_environments_ask_for() -> None:
    for adapter, lock in (
        (tvm_adapter, LOCKS.parent / "tvm" / "lock.txt"),
        (webllm_adapter, LOCKS / "lock.txt"),
    ):
        lines = lock.read_text().split()
        assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
        spec = adapter.environment
        assert spec is not None
        assert {*spec.run, *spec.export} <= set(lines)


def about(name: str = "q0f32", target: str = "webgpu") -> About:
    offer: OfferedFormat = next(offer for offer in FORMATS if offer.name == name)
    return About(
        format=offer, config=make().config, context_length=128, tvm_version="0", target=target
    )


def test_a_page_is_given_what_the_artifact_can_do() -> None:
    config = RunConfig(context_length=64, kv_type=KvType.F32)
    assert load_params(about(), config) == {"model": "/model/", "context_length": 64}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"kv_type": KvType.F16}, "kv-type-unsupported"),
        ({"context_length": 100_000, "kv_type": KvType.F32}, "context-too-long"),
        ({"kv_type": KvType.F32, "hints": (("a", "b"),)}, "hint-unknown"),
    ],
)
def test_a_page_is_refused_what_it_cannot_do(changes: dict[str, object], code: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        load_params(about(), RunConfig(**changes))  # type: ignore[arg-type]
    assert caught.value.code == code


def test_an_artifact_of_the_other_kind_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError) as damaged:
        read_about(tmp_path)
    assert damaged.value.code == "artifact-damaged"
    (tmp_path / "edgewise.json").write_bytes(msgspec.json.encode(about(target="x86-64")))
    with pytest.raises(IntegrityError) as other:
        web_about(tmp_path)
    assert other.value.code == "artifact-incomplete"
