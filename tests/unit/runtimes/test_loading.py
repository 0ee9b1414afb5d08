"""How weights get into memory: what a runtime offers is the default, the rest is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.errors import UnsupportedError
from edgewise.run.messages import LoadParams
from edgewise.run.service import EngineService
from edgewise.runtimes import registry
from edgewise.runtimes.launch import default_loading

NO_ENGINE = {"coreml", "qnn"}


@pytest.mark.parametrize("name", sorted(set(registry.names()) - NO_ENGINE))
def test_the_default_is_something_it_can_do(name: str) -> None:
    adapter = registry.adapter(name)
    modes = adapter.load_modes()
    mode, huge = default_loading(name)
    assert mode in modes
    assert huge == adapter.huge_pages_possible()
    assert default_loading(name, device_has_huge_pages=False) == (modes[0], False)


def test_huge_pages_go_with_allocated_memory_where_that_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, expected in (("ik", LoadMode.MALLOC), ("onnx-genai", LoadMode.MMAP)):
        adapter = registry.adapter(name)
        monkeypatch.setattr(type(adapter), "huge_pages_possible", lambda _self: True)
        assert default_loading(name) == (expected, True)


@pytest.mark.parametrize(
    ("name", "mode"), [("mlx", LoadMode.MMAP), ("executorch", LoadMode.MALLOC)]
)
def test_another_way_is_refused_before_anything_is_loaded(
    tmp_path: Path, name: str, mode: LoadMode
) -> None:
    load = EngineService().methods()["load"].run
    config = RunConfig(load_mode=mode)
    with pytest.raises(UnsupportedError) as caught:
        load(LoadParams(runtime=name, artifact=str(tmp_path), run_config=config), lambda _: None)
    assert caught.value.code == "load-mode-unsupported"
    assert caught.value.context["offered"] == list(registry.adapter(name).load_modes())
