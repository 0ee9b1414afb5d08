"""The bench's worker: times steps and fills contexts on an engine, without a session around it.

Every loop here is the raw one (engine call, argmax, next call), so it is also the floor that a
session is compared with.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgewise.bench.messages import FillParams, LoopParams, LoopTimes, StepTimes, TimeParams
from edgewise.core.request import Message
from edgewise.device.process import peak_resident_bytes
from edgewise.errors import UnsupportedError
from edgewise.run.messages import LoadParams
from edgewise.run.pairing import with_draft
from edgewise.run.service import SessionService
from edgewise.runtimes.host import Emit, Method

if TYPE_CHECKING:
    from edgewise.runtimes.reports import MemoryReport

__all__ = ["BenchService"]

# Ordinary prose, so that the tokens are ordinary tokens; the project's own words.
_PROSE = (
    "The ferry left the harbour before the sun was up, with nine passengers and a crate of "
    "oranges on deck. Somebody had painted the railing green over the winter, and the wind "
    "carried the smell of it past the wheelhouse. By noon the coast was a grey line. "
)


class BenchService(SessionService):
    """Measures an engine."""

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            **super().methods(),
            "fill": Method(FillParams, self._fill),
            "time": Method(TimeParams, self._time),
            "loop": Method(LoopParams, self._loop),
        }

    def loaded(self, params: LoadParams) -> None:
        """Tokenise the prose once; with text settings, hold what a session's worker holds too."""
        if params.text is not None:
            super().loaded(params)
            self._generator.prompt_tokens((Message(role="user", content="Hello"),))
        self._config = params.run_config
        ids = self.engine.tokenize(_PROSE * 4, add_special=True, parse_special=False)
        repeats = params.run_config.context_length // len(ids) + 1
        self._prose = ids * repeats

    def _fill(self, params: FillParams, emit: Emit) -> MemoryReport:
        engine = self.engine
        engine.rewind(0)
        count = max(1, engine.context_length - params.decode_tokens)
        logits = engine.prefill(self._prose[:count], progress=emit)
        for _ in range(engine.context_length - count):
            logits = engine.decode(int(logits.argmax()))
        if self.draft is not None:
            self.draft.rewind(0)
            self.draft.prefill(self._prose[:count], progress=emit)
        return with_draft(engine.memory(), self.draft)

    def _time(self, params: TimeParams, emit: Emit) -> list[StepTimes]:
        set_threads = getattr(self.engine, "set_threads", None)
        if set_threads is None and params.threads != (self._config.threads,):
            raise UnsupportedError(
                "threads-fixed", "this runtime cannot change its threads after loading"
            )
        results = []
        for threads in params.threads:
            if set_threads is not None:
                set_threads(threads)
            results.append(self._steps(threads, params))
            emit(threads)
        return results

    def _loop(self, params: LoopParams, _emit: Emit) -> LoopTimes:
        engine, clock = self.engine, time.perf_counter
        ids = engine.tokenize(params.prompt, add_special=False, parse_special=True)
        engine.rewind(0)
        started = clock()
        logits = engine.prefill(ids)
        token = int(logits.argmax())
        first = clock()
        tokens = [token]
        while len(tokens) < params.decode_tokens:
            token = int(engine.decode(token).argmax())
            tokens.append(token)
        ended = clock()
        return LoopTimes(
            prompt_tokens=len(ids),
            decoded=len(tokens),
            prefill_ms=(first - started) * 1e3,
            decode_ms=(ended - first) * 1e3,
            text=b"".join(engine.token_bytes(t) for t in tokens).decode("utf-8", "replace"),
            peak_resident_bytes=peak_resident_bytes(),
        )

    def _steps(self, threads: int, params: TimeParams) -> StepTimes:
        engine, clock = self.engine, time.perf_counter
        engine.rewind(0)
        started = clock()
        logits = engine.prefill(self._prose[: params.prompt_tokens])
        prefill_ms = (clock() - started) * 1e3
        points = [clock()]
        for _ in range(params.decode_tokens):
            logits = engine.decode(int(logits.argmax()))
            points.append(clock())
        return StepTimes(threads=threads, prefill_ms=prefill_ms, decode_ms=_differences(points))


def _differences(points: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(d) for d in np.diff(np.asarray(points)) * 1e3)
