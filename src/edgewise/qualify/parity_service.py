"""The parity worker: what one engine makes of given texts and tokens.

Log-probabilities go to a file that the parent names, since a vocabulary of 262,144 at a few
hundred positions is more than a pipe should carry.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewise.core.outcome import FinishReason
from edgewise.core.request import Sampling
from edgewise.errors import UnsupportedError
from edgewise.qualify.distance import distance, reading
from edgewise.qualify.distributions import kl_nats, log_softmax
from edgewise.qualify.parity_messages import (
    Answer,
    AskParams,
    Distance,
    DistanceParams,
    Encoded,
    EncodeParams,
    Reading,
    Scored,
    ScoreParams,
)
from edgewise.run.messages import LoadParams
from edgewise.run.prompt import PromptBuilder
from edgewise.run.service import EngineService
from edgewise.runtimes.host import Emit, Method

if TYPE_CHECKING:
    from edgewise.runtimes.protocol import TextEngine

__all__ = ["ParityService"]

# Beginnings of a window that are read at once: deep ones, where long steps add up.
_READ_SHARES = (0.5, 0.75, 1.0)


class ParityService(EngineService):
    """Lets one engine be compared with another."""

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            **super().methods(),
            "encode": Method(EncodeParams, self._encode),
            "score": Method(ScoreParams, self._score),
            "ask": Method(AskParams, self._ask),
            "distance": Method(DistanceParams, self._distance),
        }

    def loaded(self, params: LoadParams) -> None:
        """Prepare the template."""
        self._text = params.text

    def _encode(self, params: EncodeParams, _emit: Emit) -> list[Encoded]:
        return [self._encode_one(text, params.parse_special) for text in params.texts]

    def _encode_one(self, text: str, parse_special: bool) -> Encoded:
        tokenize = self.engine.tokenize
        try:
            ids = tokenize(text, add_special=False, parse_special=parse_special)
        except UnsupportedError as error:
            return Encoded(refused=error.message)
        return Encoded(ids=ids)

    def _score(self, params: ScoreParams, emit: Emit) -> Scored:
        engine = self.engine
        started = time.perf_counter()
        positions = sum(len(window) - 1 - params.skip for window in params.windows)
        rows = np.lib.format.open_memmap(
            params.file, mode="w+", dtype=np.float32, shape=(positions, engine.vocab_size)
        )
        at = 0
        for window in params.windows:
            engine.rewind(0)
            if params.skip:
                engine.prefill(window[: params.skip], progress=emit)
            for token in window[params.skip : -1]:
                logits = engine.prefill([token]) if engine.position == 0 else engine.decode(token)
                rows[at] = log_softmax(logits)  # rounded to float32 by the file
                at += 1
                if at % 32 == 0:
                    emit(at)
        rows.flush()
        return Scored(
            positions=positions,
            vocab_size=engine.vocab_size,
            seconds=time.perf_counter() - started,
            reading=self._read(params.windows, rows, emit) if params.read else None,
        )

    def _read(self, windows: tuple[tuple[int, ...], ...], rows: Any, emit: Emit) -> Reading:
        """Read beginnings of the windows at once; ``rows`` is what was said token by token."""
        engine = self.engine
        divergences, same, longest, at = [], [], 0, 0
        for window in windows:
            scored = len(window) - 1
            for length in sorted({max(1, round(scored * share)) for share in _READ_SHARES}):
                engine.rewind(0)
                q = log_softmax(engine.prefill(window[:length], progress=emit))
                p = rows[at + length - 1].astype(np.float64)
                kl = kl_nats(p, q)
                divergences.append(0.0 if kl < 0 else kl)
                same.append(bool(p.argmax() == q.argmax()))
                longest = max(longest, length)
            at += scored
        return reading(divergences, same, longest)

    def _distance(self, params: DistanceParams, _emit: Emit) -> Distance:
        scored = tuple(window[params.skip :] for window in params.windows)
        return distance(Path(params.first), Path(params.second), scored)

    def _ask(self, params: AskParams, _emit: Emit) -> Answer:
        from edgewise.runtimes.protocol import TextEngine  # noqa: PLC0415

        engine = self.any_engine
        if isinstance(engine, TextEngine):
            return _ask_text(engine, params)
        assert self._text is not None
        prompt = PromptBuilder(engine, self._text).tokens(params.messages)
        engine.rewind(0)
        logits = engine.prefill(prompt)
        tokens: list[int] = []
        finish = FinishReason.LENGTH
        while len(tokens) < params.max_tokens:
            token = int(logits.argmax())
            if token in self._text.end_token_ids:
                finish = FinishReason.STOP
                break
            tokens.append(token)
            logits = engine.decode(token)
        text = b"".join(engine.token_bytes(token) for token in tokens)
        return Answer(
            text=text.decode("utf-8", "replace"),
            tokens=tuple(tokens),
            finish=finish,
            prompt=tuple(prompt),
            prompt_tokens=len(prompt),
        )


def _ask_text(engine: TextEngine, params: AskParams) -> Answer:
    result = engine.generate(
        params.messages,
        max_tokens=params.max_tokens,
        sampling=Sampling(),
        on_text=lambda _text: None,
    )
    return Answer(text=result.text, finish=result.finish, prompt_tokens=result.prompt_tokens)
