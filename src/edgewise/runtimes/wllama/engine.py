"""The wllama engine: token numbers in, log-probabilities out, through a page in a browser.

The model is loaded under a numbered vocabulary (see :mod:`.headers`), so a prompt is exact and
every step gives the whole distribution. wllama tells log-probabilities, which are logits less a
constant; where float32 has no probability that small, its least one stands.

wllama keeps the longest prefix of a sequence that its KV cache holds. So the engine sends the
whole sequence each time, and a rewind is a shorter sequence: the cache is cut by wllama itself.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.core.recipe import RunConfig
from edgewise.errors import AdapterError
from edgewise.runtimes.browser.driver import BrowserDriver
from edgewise.runtimes.browser.site import open_site
from edgewise.runtimes.reports import MemoryReport, PartitionReport, StreamTimes
from edgewise.runtimes.stepped import SteppedEngine
from edgewise.runtimes.wllama.headers import numbered_header, splitter_header
from edgewise.runtimes.wllama.report import buffer_bytes, partition_report
from edgewise.runtimes.wllama.site import gguf_of, load_params, wllama_site
from edgewise.runtimes.wllama.vocabulary import Vocabulary

__all__ = ["WllamaEngine"]

_LOAD_TIMEOUT_S = 900.0
_TOKENIZE_TIMEOUT_S = 300.0
_STEP_TIMEOUT_S = 600.0
_NUMBERED, _SPLITTER = "/numbered.gguf", "/splitter.gguf"
# ln of float32's least probability above zero.
_LOG_LEAST = float(np.log(np.float64(np.finfo(np.float32).smallest_subnormal)))


class WllamaEngine(SteppedEngine):
    """One model on one page. One sequence."""

    runtime = "wllama"

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Serve the model, start a browser and load it there.

        Raises:
            UnsupportedError: something it takes is not installed, or the configuration asks for
                what wllama has not.
            IntegrityError: the artifact is no sound GGUF file.
            AdapterError: the browser or wllama failed.
        """
        model = gguf_of(artifact)
        params = load_params(model, run_config)
        header, splitter = numbered_header(model), splitter_header(model)
        self._splitter = {"header": _SPLITTER, "padding": splitter.padding_bytes}
        self._threads = run_config.threads
        self._held: list[int] = []
        self._wanted_after = 0
        self._server = open_site(
            wllama_site(),
            model,
            load=None,
            documents={_NUMBERED: header.body, _SPLITTER: splitter.body},
        )
        self._driver: BrowserDriver | None = None
        try:
            self._driver = BrowserDriver(self._server.url)
            loaded = self._driver.load(
                {
                    **params,
                    # wllama wants room for one token more than a prompt has.
                    "context_length": run_config.context_length + 1,
                    "header": _NUMBERED,
                    "data_offset": header.data_offset_bytes,
                },
                timeout_s=_LOAD_TIMEOUT_S,
            )
            self._log: list[str] = list(loaded["log"])
            self._check_loaded(loaded)
            super().__init__(
                context_length=run_config.context_length,
                vocab_size=int(loaded["vocab_size"]),
                step_tokens=run_config.batch_tokens,
                codec=Vocabulary(model, self._split, self._surroundings),
            )
        except BaseException:
            self.close()
            raise

    def prefill(
        self, tokens: Sequence[int], *, progress: Callable[[int], None] | None = None
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Evaluate ``tokens`` and return the log-probabilities after the last one.

        See :meth:`edgewise.runtimes.protocol.Engine.prefill`.
        """
        self._wanted_after = self._position + len(tokens)
        return super().prefill(tokens, progress=progress)

    def _evaluate(self, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        sequence = [*self._held, *tokens]
        last = len(sequence) >= self._wanted_after  # only the last step's answer is read
        answer = self._call(
            "evaluate", {"tokens": sequence, "logits": last}, timeout_s=_STEP_TIMEOUT_S
        )
        if answer["tokens"] != len(sequence):
            raise AdapterError(
                "wllama-tokens-changed",
                f"wllama evaluated {answer['tokens']} tokens where {len(sequence)} were given",
            )
        self._held = sequence
        if not last:
            return np.empty(0, dtype=np.float32)
        values = np.frombuffer(base64.b64decode(answer["values"]), dtype="<f4")
        if values.shape != (self._vocab_size,) or bool(np.isnan(values).any()):
            raise AdapterError(
                "logits-missing", "wllama left tokens of the vocabulary without a probability"
            )
        floor: np.ndarray[Any, np.dtype[np.float32]] = np.full_like(values, _LOG_LEAST)
        return np.where(values > floor, values, floor)

    def stream_times(self, tokens: Sequence[int], decode_tokens: int) -> StreamTimes:
        """Return how fast the page streams an answer, as a person sees it.

        Stepping makes every step's distribution cross the page, which no answer needs. The cache
        is empty before and afterwards.
        """
        assert self._driver is not None
        self.rewind(0)
        result = self._driver.generate(
            {
                "prompt": "".join(f"<{token}>" for token in tokens),
                "max_tokens": decode_tokens + 1,
                "temperature": 0,
                "cache_prompt": False,
                "ignore_eos": True,
            },
            timeout_s=_STEP_TIMEOUT_S,
        )
        return StreamTimes(
            tokens=int(result["tokens"]),
            ttft_ms=float(result["ttft_ms"]),
            decode_ms=float(result["decode_ms"]),
        )

    def _truncate(self, position: int) -> None:
        del self._held[position:]
        self._wanted_after = 0

    def memory(self) -> MemoryReport:
        """Return what the browser's processes hold and what llama.cpp says it allocated."""
        assert self._driver is not None
        processes = self._driver.processes
        return MemoryReport(
            resident_bytes=processes.resident_bytes(),
            peak_resident_bytes=processes.peak_resident_bytes(),
            weights_bytes=buffer_bytes(self._log, "model"),
            kv_cache_bytes=buffer_bytes(self._log, "KV"),
            workspace_bytes=buffer_bytes(self._log, "compute", "output"),
        )

    def partition(self) -> PartitionReport:
        """Return where llama.cpp's graph runs, as its own log of loading says."""
        return partition_report(self._log, self._threads)

    def close(self) -> None:
        """End the browser and the server. The engine is unusable afterwards."""
        if self._driver is not None:
            self._driver.close()
        self._server.close()

    def _check_loaded(self, loaded: dict[str, Any]) -> None:
        assert self._driver is not None
        if loaded["threads"] != self._threads:
            raise AdapterError(
                "wllama-threads-missing",
                f"wllama runs {loaded['threads']} threads where {self._threads} were asked for",
                hint="the browser did not grant shared memory; run with one thread",
            )
        if self._driver.refused_requests:
            raise AdapterError(
                "browser-left-loopback",
                "the page tried to reach something outside this machine",
                context={"refused": list(self._driver.refused_requests)},
            )

    def _call(self, name: str, params: dict[str, Any], *, timeout_s: float) -> Any:
        assert self._driver is not None
        return self._driver.call(name, params, timeout_s=timeout_s)

    def _split(self, texts: Sequence[str]) -> list[list[int]]:
        params = {**self._splitter, "texts": list(texts)}
        found = self._call("tokenize", params, timeout_s=_TOKENIZE_TIMEOUT_S)
        return [[int(token) for token in ids] for ids in found]

    def _surroundings(self) -> tuple[list[int], list[int]]:
        found = self._call("surroundings", self._splitter, timeout_s=_TOKENIZE_TIMEOUT_S)
        return list(found["before"]), list(found["after"])
