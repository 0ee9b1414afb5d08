"""A template and a tokenizer that can be counted by hand, and conversations for them.

A token is a byte. A prompt is a begin token, for each message three tokens around its content,
and one token that opens the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgewise.core.request import ContextPolicy, Message
from edgewise.core.tools import ToolCall
from edgewise.errors import InputError
from edgewise.run.context import Fitted, fit

BEGIN, OPEN, FRAME = 300, 301, 3
ROLES = {"system": 310, "user": 311, "assistant": 312, "tool": 313}
POLICIES = [policy for policy in ContextPolicy if policy is not ContextPolicy.REJECT]


def tokenize(text: str) -> list[int]:
    return list(text.encode())


def detokenize(tokens: list[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


class Template:
    """Renders, counts how often, and refuses roles that do not alternate when it is strict."""

    def __init__(self, *, strict: bool = False, most_characters: int | None = None) -> None:
        self.strict = strict
        self.most_characters = most_characters
        self.rendered: list[int] = []

    def __call__(self, messages: Sequence[Message]) -> list[int]:
        if self.strict:
            self._require_alternation(messages)
        characters = sum(len(m.content) for m in messages)
        if self.most_characters is not None and characters > self.most_characters:
            raise InputError("prompt-too-long", "far too long")
        tokens = [BEGIN]
        for message in messages:
            tokens += [ROLES[message.role], *tokenize(message.content), 320, 321]
            for call in message.tool_calls:
                tokens += [322, *tokenize(call.name + call.arguments)]
        tokens.append(OPEN)
        self.rendered.append(len(tokens))
        return tokens

    @staticmethod
    def _require_alternation(messages: Sequence[Message]) -> None:
        rest = list(messages)[1:] if messages and messages[0].role == "system" else messages
        for index, message in enumerate(rest):
            if message.role != ("user", "assistant")[index % 2]:
                raise InputError("template-rejected", "roles must alternate")


def system(text: str) -> Message:
    return Message(role="system", content=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str, *calls: str) -> Message:
    made = tuple(ToolCall(id=call, name="look_up", arguments="{}") for call in calls)
    return Message(role="assistant", content=text, tool_calls=made)


def tool(text: str, call: str | None) -> Message:
    return Message(role="tool", content=text, tool_call_id=call, name="look_up")


def chat(*turns: tuple[str, str], last: str, pinned: str = "") -> tuple[Message, ...]:
    """Return a conversation: pairs of question and answer, then the last question."""
    messages = [system(pinned)] if pinned else []
    for question, answer in turns:
        messages += [user(question), assistant(answer)]
    return (*messages, user(last))


def fitted(
    messages: Sequence[Message],
    policy: ContextPolicy,
    room: int,
    *,
    render: Callable[[Sequence[Message]], list[int]] | None = None,
    **more: Any,
) -> Fitted:
    """Return the fitted conversation; its prompt is what its messages render to, and fits."""
    template = render or Template()
    options = {"tokenize": tokenize, "detokenize": detokenize, **more}
    result = fit(messages, policy=policy, room=room, render=template, **options)
    assert len(result.tokens) <= room
    assert result.tokens == template(result.messages)
    return result


def size(messages: Sequence[Message]) -> int:
    return len(Template()(messages))


def text_of(result: Fitted) -> str:
    return "\n".join(message.content for message in result.messages)


def echo(turns: Sequence[Message], most_tokens: int) -> str:
    """A summary that is the same for the same turns and tells which they were."""
    words = [word for m in turns for word in m.content.split() if word.isupper()]
    return (" ".join(dict.fromkeys(words)) or "small talk")[:most_tokens]
