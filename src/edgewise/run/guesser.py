"""Where guesses for the next tokens come from: what was said before, else a draft model."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from edgewise.core.outcome import Event, Speculation
from edgewise.run.speculation import PassCosts, PromptLookup

if TYPE_CHECKING:
    from edgewise.run.draft_model import DraftModel
    from edgewise.run.drafting import DraftGuesses
    from edgewise.run.structure import Matcher

__all__ = ["Guesser"]


class Guesser:
    """Guesses in one answer: by looking up, which costs nothing, and only then by drafting."""

    def __init__(
        self,
        prompt: list[int],
        costs: PassCosts,
        draft: DraftModel | None = None,
        end: Collection[int] = (),
    ) -> None:
        """Take the prompt and what guesses are made with.

        Args:
            prompt: The prompt's tokens.
            costs: What passes cost.
            draft: The draft model, where there is one.
            end: Tokens that end an answer.
        """
        self._lookup = PromptLookup(prompt, costs)
        self._draft: DraftGuesses | None = None
        if draft is not None:
            from edgewise.run.drafting import DraftGuesses  # noqa: PLC0415 - few sessions need it

            self._draft = DraftGuesses(draft, costs, end)
        self._last: PromptLookup | DraftGuesses = self._lookup

    @property
    def events(self) -> list[Event]:
        """Return what happened to the draft model in this answer."""
        return [] if self._draft is None else self._draft.events

    def extend(self, token: int) -> None:
        """Take a token of the answer."""
        self._lookup.extend(token)
        if self._draft is not None:
            self._draft.extend()

    def guess(
        self, cached: list[int], token: int, most: int, left: int, matcher: Matcher | None
    ) -> list[int]:
        """Return guesses for the tokens after ``token``; empty when none pays.

        Args:
            cached: Every token before it.
            token: The last token of the answer.
            most: Most guesses.
            left: Most tokens the answer may still have.
            matcher: Where the answer stands in its structure.

        Raises:
            CancelledError: the answer was cancelled.
        """
        self._last = self._lookup
        guesses = self._lookup.guess(most)
        if guesses or self._draft is None:
            return guesses
        self._last = self._draft
        return self._draft.guess([*cached, token], most, left, matcher)

    def learn(self, guessed: int, accepted: int) -> None:
        """Take note of how many of the last guesses were right."""
        self._last.learn(guessed, accepted)

    def give_up(self, why: str) -> None:
        """Guess no more in this answer."""
        self._lookup.give_up(why)
        if self._draft is not None:
            self._draft.give_up(why)

    def result(self) -> Speculation | None:
        """Return what guessing came to, ``None`` when there was no guess and nothing to say."""
        looked_up = self._lookup.result()
        drafted = None if self._draft is None else self._draft.result()
        sources = tuple(source for source in (looked_up, drafted) if source is not None)
        if not sources:
            return None
        return Speculation(
            method="prompt-lookup" if self._draft is None else "prompt-lookup+draft",
            guessed=sum(source.guessed for source in sources),
            accepted=sum(source.accepted for source in sources),
            steps=sum(source.steps for source in sources),
            off="" if looked_up is None else looked_up.off,
            sources=sources,
        )
