"""The oldest turns become one summary, made on this device by the same model.

The summary stands, marked, in front of the first user message that is kept: every template takes
that, the roles go on to alternate, and what a user once said never gains a system message's rank.

Turns are replaced in chunks, down to half the room, so that the same summary serves many
requests. Where the chunks end follows from replaying the conversation turn by turn, and so from
what was said before alone: a conversation that grows keeps its summary, and its prompt the same
beginning, until it is full again. Each chunk is summarised together with the summary before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from edgewise.core.outcome import Event
from edgewise.core.request import Message
from edgewise.errors import AdapterError, UnsupportedError
from edgewise.run.context.cutting import halves, head
from edgewise.run.context.summaries import marked
from edgewise.run.context.task import Fitted, Task, attempt, fewest

__all__ = ["summarise_oldest", "summary_limit"]

_LIMIT_MIN: Final = 16
_LIMIT_MAX: Final = 512
_LIMIT_SHARE: Final = 8
# What two texts side by side may take more than apart.
_SEAM_TOKENS: Final = 4


def summary_limit(room: int) -> int:
    """Return the most tokens of a summary: an eighth of the room, from 16 to 512."""
    return max(_LIMIT_MIN, min(_LIMIT_MAX, room // _LIMIT_SHARE))


def summarise_oldest(task: Task) -> Fitted:
    """Return the conversation with a summary in place of its oldest turns.

    Raises:
        UnsupportedError: there is nothing that could make a summary.
        AdapterError: the model made an empty summary.
        EdgewiseError: messages cannot be rendered, or the summary cannot be made.
    """
    if task.summarise is None:
        raise UnsupportedError(
            "context-policy-unsupported",
            "the conversation does not fit, and this runtime cannot make a summary of it",
            context={"policy": str(task.policy)},
            hint="use another context policy",
        )
    plan = _Plan(task)
    stages = plan.stages()
    first, framed = plan.first_kept(stages[-1] if stages else 1)
    limit = min(plan.limit, task.room - framed - _SEAM_TOKENS)
    if limit < _LIMIT_MIN:
        left_out, tokens = task.newest_turns(task.room)
        kept = range(left_out, len(task.conversation.turns))
        event = task.left_out(tokens, kept, summary="there is no room for one")
        messages = task.conversation.newest(left_out)
        return Fitted(messages=messages, tokens=tokens, events=(event,))
    if first not in stages:
        stages.append(first)
    maker = _Maker(task, plan.limit)
    return _fitted(task, first, maker, maker.summary(stages), limit)


def _fitted(task: Task, first: int, maker: _Maker, summary: str, limit: int) -> Fitted:
    pieces = task.tokenize(summary)
    limit = min(limit, len(pieces))
    while True:
        text = head(summary, pieces, limit, task.detokenize)
        messages = _with_summary(task, first, text)
        tokens = task.render(messages)
        # An empty one fits: that was measured.
        if len(tokens) <= task.room or not text:
            break
        limit = max(0, limit - (len(tokens) - task.room))
    kept = range(first, len(task.conversation.turns))
    event = Event(
        code="context-turns-summarised",
        message=f"a summary of {len(task.tokenize(text))} tokens takes the place of the first "
        f"{first} of {len(task.conversation.turns)} turns",
        context=task.facts(
            tokens,
            kept,
            summary_tokens=len(task.tokenize(text)),
            summary_tokens_max=maker.limit,
            summary_cut=maker.cut or text != summary,
            summary_steps=maker.steps,
        ),
    )
    return Fitted(messages=messages, tokens=tokens, events=(event,))


def _with_summary(task: Task, first: int, summary: str) -> tuple[Message, ...]:
    """Return the turns from one on, the summary in front of that one's user message."""
    conversation = task.conversation
    index = conversation.turns[first][0]
    message = conversation.messages[index]
    content = f"{marked(summary)}\n\n{message.content}"
    changed = {index: msgspec.structs.replace(message, content=content)}
    return conversation.keep(range(first, len(conversation.turns)), changed)


class _Plan:
    """Which turns are replaced, and in which chunks."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.limit = summary_limit(task.room)
        self._frame = len(task.tokenize(marked(""))) + _SEAM_TOKENS

    def stages(self) -> list[int]:
        """Return how many turns were replaced after each time that the room was full."""
        pinned = self._task.empty_and_frame[0]
        summary = self.limit + self._frame
        goal = self._task.room // 2 - pinned - summary
        costs: list[int] = []
        stages: list[int] = []
        first = held = 0
        for turn in range(len(self._task.conversation.turns)):
            # Asked when the user had spoken; what was answered counts from the next time on.
            opening, *answers = self._task.conversation.turn(turn)
            costs.append(self._task.cost((opening,)))
            held += costs[turn]
            if pinned + held + (summary if first else 0) > self._task.room:
                before = first
                while first < turn and held > goal:
                    held -= costs[first]
                    first += 1
                stages += [first] if first > before else []
            rest = self._task.cost(answers)
            costs[turn] += rest
            held += rest
        return stages

    def first_kept(self, planned: int) -> tuple[int, int]:
        """Return the first turn that is kept, and the tokens with an empty summary before it.

        It is the planned one where a full summary fits before it, else a later one: the plan is
        made from estimates.
        """
        room = self._task.room - self.limit - _SEAM_TOKENS
        at_plan = self._framed(planned)
        if planned == self._task.last or (at_plan is not None and len(at_plan) <= room):
            return planned, self._task.room if at_plan is None else len(at_plan)
        at_last = self._framed(self._task.last)
        if at_last is None or len(at_last) > room:
            return self._task.last, self._task.room if at_last is None else len(at_last)
        first, tokens = fewest(
            (planned, None if at_plan is None else len(at_plan)),
            (self._task.last, at_last),
            room=room,
            weights=self._task.characters,
            render=self._framed,
        )
        return first, len(tokens)

    def _framed(self, first: int) -> list[int] | None:
        return attempt(self._task.render, _with_summary(self._task, first, ""), self._task.room)


class _Maker:
    """Makes the summary, chunk by chunk.

    Attributes:
        limit: Most tokens of each.
        steps: How many were made.
        cut: Whether one was longer, and lost its end.
    """

    def __init__(self, task: Task, limit: int) -> None:
        self._task = task
        self.limit = limit
        self.steps = 0
        self.cut = False

    def summary(self, stages: Sequence[int]) -> str:
        """Return the summary of all turns before the last stage."""
        summary, done = "", 0
        for stage in stages:
            turns = range(done, stage)
            messages = [m for turn in turns for m in self._task.conversation.turn(turn)]
            for portion in self._portions(messages):
                summary = self._next(summary, portion)
            done = stage
        return summary

    def _next(self, before: str, portion: list[Message]) -> str:
        assert self._task.summarise is not None
        earlier = [Message(role="user", content=marked(before))] if before else []
        made = self._task.summarise((*earlier, *portion), self.limit).strip()
        self.steps += 1
        if not made:
            raise AdapterError(
                "summary-empty",
                "the model's summary of the oldest turns is empty",
                context={"messages": len(portion), "summary_tokens_max": self.limit},
                hint="use another context policy, or a larger model",
            )
        text = head(made, self._task.tokenize(made), self.limit, self._task.detokenize)
        self.cut |= text != made
        return text

    def _portions(self, messages: Sequence[Message]) -> Iterator[list[Message]]:
        """Yield messages in groups of at most half the room."""
        room = self._task.room // 2
        portion: list[Message] = []
        held = 0
        for message in messages:
            for piece in self._pieces(message, room):
                cost = self._task.cost((piece,))
                if portion and held + cost > room:
                    yield portion
                    portion, held = [], 0
                portion.append(piece)
                held += cost
        if portion:
            yield portion

    def _pieces(self, message: Message, room: int) -> Iterator[Message]:
        """Yield a message in pieces that fit into a group."""
        if self._task.cost((message,)) <= room:
            yield message
            return
        first, second = halves(message.content)
        if not second:
            yield message
            return
        yield from self._pieces(msgspec.structs.replace(message, content=first), room)
        rest = msgspec.structs.replace(message, content=second, tool_calls=())
        yield from self._pieces(rest, room)
