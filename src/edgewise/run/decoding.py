"""From logits to the end of an answer: choose, take, evaluate, and verify guesses.

Guesses change nothing but the time: a token stands only when the rules that choose one by one
would have chosen it, by the same logits. Whether a pass over several tokens gives the same logits
as passes over single ones, bit by bit, is tried out once for each engine and each doubling of the
cache's length; where it does not, nothing is guessed.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgewise.core.outcome import FinishReason, TokenLogprob
from edgewise.run.answer import Answer
from edgewise.run.logprobs import token_logprob
from edgewise.run.sampler import Sampler
from edgewise.run.speculation import PassCosts

if TYPE_CHECKING:
    from edgewise.run.guesser import Guesser
    from edgewise.run.structure import Matcher
    from edgewise.runtimes.protocol import Engine, VerifyingEngine

__all__ = ["Decoder"]

Logits = np.ndarray[Any, np.dtype[np.float32]]

# Tokens on which passes over several and over single tokens are compared.
_PROBE_TOKENS: Final = 4
_INEXACT: Final = "a pass over several tokens does not give the same logits here as single ones"


class Decoder:
    """Decodes one answer on an engine whose cache holds ``cached``."""

    def __init__(
        self,
        engine: Engine,
        end: Collection[int],
        answer: Answer,
        cached: list[int],
        *,
        matcher: Matcher | None = None,
        guesser: Guesser | None = None,
        costs: PassCosts | None = None,
        spelled: dict[int, bytes] | None = None,
    ) -> None:
        """Take what an answer is decoded with.

        Args:
            engine: Evaluates tokens; one with ``verify`` when there is a ``guesser``.
            end: Tokens that end the answer.
            answer: Takes the tokens.
            cached: What the engine's cache holds; kept up to date.
            matcher: Masks tokens that a structure does not allow.
            guesser: Guesses tokens.
            costs: Learns what passes cost; needed with ``guesser``.
            spelled: Bytes of tokens that the engine spells otherwise.
        """
        self._engine = engine
        self._end = end
        self._answer = answer
        self._cached = cached
        self._matcher = matcher
        self._guesser = guesser
        self._costs = costs or PassCosts()
        self._spelled = spelled or {}
        self._evaluated = 0
        self._sample = Sampler(answer.params.sampling)
        self._logprobs = answer.params.logprobs

    def run(self, logits: Logits) -> None:
        """Decode until the answer ends, from the logits after the prompt."""
        answer = self._answer
        try:
            if self._plain:
                self._run_plain(logits)
            else:
                token: int | None = self._choose(logits)
                while token is not None and self._take(token):
                    token = self._next(token)
        finally:
            answer.stop_clock()
            if self._guesser is not None:
                answer.speculation = self._guesser.result()
                answer.events += self._guesser.events

    @property
    def _plain(self) -> bool:
        extras = (self._matcher, self._guesser, self._logprobs, self._answer.meter)
        return all(extra is None for extra in extras) and not self._spelled

    def _run_plain(self, logits: Logits) -> None:
        """Run the loop of an answer without extras, as short as it can be."""
        answer, end, sample, cached = self._answer, self._end, self._sample, self._cached
        decode, token_bytes, take = self._engine.decode, self._engine.token_bytes, answer.take
        while True:
            token = sample(logits)
            if token in end:
                answer.finish = FinishReason.STOP
                return
            if not take(token_bytes(token)):
                return
            logits = decode(token)
            cached.append(token)

    def _choose(self, logits: Logits) -> int:
        allowed = None if self._matcher is None else self._matcher.mask(logits)
        token = self._sample(logits if allowed is None else allowed)
        if token in self._end:
            return token
        if self._logprobs is not None:
            self._answer.note(self._logprob(logits, token))
        if self._answer.meter is not None:
            self._answer.meter.see(logits, allowed, token)
        return token

    def _logprob(self, logits: Logits, token: int) -> TokenLogprob:
        assert self._logprobs is not None
        return token_logprob(logits, token, self._logprobs, self._engine.token_bytes)

    def _take(self, token: int) -> bool:
        """Add a token to the answer; return whether another one is wanted."""
        if token in self._end:
            self._answer.finish = FinishReason.STOP
            return False
        if self._matcher is not None:
            self._matcher.accept(token)
        if self._guesser is not None:
            self._guesser.extend(token)
        data = self._spelled.get(token)
        wanted = self._answer.take(self._engine.token_bytes(token) if data is None else data)
        if self._matcher is not None and self._matcher.exhausted:
            self._answer.finish = FinishReason.STOP
            return False
        return wanted

    def _next(self, token: int) -> int | None:
        """Evaluate a token that was taken; return the next one, ``None`` when all is taken."""
        guesses = self._guesses(token)
        if guesses:
            return self._verify(token, guesses)
        return self._choose(self._evaluate(token))

    def _guesses(self, token: int) -> list[int]:
        if self._guesser is None or not self._exact(self._guesser):
            return []
        engine: VerifyingEngine = self._engine  # type: ignore[assignment]
        size = 1 << len(self._cached).bit_length()  # what was tried out holds below it
        room = min(engine.context_length, size) - len(self._cached) - 1
        left = self._answer.left
        most = min(room, left - 1, engine.verify_tokens - 1)
        return self._guesser.guess(self._cached, token, most, left, self._matcher)

    def _evaluate(self, token: int) -> Logits:
        started = time.perf_counter()
        logits = self._engine.decode(token)
        self._costs.single(time.perf_counter() - started)
        self._cached.append(token)
        self._evaluated += 1
        return logits

    def _verify(self, token: int, guesses: list[int]) -> int | None:
        """Evaluate a token and guesses after it; take what stands; return the token after that."""
        engine: VerifyingEngine = self._engine  # type: ignore[assignment]
        base, inputs = len(self._cached), [token, *guesses]
        started = time.perf_counter()
        rows = engine.verify(inputs)
        self._costs.several(len(inputs), time.perf_counter() - started)
        self._cached += inputs
        accepted = 0
        try:
            for row, guess in zip(rows, [*guesses, None], strict=True):
                chosen = self._choose(row)
                if chosen != guess:
                    self._cut(base + accepted + 1)
                    return chosen
                accepted += 1
                if not self._take(chosen):
                    self._cut(base + accepted)
                    return None
        finally:
            if self._guesser is not None:
                self._guesser.learn(len(guesses), accepted)
        raise AssertionError("the last row has no guess")

    def _cut(self, position: int) -> None:
        """Cut the cache back to what the answer stands on."""
        if position < len(self._cached):
            self._engine.rewind(position)
            del self._cached[position:]

    def _exact(self, guesser: Guesser) -> bool:
        """Return whether guesses may be verified: tried out once the answer is long enough."""
        known, size = self._costs.exact, len(self._cached).bit_length()
        start = len(self._cached) - _PROBE_TOKENS
        if size not in known and self._evaluated >= _PROBE_TOKENS and start.bit_length() == size:
            found = self._probe()
            if found is not None:
                known[size] = found
        if known.get(size) is False:
            guesser.give_up(_INEXACT)
        return known.get(size) is True

    def _probe(self) -> bool | None:
        """Evaluate the last tokens again, one by one and at once; return whether all is equal.

        They were evaluated one by one before, so the cache holds afterwards what it held. ``None``
        says that single steps were joined with another request's and so tell nothing.
        """
        engine: VerifyingEngine = self._engine  # type: ignore[assignment]
        tail = self._cached[-_PROBE_TOKENS:]
        start = len(self._cached) - len(tail)
        engine.rewind(start)
        started = time.perf_counter()
        rows = engine.verify(tail)
        self._costs.several(len(tail), time.perf_counter() - started)
        at_once = [row.copy() for row in rows]
        engine.rewind(start)
        rounded = getattr(engine, "rounded_steps", 0)
        singly = [engine.decode(token).copy() for token in tail]
        if getattr(engine, "rounded_steps", 0) != rounded:
            return None
        return all(map(np.array_equal, at_once, singly))
