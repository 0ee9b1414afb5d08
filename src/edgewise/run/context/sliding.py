"""The sliding window: the system messages and the newest tokens.

The newest turns are kept whole. Of the turn before them the text is cut from its start, so that
the window is full; its roles, calls and the order of its messages stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from edgewise.core.outcome import Event
from edgewise.core.request import Message
from edgewise.errors import InputError
from edgewise.run.context.cutting import tail
from edgewise.run.context.task import Fitted, Task, fewest

__all__ = ["slide"]


def slide(task: Task) -> Fitted:
    """Return the newest tokens of a conversation.

    Raises:
        EdgewiseError: messages cannot be rendered.
    """
    left_out, tokens = task.newest_turns(task.room)
    cut = _fullest(_Cut.of(task, left_out - 1))
    kept = range(left_out, len(task.conversation.turns))
    if cut is None:
        events: tuple[Event, ...] = (task.left_out(tokens, kept),)
        return Fitted(messages=task.conversation.newest(left_out), tokens=tokens, events=events)
    window, gone, tokens = cut
    kept = range(window.turn, len(task.conversation.turns))
    events = (task.left_out(tokens, kept),) if window.turn else ()
    event = Event(
        code="context-turn-cut",
        message=f"the text of turn {window.turn} lacks its first {gone} of {window.size} tokens",
        context=task.facts(
            tokens, kept, turn_cut=window.turn, tokens_cut=gone, turn_tokens=window.size
        ),
    )
    return Fitted(messages=window.messages(gone), tokens=tokens, events=(*events, event))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """A window whose oldest turn may lack its first tokens.

    Attributes:
        task: The conversation.
        turn: Number of that turn.
        pieces: Its messages with their tokens, by index.
    """

    task: Task
    turn: int
    pieces: dict[int, tuple[Message, list[int]]]

    @classmethod
    def of(cls, task: Task, turn: int) -> _Cut:
        messages = task.conversation.messages
        pieces = {
            index: (messages[index], task.tokenize(messages[index].content))
            for index in task.conversation.turns[turn]
        }
        return cls(task=task, turn=turn, pieces=pieces)

    @property
    def size(self) -> int:
        return sum(len(tokens) for _, tokens in self.pieces.values())

    def texts(self, gone: int) -> dict[int, str]:
        """Return what is left of each message's text when so many tokens are gone."""
        left: dict[int, str] = {}
        for index, (message, tokens) in self.pieces.items():
            here = min(gone, len(tokens))
            gone -= here
            left[index] = (
                tail(message.content, tokens, here, self.task.detokenize)
                if here
                else message.content
            )
        return left

    def messages(self, gone: int) -> tuple[Message, ...]:
        """Return the window, so many tokens of the turn's text gone."""
        changed = {
            index: msgspec.structs.replace(self.pieces[index][0], content=text)
            for index, text in self.texts(gone).items()
        }
        kept = range(self.turn, len(self.task.conversation.turns))
        return self.task.conversation.keep(kept, changed)

    def render(self, gone: int) -> list[int] | None:
        try:
            return self.task.attempt(self.messages(gone))
        except InputError as error:
            # A template may refuse a message that has no text left.
            if error.code == "template-rejected":
                return None
            raise


def _fullest(cut: _Cut) -> tuple[_Cut, int, list[int]] | None:
    """Return the window with the fewest tokens gone, or ``None`` when no text of it fits."""
    size = cut.size
    frame = cut.render(size)
    if frame is None:
        return None
    gone, tokens = fewest(
        (0, len(frame) + size),
        (size, frame),
        room=cut.task.room,
        weights=range(size + 1),
        render=cut.render,
    )
    return (cut, gone, tokens) if any(cut.texts(gone).values()) else None
