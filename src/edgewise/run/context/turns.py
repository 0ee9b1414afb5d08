"""A conversation as turns, the units that context policies keep or leave out.

A turn is a user message with everything up to the next one, so roles that alternate still do
when whole turns are gone. What a tool answered stays with the call: where a user message came in
between, the turns on both sides of it are one. What the assistant said before the first user
message is a turn too. System messages belong to no turn and are always kept, in their places.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from edgewise.core.request import Message

__all__ = ["Conversation", "ranges"]

# What a template writes around a message, in characters; for guesses only.
_FRAME_CHARACTERS: Final = 24


class Conversation:
    """Messages and the turns they make, oldest first.

    Attributes:
        messages: All messages.
        turns: For each turn the indices of its messages.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = tuple(messages)
        self.turns = _turns(self.messages)
        self._turn_of = {index: turn for turn, held in enumerate(self.turns) for index in held}

    def turn(self, number: int) -> tuple[Message, ...]:
        """Return the messages of a turn."""
        return tuple(self.messages[index] for index in self.turns[number])

    def keep(
        self, turns: Collection[int], changed: Mapping[int, Message] | None = None
    ) -> tuple[Message, ...]:
        """Return the system messages and those of the given turns, in their order.

        Args:
            turns: Numbers of the turns to keep.
            changed: Messages that take another's place, by that one's index.
        """
        other = changed or {}
        return tuple(
            other.get(index, message)
            for index, message in enumerate(self.messages)
            if index not in self._turn_of or self._turn_of[index] in turns
        )

    def newest(self, left_out: int) -> tuple[Message, ...]:
        """Return what is kept when so many of the oldest turns are left out."""
        return self.keep(range(left_out, len(self.turns)))

    def characters(self) -> list[int]:
        """Return, for 0, 1, … oldest turns, how many characters they hold together."""
        sums = [0]
        for number in range(len(self.turns)):
            sums.append(sums[-1] + sum(map(_characters, self.turn(number))))
        return sums


def ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return ascending numbers as ranges, each ``[first, last]``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def _turns(messages: tuple[Message, ...]) -> tuple[tuple[int, ...], ...]:
    turns: list[list[int]] = []
    starts: list[int] = []  # the first message of each turn: turns that join move no number
    callers: dict[str | None, int] = {}  # call id, or None for the latest call: its message
    for index, message in enumerate(messages):
        if message.role == "system":
            continue
        if message.role == "user" or not turns:
            turns.append([])
            starts.append(index)
        turns[-1].append(index)
        if message.role == "tool" and message.tool_call_id in callers:
            caller = bisect.bisect_right(starts, callers[message.tool_call_id]) - 1
            if caller < len(turns) - 1:
                turns[caller:] = [[i for turn in turns[caller:] for i in turn]]
                del starts[caller + 1 :]
        for call in message.tool_calls:
            callers[call.id] = callers[None] = index
    return tuple(map(tuple, turns))


def _characters(message: Message) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + calls + _FRAME_CHARACTERS
