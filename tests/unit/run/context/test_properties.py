"""What holds for every conversation, every policy and every room."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.run.context.conversations import (
    POLICIES,
    Template,
    assistant,
    echo,
    fitted,
    size,
    system,
    tool,
    user,
)

from edgewise.core.request import ContextPolicy, Message
from edgewise.errors import InputError
from edgewise.run.context.turns import Conversation

TEXTS = st.text(
    alphabet=st.sampled_from("abc XYZ\n\"'*é日🙂👩\u200d\u0301\ufe0f👍🏽\u0000"), max_size=40
)
CALLS = st.sampled_from(["c1", "c2", "c3"])
MESSAGES = st.one_of(
    st.builds(user, TEXTS),
    st.builds(user, TEXTS),
    st.builds(assistant, TEXTS),
    st.builds(assistant, TEXTS, CALLS),
    st.builds(tool, TEXTS, st.one_of(CALLS, st.none())),
    st.builds(system, TEXTS),
)
CONVERSATIONS = st.builds(
    lambda messages, last: (*messages, user(f"{last}?")),
    st.lists(MESSAGES, max_size=25),
    TEXTS,
)
SHARES = st.floats(0.05, 1.1)


def least(messages: Sequence[Message]) -> int:
    conversation = Conversation(messages)
    return size(conversation.newest(max(0, len(conversation.turns) - 1)))


def orphans(messages: Sequence[Message]) -> int:
    """Return how many results answer no call that stands before them."""
    called: set[str | None] = set()
    count = 0
    for message in messages:
        called |= {call.id for call in message.tool_calls}
        if message.tool_calls:
            called.add(None)
        count += message.role == "tool" and message.tool_call_id not in called
    return count


def is_subsequence(part: Sequence[Message], whole: Sequence[Message]) -> bool:
    rest = iter(whole)
    return all(message in rest for message in part)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=200, deadline=None)
@given(messages=CONVERSATIONS, share=SHARES)
def test_it_fits_or_is_refused_and_nothing_pinned_is_lost(
    policy: ContextPolicy, messages: tuple[Message, ...], share: float
) -> None:
    room = int(size(messages) * share)
    if least(messages) > room:
        with pytest.raises(InputError) as caught:
            fitted(messages, policy, room, summarise=echo)
        assert caught.value.code == "prompt-too-long"
        return
    result = fitted(messages, policy, room, summarise=echo)
    assert bool(result.events) == (result.messages != messages) == (size(messages) > room)
    pinned = [m for m in messages if m.role == "system"]
    assert [m for m in result.messages if m.role == "system"] == pinned
    assert result.messages[-1].content.endswith(messages[-1].content)
    assert orphans(result.messages) <= orphans(messages)
    for event in result.events:
        assert event.context["room_tokens"] == room
        assert event.context["prompt_tokens"] == len(result.tokens)
        assert event.context["prompt_tokens_before"] == size(messages)
        assert msgspec.json.decode(msgspec.json.encode(event.context)) == event.context
    assert fitted(messages, policy, room, summarise=echo) == result


@settings(max_examples=300, deadline=None)
@given(messages=CONVERSATIONS, share=SHARES)
def test_truncation_leaves_out_the_fewest(messages: tuple[Message, ...], share: float) -> None:
    room = max(int(size(messages) * share), least(messages))
    result = fitted(messages, ContextPolicy.TRUNCATE_OLDEST_TURNS, room)
    conversation = Conversation(messages)
    fitting = [n for n in range(len(conversation.turns)) if size(conversation.newest(n)) <= room]
    assert result.messages == conversation.newest(fitting[0])


@settings(max_examples=300, deadline=None)
@given(messages=CONVERSATIONS, share=SHARES)
def test_the_window_holds_the_newest_text_and_is_full(
    messages: tuple[Message, ...], share: float
) -> None:
    room = max(int(size(messages) * share), least(messages))
    result = fitted(messages, ContextPolicy.SLIDING_WINDOW, room)
    truncated = fitted(messages, ContextPolicy.TRUNCATE_OLDEST_TURNS, room)
    assert len(result.tokens) >= len(truncated.tokens)
    assert result.messages[-1] == messages[-1]
    cut = next((e for e in result.events if e.code == "context-turn-cut"), None)
    if cut is None:
        assert result.messages == truncated.messages
        return
    kept = Conversation(messages).newest(cut.context["turn_cut"])
    assert [(m.role, m.tool_calls) for m in kept] == [
        (m.role, m.tool_calls) for m in result.messages
    ]
    assert all(k.content.endswith(r.content) for k, r in zip(kept, result.messages, strict=True))
    assert size(kept) > room
    # Any one character more, of the message that is cut, would be too much.
    at = max(i for i, m in enumerate(result.messages) if m.content != kept[i].content)
    lost = kept[at].content.removesuffix(result.messages[at].content)
    joined = _joined_end(lost, result.messages[at].content)
    assert len(result.tokens) + len(joined.encode()) > room


def _joined_end(lost: str, kept: str) -> str:
    """Return the shortest end of a text that may be put back without cutting a character."""
    marks, joiner = "\u0301\ufe0f\u200d🏽", "\u200d"
    for length in range(1, len(lost) + 1):
        at = len(lost) - length
        if at == 0 or (lost[at] not in marks and lost[at - 1] != joiner):
            return lost[at:]
    return lost


@settings(max_examples=200, deadline=None)
@given(messages=CONVERSATIONS, share=SHARES)
def test_retrieval_keeps_whole_turns_in_their_order(
    messages: tuple[Message, ...], share: float
) -> None:
    room = max(int(size(messages) * share), least(messages))
    result = fitted(messages, ContextPolicy.RETRIEVAL, room)
    assert is_subsequence(result.messages, messages)
    conversation = Conversation(messages)
    left_out = {
        turn
        for event in result.events
        for first, last in event.context["turns_left_out"]
        for turn in range(first, last + 1)
    }
    kept = set(range(len(conversation.turns))) - left_out
    assert result.messages == conversation.keep(kept)


@settings(max_examples=200, deadline=None)
@given(messages=CONVERSATIONS, share=SHARES, summary=TEXTS.filter(str.strip))
def test_a_summary_changes_one_message_and_no_other(
    messages: tuple[Message, ...], share: float, summary: str
) -> None:
    room = max(int(size(messages) * share), least(messages))
    result = fitted(
        messages, ContextPolicy.SUMMARISE, room, summarise=lambda _turns, _most: summary
    )
    changed = [m for m in result.messages if m not in messages]
    assert len(changed) <= 1
    for message in changed:
        assert message.role == "user"
        assert message.content.startswith("[Summary of the earlier conversation")
    if any(event.code == "context-turns-summarised" for event in result.events):
        assert len(changed) == 1


@settings(max_examples=200, deadline=None)
@given(
    turns=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=15),
    share=SHARES,
    policy=st.sampled_from(POLICIES),
)
def test_a_strict_template_takes_every_result(
    turns: list[tuple[str, str]], share: float, policy: ContextPolicy
) -> None:
    messages: list[Message] = [system("be brief")]
    for question, answer in turns:
        messages += [user(question), assistant(answer)]
    messages.append(user("last"))
    room = max(int(size(messages) * share), least(messages))
    fitted(messages, policy, room, render=Template(strict=True), summarise=echo)
