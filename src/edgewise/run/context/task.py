"""What every context policy works on: a conversation that does not fit, and ways to measure it.

Whether messages fit is decided by rendering them with the model's own template, never by an
estimate. Rendering a long conversation takes long, so estimates say where to look.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from edgewise.core.outcome import Event
from edgewise.core.request import ContextPolicy, Message
from edgewise.errors import EdgewiseError, InputError, IntegrityError
from edgewise.run.context.turns import Conversation, ranges

__all__ = ["Fitted", "Task", "attempt", "fewest", "too_long"]

_GUESSES: Final = 3
_PROBE: Final = tuple(Message(role=role, content="a") for role in ("user", "assistant", "user"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A conversation that fits.

    Attributes:
        messages: What is left of it.
        tokens: The prompt: those messages, rendered and tokenised.
        events: What was done to make it fit; none when nothing was.
    """

    messages: tuple[Message, ...]
    tokens: list[int]
    events: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A conversation of at least two turns that does not fit, while its last turn alone does.

    Attributes:
        conversation: All of it.
        policy: The policy asked for.
        room: Most tokens the prompt may have.
        render: From messages to prompt tokens.
        tokenize: From a piece of content to tokens.
        count: How many tokens a piece of content has.
        detokenize: From tokens to a piece of content.
        summarise: Makes a summary of turns in at most so many tokens.
        whole: Tokens of the whole conversation; ``None`` when it is too large to render.
        least: The prompt of the system messages and the last turn.
    """

    conversation: Conversation
    policy: ContextPolicy
    room: int
    render: Callable[[Sequence[Message]], list[int]]
    tokenize: Callable[[str], list[int]]
    count: Callable[[str], int]
    detokenize: Callable[[list[int]], str]
    summarise: Callable[[Sequence[Message], int], str] | None
    whole: int | None
    least: list[int]

    @property
    def last(self) -> int:
        """Return the last turn's number."""
        return len(self.conversation.turns) - 1

    def attempt(self, messages: Sequence[Message]) -> list[int] | None:
        """Return the prompt of these messages, or ``None`` when it does not fit."""
        tokens = attempt(self.render, messages, self.room)
        return tokens if tokens is not None and len(tokens) <= self.room else None

    def newest_turns(self, room: int) -> tuple[int, list[int]]:
        """Return how few of the oldest turns have to be left out, and the prompt of the rest.

        Args:
            room: Most tokens; the last turn alone fits into it.
        """
        return fewest(
            (0, self.whole),
            (self.last, self.least),
            room=room,
            weights=self.characters,
            render=lambda left_out: attempt(self.render, self.conversation.newest(left_out), room),
        )

    def cost(self, messages: Sequence[Message]) -> int:
        """Return about how many tokens messages take, slightly too many rather than too few."""
        calls = [f"{call.name} {call.arguments}" for m in messages for call in m.tool_calls]
        texts = [m.content for m in messages if m.content] + calls
        frames = self.empty_and_frame[1] * (len(messages) + len(calls))
        return frames + sum(map(self.count, texts))

    @functools.cached_property
    def empty_and_frame(self) -> tuple[int, int]:
        """Return what the pinned part takes, and what the template adds to each message.

        Measured on messages of one letter, so that they are the same for each request of a
        conversation.
        """
        pinned = self.conversation.keep(())
        one, three = (len(self.render((*pinned, *_PROBE[:count]))) for count in (1, 3))
        return one, -(-(three - one) // 2)

    @functools.cached_property
    def characters(self) -> list[int]:
        """Return, for 0, 1, … oldest turns, how many characters they hold together."""
        return self.conversation.characters()

    def facts(self, tokens: list[int], kept: Sequence[int], **more: Any) -> dict[str, Any]:
        """Return the context of an event: what was left out and what it came to."""
        kept_set = frozenset(kept)
        turns = range(len(self.conversation.turns))
        return {
            "policy": str(self.policy),
            "turns": len(turns),
            "turns_left_out": ranges(turn for turn in turns if turn not in kept_set),
            "prompt_tokens_before": self.whole,
            "prompt_tokens": len(tokens),
            "room_tokens": self.room,
            **more,
        }

    def left_out(self, tokens: list[int], kept: Sequence[int], **more: Any) -> Event:
        """Return the event that says that whole turns are gone."""
        facts = self.facts(tokens, kept, **more)
        count = facts["turns"] - len(frozenset(kept))
        return Event(
            code="context-turns-left-out",
            message=f"{count} of {facts['turns']} turns are left out, since the conversation does "
            f"not fit into {self.room} tokens",
            context=facts,
        )


def attempt(
    render: Callable[[Sequence[Message]], list[int]], messages: Sequence[Message], room: int
) -> list[int] | None:
    """Return the prompt of these messages, or ``None`` when they are too many to render it.

    Raises:
        EdgewiseError: they cannot be rendered for another reason.
    """
    try:
        return render(messages)
    except (InputError, IntegrityError) as error:
        # Text of fewer characters than there is room for tokens is not what makes it slow.
        large = sum(len(message.content) for message in messages) > room
        if error.code == "prompt-too-long" or (large and error.code in _TOO_LARGE):
            return None
        raise


_TOO_LARGE: Final = frozenset({"template-too-large", "template-too-slow"})


def fewest(
    bad: tuple[int, int | None],
    good: tuple[int, list[int]],
    *,
    room: int,
    weights: Sequence[int],
    render: Callable[[int], list[int] | None],
) -> tuple[int, list[int]]:
    """Return the lowest number whose prompt fits, and that prompt.

    A binary search that begins with a few guesses: ``ceil(log2(n)) + 3`` renders at most.

    Args:
        bad: A number whose prompt does not fit, and how many tokens it has or may have.
        good: A larger number whose prompt fits, and that prompt.
        room: Most tokens.
        weights: For each number, how much is gone by then: ascending, in any unit.
        render: From a number to its prompt, ``None`` when it is too large.
    """
    low, size = bad
    at, found = good
    guesses = _GUESSES
    while at - low > 1:
        middle = (low + at) // 2
        if guesses and size is not None and size > room:
            share = (size - room) / (size - len(found))
            goal = weights[low] + share * (weights[at] - weights[low])
            middle = min(max(bisect_left(weights, goal, low, at), low + 1), at - 1)
            guesses -= 1
        tokens = render(middle)
        if tokens is not None and len(tokens) <= room:
            at, found = middle, tokens
        else:
            low, size = middle, None if tokens is None else len(tokens)
    return at, found


def too_long(
    messages: Sequence[Message], tokens: int | None, room: int, policy: ContextPolicy
) -> EdgewiseError:
    """Return the error for a conversation that cannot be made to fit."""
    rejected = policy is ContextPolicy.REJECT
    what = "the prompt has" if rejected else "the system messages and the last turn alone have"
    count = "more tokens than can be counted" if tokens is None else f"{tokens} tokens"
    return InputError(
        "prompt-too-long",
        f"{what} {count} and there is room for {room}",
        context={
            "prompt_tokens": tokens,
            "room_tokens": room,
            "messages": len(messages),
            "policy": str(policy),
        },
        hint="shorten the last message or the system messages, ask for fewer tokens, or set "
        "the model up with a larger context: edgewise up --context N"
        if not rejected
        else "shorten the prompt, ask with another context policy than reject, or set the model up "
        "with a larger context: edgewise up --context N",
    )
