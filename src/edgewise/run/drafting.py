"""When a draft model thinks ahead, and how far.

What it proposes is verified like any other guess, so it can cost time and nothing else. What it may
cost is bounded:

- it goes on only while the tokens that should stand outweigh its steps and the pass over them,
  whose cost need not grow evenly: a kernel may take eight tokens for little more than four;
- what it loses is paid from a balance of a few of the model's steps, which right guesses and the
  answers' tokens fill again;
- catching up with a long conversation must be gained back by what is left of the answer.

All of it by what steps and verifying passes were measured to cost in this process, and by what
became of tokens that the draft was as sure of.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from edgewise.core.outcome import Event, GuessSource
from edgewise.errors import EdgewiseError
from edgewise.run.draft_model import averaged, likeliest

if TYPE_CHECKING:
    from collections.abc import Collection

    from edgewise.run.draft_model import DraftModel, Logits
    from edgewise.run.speculation import PassCosts
    from edgewise.run.structure import Matcher

__all__ = ["DraftGuesses"]

_BALANCE_MAX: Final = 12.0
_BALANCE_PER_TOKEN: Final = 0.01
# With this much of the balance left it is also tried where it would pay if it was this good, since
# texts differ.
_RESERVE: Final = 1.5
_HOPED: Final = 0.9
# A token of a longer piece costs the draft this share of one of its steps, before it was measured.
_PIECE_SHARE: Final = 0.4
# Catching up that costs less than this is part of the round; more must be worth it this many times.
_SMALL: Final = 0.5
_WORTH: Final = 1.5
_CHAIN_MAX: Final = 8
_DEAR: Final = "a guess of the draft model would cost more here than it saves"


class DraftGuesses:
    """The draft's guesses in one answer. Not thread-safe.

    Attributes:
        events: What happened to it that nobody should have to guess.
    """

    def __init__(self, draft: DraftModel, costs: PassCosts, end: Collection[int]) -> None:
        """Take the draft, what passes of the model cost, and the tokens that end an answer."""
        self.events: list[Event] = []
        self._draft = draft
        self._costs = costs
        self._end = end
        self._levels: list[int] = []
        self._spent = 0.0
        self._tokens = 0
        self._guessed = self._accepted = self._steps = self._drafted = 0
        self._off = draft.failed

    def extend(self) -> None:
        """The answer has one more token."""
        self._tokens += 1
        self._book(_BALANCE_PER_TOKEN)

    def guess(
        self, history: list[int], most: int, left: int, matcher: Matcher | None = None
    ) -> list[int]:
        """Return guesses for what follows a conversation; empty when it does not pay.

        Args:
            history: All tokens so far.
            most: Most guesses.
            left: Most tokens the answer may still have.
            matcher: Where the answer stands in its structure, which allows every guess; left as
                it is.

        Raises:
            CancelledError: the answer was cancelled.
        """
        most = min(most, _CHAIN_MAX)
        if self._draft.failed or most < 1 or not self._pays(history, most, left):
            return []
        ahead = None if matcher is None else matcher.fork()
        started = time.perf_counter()
        try:
            guesses = self._chain(history, most, ahead)
        except EdgewiseError as error:
            self._fail(error)
            return []
        self._spent += (time.perf_counter() - started) / (self._costs.single_s or 1.0)
        if not guesses:
            self._settle(0.0, tokens=1)
        return guesses

    def learn(self, guessed: int, accepted: int) -> None:
        """Take note of how many guesses were right."""
        self._guessed += guessed
        self._accepted += accepted
        self._steps += 1
        for level in self._levels[:accepted]:
            self._draft.learn(level, stood=True)
        if accepted < guessed:
            self._draft.learn(self._levels[accepted], stood=False)
        self._settle(accepted + 1 - self._costs.of(guessed + 1), tokens=accepted + 1)

    def give_up(self, why: str) -> None:
        """Guess no more in this answer."""
        self._off = self._off or why

    def result(self) -> GuessSource:
        """Return what it came to, and be done."""
        self._draft.answered(self._tokens)
        return GuessSource(
            source="draft",
            guessed=self._guessed,
            accepted=self._accepted,
            steps=self._steps,
            drafted=self._drafted,
            off=self._off or ("" if self._guessed else _DEAR),
        )

    def _chain(self, history: list[int], most: int, ahead: Matcher | None) -> list[int]:
        """Return the tokens worth verifying, one after the other; ``ahead`` goes with them."""
        draft, hope = self._draft, self._hope(most)
        guesses: list[int] = []
        chances: list[float] = []
        self._levels = []
        pending = history
        while self._later(chances, hope, most) > self._now(chances)[0]:
            logits = draft.evaluate(pending) if guesses else draft.follow(pending)
            allowed = logits if ahead is None else _allowed(ahead, logits)
            if allowed is None:
                break
            token, level = likeliest(allowed)
            self._drafted += 1
            chances.append(draft.said(level) * (chances[-1] if chances else 1.0))
            guesses.append(token)
            self._levels.append(level)
            if token in self._end:
                break
            if ahead is not None:
                ahead.accept(token)
            pending, hope = [token], draft.typical
        return guesses[: self._now(chances)[1]]

    def _now(self, chances: list[float]) -> tuple[float, int]:
        """Return what verifying should gain, in the model's steps, and how many guesses best do."""
        best, size, stand = 0.0, 0, 0.0
        for count, chance in enumerate(chances, 1):
            stand += chance
            net = stand - self._verifying(count)
            if net > best:
                best, size = net, count
        return best, size

    def _later(self, chances: list[float], hope: float, most: int) -> float:
        """Return what going on should gain, where each further token stands with chance ``hope``.

        Steps of the draft that were made are spent either way and count for neither.
        """
        best, cost = 0.0, self._step_cost()
        stand, chance, made = sum(chances), chances[-1] if chances else 1.0, len(chances)
        for more in range(1, most - made + 1):
            chance *= hope
            stand += chance
            best = max(best, stand - self._verifying(made + more) - more * cost)
        return best

    def _hope(self, most: int) -> float:
        """Return the chance to reckon with: what is usual, or more where something may be tried."""
        typical = self._draft.typical
        if self._later([], typical, most) > 0 or self._draft.balance < _RESERVE:
            return typical
        return max(typical, _HOPED)

    def _pays(self, history: list[int], most: int, left: int) -> bool:
        """Return whether the draft may try."""
        draft, hope = self._draft, self._hope(most)
        promised = self._later([], hope, most)
        if draft.balance <= 0 or promised <= 0:
            return False
        catching_up = (draft.missing(history) - 1) * self._token_cost()
        if catching_up < _SMALL:
            return True
        # A proposal that stands gives about so many tokens: what it gains is for all of them.
        gain = promised / (1 + most * hope) if draft.gain is None else draft.gain
        if gain * min(left, draft.answer_tokens) >= _WORTH * catching_up:
            self._spent -= catching_up  # an investment, not a loss of this round
            return True
        return draft.balance >= catching_up + _RESERVE

    def _settle(self, gained: float, *, tokens: int) -> None:
        """Book what a round has gained and cost, in the model's steps."""
        net, self._spent = gained - self._spent, 0.0
        self._draft.gain = averaged(self._draft.gain, net / tokens)
        self._book(net)

    def _book(self, steps: float) -> None:
        self._draft.balance = min(_BALANCE_MAX, self._draft.balance + steps)

    def _verifying(self, guesses: int) -> float:
        """Return what verifying guesses costs beyond a single step, in the model's steps."""
        return max(0.0, self._costs.of(guesses + 1) - 1)

    def _step_cost(self) -> float:
        single, step = self._costs.single_s, self._draft.step_s
        return self._draft.size_ratio if step is None or not single else step / single

    def _token_cost(self) -> float:
        single, token = self._costs.single_s, self._draft.token_s
        if token is None or not single:
            return _PIECE_SHARE * self._step_cost()
        return token / single

    def _fail(self, error: EdgewiseError) -> None:
        self._off = self._draft.failed = f"the draft model failed: {error.message}"
        self.events.append(
            Event(
                code="draft-failed",
                message=f"{self._off}; this answer and the next ones go on without it",
                context={"code": error.code},
            )
        )


def _allowed(ahead: Matcher, logits: Logits) -> Logits | None:
    """Return the logits of tokens that a structure allows, ``None`` where it has its say first."""
    if ahead.exhausted:
        return None
    try:
        return ahead.mask(logits)
    except EdgewiseError:
        return None  # it is raised where the model itself gets there
