"""The WebLLM engine: token numbers in, logits out, through a page in a browser with WebGPU.

WebLLM gives every step's logits to a logit processor; the page's changes nothing and keeps them.
It has no call to shorten its cache, so after a rewind the next step evaluates the whole sequence
again: exact, and as slow as a prefill.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from edgewise.core.quantity import Estimated, Measured, Unknown
from edgewise.core.recipe import RunConfig
from edgewise.errors import AdapterError, IntegrityError, UnsupportedError
from edgewise.runtimes.browser.driver import BrowserDriver
from edgewise.runtimes.browser.site import open_site
from edgewise.runtimes.hf_tokenizer import HfTokenizer
from edgewise.runtimes.reports import MemoryReport, PartitionReport
from edgewise.runtimes.stepped import SteppedEngine
from edgewise.runtimes.webllm.artifact import TENSOR_CACHE, About
from edgewise.runtimes.webllm.formats import numbers
from edgewise.runtimes.webllm.site import load_params, web_about, webllm_site

__all__ = ["WebllmEngine"]

_LOAD_TIMEOUT_S: Final = 900.0
_STEP_TIMEOUT_S: Final = 600.0
_SHADER_F16: Final = "shader-f16"
_PAGE_TOKENS: Final = 16
_SHADER_LINE = re.compile(r"shader modules\[(\d+)/")


class WebllmEngine(SteppedEngine):
    """One model on one page. One sequence."""

    runtime = "webllm"

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Serve the model, start a browser and load it there.

        Raises:
            UnsupportedError: something it takes is not installed, the browser offers no WebGPU
                adapter or not the feature the artifact needs, or the configuration asks for what
                the artifact has not.
            IntegrityError: the artifact is damaged.
            AdapterError: the browser or WebLLM failed.
        """
        self._about = web_about(artifact)
        params = load_params(self._about, run_config)
        self._weights_bytes = _weights_bytes(artifact)
        self._held: list[int] = []
        self._start_over = True
        codec = HfTokenizer(artifact)
        self._server = open_site(webllm_site(), artifact, load=None)
        self._driver: BrowserDriver | None = None
        try:
            self._driver = BrowserDriver(self._server.url, webgpu=True)
            self._info: dict[str, Any] = dict(self._driver.info())
            _require_adapter(self._info, self._about)
            loaded = self._driver.load({**params, "logits": True}, timeout_s=_LOAD_TIMEOUT_S)
            self._shaders = _shaders(loaded["log"])
            _refuse_outside(self._driver)
        except BaseException:
            self.close()
            raise
        super().__init__(
            context_length=run_config.context_length,
            vocab_size=self._about.config.vocab,
            step_tokens=run_config.batch_tokens,
            codec=codec,
        )

    @property
    def browser(self) -> dict[str, Any]:
        """Return the page's adapter, its WebGPU limits and features, and the user agent."""
        return dict(self._info)

    def _evaluate(self, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        assert self._driver is not None
        sequence = [*self._held, *tokens]
        step = {"tokens": tokens, "position": len(self._held)}
        if self._start_over:
            step = {"tokens": sequence, "position": 0}
        self._start_over = True  # until the step is known to have worked
        answer = self._driver.call("evaluate", step, timeout_s=_STEP_TIMEOUT_S)
        values = np.frombuffer(base64.b64decode(answer["values"]), dtype="<f4")
        if values.shape != (self._vocab_size,):
            raise AdapterError(
                "logits-missing",
                f"WebLLM gave {values.size} logits for {self._vocab_size} tokens",
            )
        self._held, self._start_over = sequence, False
        return values.astype(np.float32)

    def _truncate(self, position: int) -> None:
        del self._held[position:]
        self._start_over = True

    def memory(self) -> MemoryReport:
        """Return what the browser's processes hold; WebGPU tells nothing of its own."""
        assert self._driver is not None
        config = self._about.config
        pages = -(-self.context_length // _PAGE_TOKENS) + 1
        page = 2 * config.kv_heads * _PAGE_TOKENS * config.head_dim
        element = 2 if numbers(self._about.format.name).kv_type == "f16" else 4
        return MemoryReport(
            resident_bytes=self._driver.processes.resident_bytes(),
            peak_resident_bytes=self._driver.processes.peak_resident_bytes(),
            weights_bytes=Measured(value=self._weights_bytes, source="shards of the tensor cache"),
            kv_cache_bytes=Estimated(
                value=config.layers * pages * page * element,
                source="layers x pages x (keys + values), as the paged cache allocates them",
            ),
            workspace_bytes=Unknown(reason="WebGPU tells no allocation sizes"),
        )

    def partition(self) -> PartitionReport:
        """Return where the functions of the library run, as the export recorded it.

        A running page shows no operator; what it does show, the adapter and the number of
        shader modules it made, is among the features.

        Raises:
            IntegrityError: the artifact holds no such record.
        """
        recorded = self._about.partition
        if recorded is None:
            raise IntegrityError(
                "artifact-incomplete",
                "the artifact does not say where its functions run",
                hint="build the artifact again",
            )
        features = (f"adapter: {self._info['adapter']}", f"shader modules made: {self._shaders}")
        return msgspec.structs.replace(recorded, features=features)

    def close(self) -> None:
        """End the browser and the server. The engine is unusable afterwards."""
        if self._driver is not None:
            self._driver.close()
        self._server.close()


def _require_adapter(info: dict[str, Any], about: About) -> None:
    if not info.get("limits"):
        raise UnsupportedError(
            "webgpu-missing",
            f"the browser offers no WebGPU adapter ({info.get('adapter')})",
            hint="use a Chromium-class browser with WebGPU, on a device with a GPU driver",
        )
    if numbers(about.format.name).kv_type == "f16" and _SHADER_F16 not in info["features"]:
        raise UnsupportedError(
            "webgpu-feature-missing",
            f"{about.format.name} computes in f16; the adapter {info['adapter']} has no "
            f"{_SHADER_F16}",
            context={"features": list(info["features"])},
            hint="build q0f32 or q4f32_1 for this adapter",
        )


def _shaders(log: list[str]) -> int:
    """Return how many shader modules the page made, by WebLLM's own progress lines."""
    counts = [int(found[1]) for line in log if (found := _SHADER_LINE.search(line))]
    return max(counts, default=0)


def _refuse_outside(driver: BrowserDriver) -> None:
    if driver.refused_requests:
        raise AdapterError(
            "browser-left-loopback",
            "the page tried to reach something outside this machine",
            context={"refused": list(driver.refused_requests)},
        )


def _weights_bytes(artifact: Path) -> int:
    told = msgspec.json.decode((artifact / TENSOR_CACHE).read_bytes())
    return sum(int(shard["nbytes"]) for shard in told["records"])
