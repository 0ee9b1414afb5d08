"""How fast an artifact is and what it holds, measured alike for every runtime.

One worker loads it, answers the same prompt several times from an empty cache, and is asked for
its peak memory. A runtime that gives text only is timed by its own stream.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec

from edgewise.bench.artifact_service import SERVICE, ArtifactTimes, TimesParams
from edgewise.core.bundle import TextSettings
from edgewise.core.quantity import Measured, Quantity, Unknown
from edgewise.core.recipe import RunConfig
from edgewise.run.messages import Loaded, LoadParams
from edgewise.runtimes.launch import start_worker
from edgewise.runtimes.reports import MemoryReport, PartitionReport

__all__ = ["ArtifactBench", "bench_artifact"]

_LOAD_TIMEOUT_S = 900.0
_STEP_TIMEOUT_S = 900.0


class ArtifactBench(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of one artifact on this device.

    Attributes:
        load_ms: From the call to load until it can be used.
        ttft_ms: From a prompt of ``prompt_tokens`` tokens to its first answer token.
        decode_tok_s: Answer tokens a second after the first.
        peak_resident_bytes: Peak of the worker (and of a browser that it drives).
        prompt_tokens: Length of the prompt.
        decode_tokens: Length of the answer.
        run_config: How it was run.
        partition: Where its operators ran.
    """

    load_ms: Quantity
    ttft_ms: Quantity
    decode_tok_s: Quantity
    peak_resident_bytes: Quantity
    prompt_tokens: int
    decode_tokens: int
    run_config: RunConfig
    partition: PartitionReport


def bench_artifact(
    runtime: str,
    artifact: Path,
    run_config: RunConfig,
    text: TextSettings,
    *,
    device: str,
    rounds: int = 3,
    decode_tokens: int = 48,
) -> ArtifactBench:
    """Return the figures of an artifact: medians over ``rounds``, with half the range as spread.

    Raises:
        AdapterError: it cannot be loaded, or the worker died.
        UnsupportedError: the runtime is not installed.
    """
    worker = start_worker(runtime, SERVICE, run_config=run_config)
    try:
        loaded = worker.call(
            "load",
            LoadParams(runtime=runtime, artifact=str(artifact), run_config=run_config, text=text),
            Loaded,
            timeout_s=_LOAD_TIMEOUT_S,
        )
        params = TimesParams(decode_tokens=decode_tokens)
        times = [
            worker.call("times", params, ArtifactTimes, timeout_s=_STEP_TIMEOUT_S)
            for _ in range(rounds)
        ]
        memory = worker.call("memory", None, MemoryReport)
        partition = worker.call("partition", None, PartitionReport, timeout_s=_STEP_TIMEOUT_S)
    finally:
        worker.close()
    last = times[-1]
    rates = [t.decode_tok_s for t in times if t.decode_tok_s is not None]
    return ArtifactBench(
        load_ms=Measured(value=round(loaded.load_ms, 1), source="worker clock", device=device),
        ttft_ms=_median([t.ttft_ms for t in times], "from prompt to first token", device),
        decode_tok_s=_median(rates, f"{last.decode_tokens} tokens after the first", device)
        if rates
        else Unknown(reason="the answer had no second token"),
        peak_resident_bytes=memory.peak_resident_bytes,
        prompt_tokens=last.prompt_tokens,
        decode_tokens=last.decode_tokens,
        run_config=run_config,
        partition=partition,
    )


def _median(values: list[float], source: str, device: str) -> Measured:
    return Measured(
        value=round(statistics.median(values), 2),
        source=source,
        n=len(values),
        spread=round((max(values) - min(values)) / 2, 2),
        device=device,
    )
