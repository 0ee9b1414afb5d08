"""Taking the signals of an answer, token by token, from the logits it is chosen from."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewise.core.signals import MARGIN_MAX_NATS, FinishName, Signals, TokenSignals, Validator

if TYPE_CHECKING:
    from edgewise.run.answer import Answer

__all__ = ["SignalMeter", "signals_of"]

Logits = np.ndarray[Any, np.dtype[np.float32]]

_FAILED = frozenset({"tool-call-invalid", "tool-call-missing"})


class _Tally:
    """Sums and extremes over tokens."""

    def __init__(self) -> None:
        self.tokens = 0
        self._entropy_sum = self._margin_sum = self._logprob_sum = 0.0
        self._entropy_max = 0.0
        self._margin_min = self._margin_first = MARGIN_MAX_NATS
        self._logprob_min = 0.0

    def add(self, entropy: float, margin: float, logprob: float) -> None:
        if self.tokens == 0:
            self._margin_first = margin
        self.tokens += 1
        self._entropy_sum += entropy
        self._margin_sum += margin
        self._logprob_sum += logprob
        self._entropy_max = max(self._entropy_max, entropy)
        self._margin_min = min(self._margin_min, margin)
        self._logprob_min = min(self._logprob_min, logprob)

    def result(self) -> TokenSignals | None:
        """Return the figures; ``None`` where the logits held no numbers."""
        sums = (self._entropy_sum, self._margin_sum, self._logprob_sum)
        if not all(map(math.isfinite, sums)):
            return None
        n = max(self.tokens, 1)
        return TokenSignals(
            tokens=self.tokens,
            entropy_mean=self._entropy_sum / n,
            entropy_max=self._entropy_max,
            margin_mean=self._margin_sum / n if self.tokens else MARGIN_MAX_NATS,
            margin_min=self._margin_min,
            margin_first=self._margin_first,
            logprob_mean=self._logprob_sum / n,
            logprob_min=self._logprob_min,
        )


class SignalMeter:
    """Takes the signals of one answer.

    One token costs four passes over the vocabulary, twice as many under a structure; no memory
    is taken after the first.
    """

    def __init__(self) -> None:
        self.taken_s = 0.0
        self._raw = _Tally()
        self._allowed: _Tally | None = None
        self._shifted: Logits | None = None
        self._weights: Logits | None = None

    def see(self, logits: Logits, allowed: Logits | None, token: int) -> None:
        """Take the signals of one choice.

        Args:
            logits: Shape ``(vocab_size,)``, float32; not modified.
            allowed: The same with what a structure forbids at minus infinity, if there is one.
            token: What was chosen.
        """
        started = time.perf_counter()
        self._raw.add(*self._measure(logits, token))
        if allowed is not None:
            if self._allowed is None:
                self._allowed = _Tally()
            entropy, margin, logprob = self._measure(allowed, token)
            if margin < MARGIN_MAX_NATS:  # there was a choice
                self._allowed.add(entropy, margin, logprob)
        self.taken_s += time.perf_counter() - started

    def result(
        self,
        *,
        finish: FinishName,
        validator: Validator,
        prompt_tokens: int,
        context_tokens: int,
    ) -> Signals:
        """Return the signals of the answer, which has ended."""
        return Signals(
            raw=self._raw.result() if self._raw.tokens else None,
            allowed=None if self._allowed is None else self._allowed.result(),
            finish=finish,
            validator=validator,
            prompt_tokens=prompt_tokens,
            context_tokens=context_tokens,
            taken_ms=round(self.taken_s * 1e3, 3),
        )

    def _measure(self, logits: Logits, token: int) -> tuple[float, float, float]:
        """Return normalised entropy, margin (nats) and the token's log-probability (nats)."""
        if self._shifted is None or self._weights is None or len(self._shifted) != len(logits):
            self._shifted = np.empty(len(logits), dtype=np.float32)
            self._weights = np.empty(len(logits), dtype=np.float32)
        shifted, weights = self._shifted, self._weights
        best = int(logits.argmax())
        np.subtract(logits, logits[best], out=shifted)
        # A forbidden token weighs 2e-35 instead of nothing, so that no product is 0 times infinity.
        np.maximum(shifted, -MARGIN_MAX_NATS, out=shifted)
        np.exp(shifted, out=weights)
        total = float(weights.sum())
        np.multiply(weights, shifted, out=weights)
        log_total = math.log(total) if total > 0 else math.nan
        entropy = (log_total - float(weights.sum()) / total) / math.log(max(len(logits), 2))
        logprob = float(shifted[token]) - log_total
        shifted[best] = -MARGIN_MAX_NATS
        return min(max(entropy, 0.0), 1.0), -float(shifted.max()), min(logprob, 0.0)


def signals_of(answer: Answer, *, prompt_tokens: int, context_tokens: int) -> Signals | None:
    """Return the signals of a closed answer; ``None`` where nobody asked for them."""
    if answer.meter is None:
        return None
    return answer.meter.result(
        finish=answer.finish.value,
        validator=_validator(answer),
        prompt_tokens=prompt_tokens,
        context_tokens=context_tokens,
    )


def _validator(answer: Answer) -> Validator:
    """Return what is known of the form; a finished answer without its structure never gets here."""
    if answer.tool_calls:
        return "passed"
    if any(event.code in _FAILED for event in answer.events):
        return "failed"
    finished = answer.finish.value == "stop"
    return "passed" if answer.params.structure is not None and finished else "not-run"
