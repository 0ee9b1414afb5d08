"""The worker that times one artifact."""

from __future__ import annotations

import time

import msgspec

from edgewise.core.request import Message, Sampling
from edgewise.run.messages import LoadParams
from edgewise.run.service import EngineService
from edgewise.runtimes.host import Emit, Method
from edgewise.runtimes.protocol import TextEngine
from edgewise.runtimes.reports import StreamTimes

__all__ = ["SERVICE", "ArtifactService", "ArtifactTimes", "TimesParams"]

SERVICE = "edgewise.bench.artifact_service:ArtifactService"

# The project's own text, about 80 tokens.
_PROMPT = (
    "A small museum by the river keeps the tools of the ferrymen who worked there until the bridge "
    "was built. Visitors may lift the oars, which are heavier than they look, and read the list of "
    "tolls that hung by the landing: one coin for a person, two for a horse, and nothing at all "
    "for the doctor. Tell the story of one crossing in the rain."
)


class TimesParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many tokens to answer."""

    decode_tokens: int


class ArtifactTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One round. ``decode_tok_s`` is ``None`` when no second token came."""

    prompt_tokens: int
    decode_tokens: int
    ttft_ms: float
    decode_tok_s: float | None


class ArtifactService(EngineService):
    """Times an engine, whatever its kind."""

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {**super().methods(), "times": Method(TimesParams, self._times)}

    def loaded(self, params: LoadParams) -> None:
        """Take the end tokens, which do not end a timing."""
        self._params = params

    def _times(self, params: TimesParams, _emit: Emit) -> ArtifactTimes:
        if isinstance(self.any_engine, TextEngine):
            return self._text_times(self.any_engine, params)
        engine, clock = self.engine, time.perf_counter
        ids = engine.tokenize(_PROMPT, add_special=True, parse_special=False)
        stream = getattr(engine, "stream_times", None)
        if stream is not None:
            return _streamed(len(ids), stream(ids, params.decode_tokens))
        engine.rewind(0)
        started = clock()
        token = int(engine.prefill(ids).argmax())
        first = clock()
        for _ in range(params.decode_tokens):
            token = int(engine.decode(token).argmax())
        ended = clock()
        return ArtifactTimes(
            prompt_tokens=len(ids),
            decode_tokens=params.decode_tokens,
            ttft_ms=(first - started) * 1e3,
            decode_tok_s=params.decode_tokens / (ended - first),
        )

    def _text_times(self, engine: TextEngine, params: TimesParams) -> ArtifactTimes:
        result = engine.generate(
            (Message(role="user", content=_PROMPT),),
            max_tokens=params.decode_tokens + 1,
            sampling=Sampling(),
            on_text=lambda _text: None,
        )
        tokens = result.completion_tokens or 0
        rate = (tokens - 1) / (result.decode_ms / 1e3) if tokens > 1 and result.decode_ms else None
        return ArtifactTimes(
            prompt_tokens=result.prompt_tokens or 0,
            decode_tokens=tokens,
            ttft_ms=result.ttft_ms,
            decode_tok_s=rate,
        )


def _streamed(prompt_tokens: int, times: StreamTimes) -> ArtifactTimes:
    rate = None
    if times.tokens > 1 and times.decode_ms:
        rate = (times.tokens - 1) / (times.decode_ms / 1e3)
    return ArtifactTimes(
        prompt_tokens=prompt_tokens,
        decode_tokens=times.tokens,
        ttft_ms=times.ttft_ms,
        decode_tok_s=rate,
    )
