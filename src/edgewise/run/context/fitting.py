"""A conversation that does not fit, made to fit by the policy that the request names.

Invariants: a result's prompt was rendered from exactly its messages and has at most ``room``
tokens; system messages and the last turn are never changed, but for the summary in front of it;
what fits is left alone; whatever is done is an event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from edgewise.core.request import ContextPolicy, Message
from edgewise.run.context.retrieval import retrieve
from edgewise.run.context.sliding import slide
from edgewise.run.context.summary import summarise_oldest
from edgewise.run.context.task import Fitted, Task, attempt, too_long
from edgewise.run.context.turns import Conversation

__all__ = ["fit"]


def fit(
    messages: Sequence[Message],
    *,
    policy: ContextPolicy,
    room: int,
    render: Callable[[Sequence[Message]], list[int]],
    tokenize: Callable[[str], list[int]],
    detokenize: Callable[[list[int]], str],
    summarise: Callable[[Sequence[Message], int], str] | None = None,
    count: Callable[[str], int] | None = None,
) -> Fitted:
    """Return a conversation that has at most ``room`` prompt tokens, and what was left out.

    Args:
        messages: The conversation, oldest message first.
        policy: What to do when it does not fit.
        room: Most prompt tokens: the context without what is reserved for the answer.
        render: From messages to the tokens of the prompt, template and all. It may be called
            with fewer messages, and must give the same tokens for the same messages.
        tokenize: From a piece of content to tokens, none added and none of them control tokens.
        detokenize: From tokens to text, U+FFFD for bytes that are no whole character.
        summarise: From turns to a summary of at most so many tokens, by the same model on this
            device. The same turns must give the same summary.
        count: How many tokens a piece of content has, where that is quicker than ``tokenize``.

    Raises:
        InputError: not even the system messages and the last turn fit (``prompt-too-long``), or
            ``render`` refuses the messages.
        UnsupportedError: the policy cannot be applied here (``context-policy-unsupported``,
            ``retrieval-unavailable``).
        AdapterError: the summary came out empty (``summary-empty``).
        EdgewiseError: whatever else ``render`` and ``summarise`` raise.
    """
    conversation = Conversation(messages)
    only = policy is ContextPolicy.REJECT or len(conversation.turns) < 2
    whole = render(conversation.messages) if only else attempt(render, conversation.messages, room)
    if whole is not None and len(whole) <= room:
        return Fitted(messages=conversation.messages, tokens=whole, events=())
    size = None if whole is None else len(whole)
    if only:
        raise too_long(messages, size, room, policy)
    least = render(conversation.newest(len(conversation.turns) - 1))
    if len(least) > room:
        raise too_long(messages, len(least), room, policy)
    task = Task(
        conversation=conversation,
        policy=policy,
        room=room,
        render=render,
        tokenize=tokenize,
        count=count or (lambda text: len(tokenize(text))),
        detokenize=detokenize,
        summarise=summarise,
        whole=size,
        least=least,
    )
    return _POLICIES[policy](task)


def _truncate(task: Task) -> Fitted:
    left_out, tokens = task.newest_turns(task.room)
    event = task.left_out(tokens, range(left_out, len(task.conversation.turns)))
    messages = task.conversation.newest(left_out)
    return Fitted(messages=messages, tokens=tokens, events=(event,))


_POLICIES: Final[dict[ContextPolicy, Callable[[Task], Fitted]]] = {
    ContextPolicy.TRUNCATE_OLDEST_TURNS: _truncate,
    ContextPolicy.SLIDING_WINDOW: slide,
    ContextPolicy.SUMMARISE: summarise_oldest,
    ContextPolicy.RETRIEVAL: retrieve,
}
