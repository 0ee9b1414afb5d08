"""The sliding window: as full as can be, cut between characters."""

from __future__ import annotations

import pytest
from tests.unit.run.context.conversations import (
    Template,
    assistant,
    chat,
    fitted,
    size,
    text_of,
    tool,
    user,
)

from edgewise.core.request import ContextPolicy
from edgewise.errors import InputError

SLIDE = ContextPolicy.SLIDING_WINDOW


def test_the_oldest_kept_turn_loses_its_start_and_the_window_is_full() -> None:
    messages = chat(("OLDEST", "answer"), ("0123456789", "reply"), last="now", pinned="pinned")
    room = size(messages[:1] + messages[3:]) - 4
    result = fitted(messages, SLIDE, room)
    assert [m.content for m in result.messages] == ["pinned", "456789", "reply", "now"]
    assert len(result.tokens) == room
    left_out, cut = result.events
    assert left_out.code == "context-turns-left-out"
    assert left_out.context["turns_left_out"] == [[0, 0]]
    assert cut.code == "context-turn-cut"
    assert (cut.context["turn_cut"], cut.context["tokens_cut"]) == (1, 4)
    assert cut.context["turn_tokens"] == len("0123456789reply")


def test_a_cut_first_turn_is_one_event() -> None:
    messages = chat(("0123456789", "reply"), last="now")
    result = fitted(messages, SLIDE, size(messages) - 1)
    assert [event.code for event in result.events] == ["context-turn-cut"]
    assert result.events[0].context["turns_left_out"] == []


def test_a_cut_may_reach_the_answer_while_roles_stay() -> None:
    messages = chat(("question", "0123456789"), last="now")
    result = fitted(messages, SLIDE, size(messages) - len("question") - 3)
    assert [(m.role, m.content) for m in result.messages] == [
        ("user", ""),
        ("assistant", "3456789"),
        ("user", "now"),
    ]


def test_a_turn_of_which_no_text_fits_is_left_out() -> None:
    messages = chat(("question", "answer"), last="now")
    for room in range(size(messages[2:]), size(messages[2:]) + 7):
        result = fitted(messages, SLIDE, room)
        assert result.messages == messages[2:]
        assert [event.code for event in result.events] == ["context-turns-left-out"]


def test_a_template_that_refuses_empty_messages_gets_none() -> None:
    template = Template()

    def render(messages):
        if any(not m.content for m in messages):
            raise InputError("template-rejected", "a message is empty")
        return template(messages)

    messages = chat(("question", "0123456789"), last="now")
    result = fitted(messages, SLIDE, size(messages) - 9, render=render)
    assert result.messages == messages[2:]


def test_a_result_is_kept_with_its_call_when_the_turn_is_cut() -> None:
    messages = (
        user("look it up"),
        assistant("", "c1"),
        tool("0123456789", "c1"),
        assistant("done"),
        user("now"),
    )
    result = fitted(messages, SLIDE, size(messages) - len("look it up") - 5)
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert result.messages[1] == messages[1]
    assert result.messages[2].content == "56789"
    assert result.messages[2].tool_call_id == "c1"


@pytest.mark.parametrize(
    "text",
    ["é" * 20, "日本語" * 8, "🙂" * 10, "👩‍👩‍👧" * 6, "e\u0301" * 12, "👍🏽" * 8, "नमस्ते" * 6],
)
def test_no_character_is_ever_cut(text: str) -> None:
    unit = {"é": 1, "日": 1, "🙂": 1, "👩": 5, "e": 2, "👍": 2}.get(text[0])
    messages = chat((text, "ok"), last="now")
    whole = size(messages)
    for gone in range(1, len(text.encode())):
        result = fitted(messages, SLIDE, whole - gone)
        left = result.messages[0].content if len(result.messages) == 3 else ""
        assert text.endswith(left)
        assert "\ufffd" not in text_of(result)
        if unit is not None:
            assert len(left) % unit == 0
    # What a reader takes for one character has at most 25 bytes here.
    assert len(fitted(messages, SLIDE, whole - 1).tokens) >= whole - 25


def test_a_tokenizer_that_rewrites_text_is_cut_by_characters() -> None:
    messages = chat(("ABCDEFGHIJ" * 3, "ok"), last="now")
    result = fitted(
        messages,
        SLIDE,
        size(messages) - 6,
        detokenize=lambda tokens: bytes(tokens).decode("utf-8", "replace").lower(),
    )
    assert messages[0].content.endswith(result.messages[0].content)
    assert len(result.messages[0].content) == 24
