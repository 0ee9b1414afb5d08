"""The smoke qualification's worker: checks that an artifact behaves as an engine must, here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgewise.core.quantity import Measured
from edgewise.core.request import Message, Sampling
from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.qualify import draft_checks
from edgewise.qualify.checks import Check, same_logits
from edgewise.qualify.distributions import kl_nats, log_softmax
from edgewise.run.service import EngineService
from edgewise.runtimes.host import Emit, Method
from edgewise.runtimes.protocol import CancelledError, TextEngine

__all__ = ["SmokeService"]

# The project's own sentences: plain English, so that a working model finds them likely.
_TEXT = (
    "The old bridge was closed for repairs last winter, so everyone in the village had to take "
    "the long road around the lake. When it opened again in spring, the baker gave away bread "
    "to the first hundred people who crossed it."
)
_HARD_TEXTS = (
    "naïve café, Ærøskøbing, Łódź",
    "数字 12345678901234567890 と漢字",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \u00e9",
    "tabs\tand\nnew lines\r\n  and   runs of spaces",
)
# Batched and single-step kernels round differently; measurements of the same weights on
# two instruction sets gave a mean KL of 3e-3 to 7e-3. Ten times that is another answer.
_KL_LIMIT_NATS = 0.07
# A model that works finds plain English at 10 to 60; broken weights land near the vocabulary.
_PERPLEXITY_LIMIT = 300.0


class SmokeService(EngineService):
    """Runs all checks on the loaded engine."""

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {**super().methods(), "smoke": Method(None, self._smoke)}

    def _smoke(self, _params: None, _emit: Emit) -> list[Check]:
        if isinstance(self.any_engine, TextEngine):
            return _text_checks(self.any_engine)
        self._tokens = self.engine.tokenize(_TEXT, add_special=True, parse_special=False)
        checks: tuple[tuple[str, Callable[[], Check]], ...] = (
            ("tokenizer-round-trip", self._round_trip),
            ("perplexity", self._perplexity),
            ("prefill-equals-decode", self._prefill_equals_decode),
            ("rewind-equals-clean-run", self._rewind),
            ("state-restores", self._state),
            ("cancel-then-reuse", self._cancel),
            *self._of_the_draft(),
        )
        results = []
        for name, check in checks:
            try:
                results.append(check())
            except UnsupportedError as error:
                detail = f"not offered by this runtime: {error.code}"
                results.append(Check(name=name, passed=True, detail=detail))
            except EdgewiseError as error:
                results.append(Check(name=name, passed=False, detail=str(error)))
        return results

    def _round_trip(self) -> Check:
        broken = []
        for text in _HARD_TEXTS:
            ids = self.engine.tokenize(text, add_special=False, parse_special=False)
            back = b"".join(self.engine.token_bytes(i) for i in ids).decode("utf-8", "replace")
            if back.removeprefix(" ") != text:  # SentencePiece models put one space in front
                broken.append(text)
        return Check(
            name="tokenizer-round-trip",
            passed=not broken,
            detail=f"{len(_HARD_TEXTS) - len(broken)} of {len(_HARD_TEXTS)} hard texts come back",
        )

    def _perplexity(self) -> Check:
        engine = self.engine
        engine.rewind(0)
        logits = engine.prefill(self._tokens[:1])
        losses, finite = [], True
        self._likeliest: list[int] = []
        for token in self._tokens[1:]:
            self._likeliest.append(int(np.argmax(logits)))
            log_probabilities = log_softmax(logits)
            finite = finite and bool(np.isfinite(log_probabilities[token]))
            losses.append(-float(log_probabilities[token]))
            logits = engine.decode(token)
        self._stepwise = logits.copy()
        if not finite:
            return Check(name="perplexity", passed=False, detail="the logits are not finite")
        value = float(np.exp(np.mean(losses)))
        return Check(
            name="perplexity",
            passed=value < _PERPLEXITY_LIMIT,
            detail=f"{value:.1f} on plain English; above {_PERPLEXITY_LIMIT:g} the model is broken",
            figure=Measured(value=round(value, 3), source="teacher-forced", n=len(losses)),
        )

    def _prefill_equals_decode(self) -> Check:
        self.engine.rewind(0)
        batched = self.engine.prefill(self._tokens)
        divergence = kl_nats(log_softmax(self._stepwise), log_softmax(batched))
        return Check(
            name="prefill-equals-decode",
            passed=divergence < _KL_LIMIT_NATS,
            detail=f"KL {divergence:.2e} nats between token by token and all at once",
            figure=Measured(value=round(divergence, 9), source="last position"),
        )

    def _rewind(self) -> Check:
        engine, token = self.engine, self._tokens[-1]
        position = engine.position
        first = engine.decode(token).copy()
        engine.rewind(position)
        return same_logits("rewind-equals-clean-run", first, engine.decode(token))

    def _state(self) -> Check:
        engine, token = self.engine, self._tokens[-1]
        state = engine.save_state()
        first = engine.decode(token).copy()
        engine.restore_state(state)
        return same_logits("state-restores", first, engine.decode(token))

    def _cancel(self) -> Check:
        engine = self.engine
        engine.rewind(0)
        engine.prefill(self._tokens[:8])
        before = engine.decode(self._tokens[8]).copy()
        engine.rewind(8)
        engine.cancel()
        try:
            engine.prefill(self._tokens[8:])
        except CancelledError:
            stopped = True
        else:
            stopped = False
        engine.clear_cancel()
        if not stopped:
            return Check(name="cancel-then-reuse", passed=False, detail="cancel was ignored")
        return same_logits("cancel-then-reuse", before, engine.decode(self._tokens[8]))

    def _of_the_draft(self) -> tuple[tuple[str, Callable[[], Check]], ...]:
        """Return the checks of a draft model, where one is loaded beside the model."""
        engine, draft, tokens = self.engine, self.draft, self._tokens
        if draft is None:
            return ()
        return (
            ("draft-agrees", lambda: draft_checks.agrees(draft, tokens, self._likeliest)),
            (
                "draft-changes-nothing",
                lambda: draft_checks.changes_nothing(engine, draft, tokens),
            ),
        )


def _text_checks(engine: TextEngine) -> list[Check]:
    """Return what can be seen of a runtime that gives text only."""

    def ask() -> str:
        return engine.generate(
            (Message(role="user", content=_TEXT),),
            max_tokens=16,
            sampling=Sampling(),
            on_text=lambda _text: None,
        ).text

    first, second = ask(), ask()
    return [
        Check(name="answers", passed=bool(first), detail=f"{len(first)} characters"),
        Check(
            name="greedy-repeats",
            passed=first == second,
            detail="the same answer twice" if first == second else "two answers differ",
        ),
    ]
