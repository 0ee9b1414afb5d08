"""The tuner: a short measured search for threads and the way of loading.

Neither has a right value: more threads hurt beside a busy neighbour, and huge pages need weights in
anonymous memory. So each combination runs a reference request (prefill and decode) on this device,
twice, in turn, and the quickest wins. The result is evidence and part of the run configuration.

Flash attention is not searched for but on: with it, passes over a few tokens give the logits of
single ones bit by bit (ADR 0021), so that guesses can be verified without changing an answer.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from edgewise.bench.messages import SERVICE, StepTimes, TimeParams
from edgewise.core.quantity import Measured, Quantity
from edgewise.core.recipe import RunConfig
from edgewise.errors import AdapterError
from edgewise.run.messages import Loaded, LoadParams
from edgewise.runtimes import registry
from edgewise.runtimes.launch import start_worker

__all__ = ["Trial", "Tuning", "tune"]

# The reference request: what one turn of a chat costs.
PROMPT_TOKENS = 64
DECODE_TOKENS = 24
REFERENCE_PROMPT = 128
REFERENCE_ANSWER = 64
ROUNDS = 2
# Beyond this only the first round is measured: a busy or small device must not wait for ever.
TIME_LIMIT_S = 60.0
_TUNING_CONTEXT = 512


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One combination and what it took.

    Attributes:
        run_config: The combination.
        prefill_tok_s: Best of the rounds.
        decode_tok_s: From the median step of each round, best of the rounds.
        reference_ms: Time of the reference request computed from the two.
    """

    run_config: RunConfig
    prefill_tok_s: Quantity
    decode_tok_s: Quantity
    reference_ms: float


class Tuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The chosen configuration, all trials, best first, and what could not be tried.

    ``contended`` says that other work ran beside the measurement, so that it is taken anew on a
    quiet device.
    """

    chosen: RunConfig
    trials: tuple[Trial, ...]
    skipped: tuple[str, ...] = ()
    contended: bool = False


def tune(
    runtime: str,
    artifact: Path,
    base: RunConfig,
    *,
    threads: Iterable[int],
    device: str,
    contended: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> Tuning:
    """Return the quickest configuration on this device for this artifact.

    Args:
        runtime: Name of the runtime.
        artifact: The artifact file.
        base: Context, KV format and batch size to keep.
        threads: Numbers of threads to try.
        device: Digest of the device profile, recorded with each figure.
        contended: Whether other work runs beside this, recorded with the result.
        progress: Called with done, total and the combination before each measurement.

    Raises:
        AdapterError: no combination could be run.
        UnsupportedError: the runtime is not installed.
    """
    candidates = list(_candidates(runtime, base))
    counts = tuple(sorted(set(threads)))
    times: dict[RunConfig, list[StepTimes]] = {}
    skipped: dict[str, None] = {}
    total, done = len(candidates) * ROUNDS, 0
    started = time.monotonic()
    for number, config in itertools.product(range(ROUNDS), candidates):
        if number and time.monotonic() - started > TIME_LIMIT_S:
            skipped[f"round {number + 1}: the first took more than {TIME_LIMIT_S:g} s"] = None
            break
        if progress is not None:
            progress(done, total, _describe(config))
        done += 1
        try:
            measured = _measure(runtime, artifact, config, counts)
        except AdapterError as error:
            skipped[f"{_describe(config)}: {error.message}"] = None
            continue
        for steps in measured:
            key = msgspec.structs.replace(
                config, threads=steps.threads, context_length=base.context_length
            )
            times.setdefault(key, []).append(steps)
    trials = sorted((_trial(c, t, device) for c, t in times.items()), key=lambda t: t.reference_ms)
    if not trials:
        raise AdapterError(
            "tuning-failed",
            f"no configuration could be run: {'; '.join(skipped)}",
            context={"tried": list(skipped)},
            hint="a worker that crashes at once was built for another processor or by a compiler "
            "that breaks it: see the documentation on runtimes",
        )
    return Tuning(
        chosen=trials[0].run_config,
        trials=tuple(trials),
        skipped=tuple(skipped),
        contended=contended,
    )


def _candidates(runtime: str, base: RunConfig) -> Iterable[RunConfig]:
    context = min(base.context_length, _TUNING_CONTEXT)
    adapter = registry.adapter(runtime)
    modes, huge = adapter.load_modes(), adapter.huge_pages_possible()
    loading = dict.fromkeys(
        [*((mode, False) for mode in modes[:1]), *((mode, huge) for mode in modes[-1:])]
    )
    for mode, huge in loading:
        yield msgspec.structs.replace(
            base,
            context_length=context,
            load_mode=mode,
            huge_pages=huge,
            flash_attention=base.flash_attention,
        )


def _measure(
    runtime: str, artifact: Path, config: RunConfig, threads: tuple[int, ...]
) -> list[StepTimes]:
    worker = start_worker(runtime, SERVICE, run_config=config)
    try:
        worker.call(
            "load",
            LoadParams(runtime=runtime, artifact=str(artifact), run_config=config),
            Loaded,
        )
        params = TimeParams(
            threads=threads, prompt_tokens=PROMPT_TOKENS, decode_tokens=DECODE_TOKENS
        )
        return worker.start("time", params).result(list[StepTimes], notice=int)
    finally:
        worker.close()


def _trial(config: RunConfig, times: list[StepTimes], device: str) -> Trial:
    prefill_ms = min(t.prefill_ms for t in times)
    step_ms = [statistics.median(t.decode_ms) for t in times]
    reference = prefill_ms / PROMPT_TOKENS * REFERENCE_PROMPT + min(step_ms) * REFERENCE_ANSWER
    return Trial(
        run_config=config,
        prefill_tok_s=Measured(
            value=round(PROMPT_TOKENS / prefill_ms * 1e3, 1),
            source=f"prefill of {PROMPT_TOKENS} tokens",
            n=len(times),
            device=device,
        ),
        decode_tok_s=Measured(
            value=round(1e3 / min(step_ms), 1),
            source=f"median of {DECODE_TOKENS} decode steps",
            n=len(times),
            spread=round((1e3 / min(step_ms) - 1e3 / max(step_ms)) / 2, 1),
            device=device,
        ),
        reference_ms=round(reference, 2),
    )


def _describe(config: RunConfig) -> str:
    return "huge pages" if config.huge_pages else str(config.load_mode)
