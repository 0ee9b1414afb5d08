"""Summaries: bounded, marked, safe for templates, and the same while a conversation grows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from tests.unit.run.context.conversations import (
    Template,
    assistant,
    chat,
    echo,
    fitted,
    size,
    system,
    text_of,
    tokenize,
    tool,
    user,
)

from edgewise.core.request import ContextPolicy, Message
from edgewise.errors import AdapterError, InputError, UnsupportedError
from edgewise.run.context import Summaries, summary_request
from edgewise.run.context.summary import summary_limit

SUMMARISE = ContextPolicy.SUMMARISE
ROOM = 800
TALK = [(f"question {n:02} " + "q" * 20, f"answer {n:02} " + "a" * 20) for n in range(60)]


class Spy:
    """Notes what it is asked."""

    def __init__(self, answer: str | None = None) -> None:
        self.answer = answer
        self.asked: list[tuple[tuple[Message, ...], int]] = []

    def __call__(self, turns: Sequence[Message], most_tokens: int) -> str:
        self.asked.append((tuple(turns), most_tokens))
        return echo(turns, most_tokens) if self.answer is None else self.answer


def test_the_oldest_turns_become_a_marked_summary() -> None:
    messages = chat(("I am called CANARY", "hello"), *TALK[:16], last="now", pinned="PINNED")
    result = fitted(messages, SUMMARISE, ROOM, summarise=echo)
    first, summarised = result.messages[:2]
    assert first == messages[0]
    assert summarised.role == "user"
    assert summarised.content.startswith("[Summary of the earlier conversation")
    assert "CANARY" in summarised.content
    original = next(m for m in messages[3:] if summarised.content.endswith(m.content))
    assert original.role == "user"
    assert result.messages[2:] == messages[messages.index(original) + 1 :]
    (event,) = result.events
    assert event.code == "context-turns-summarised"
    assert event.context["turns_left_out"] == [[0, (len(messages) - len(result.messages)) // 2 - 1]]
    assert event.context["prompt_tokens_before"] == size(messages)
    assert event.context["summary_tokens"] == len(tokenize("I CANARY"))
    assert event.context["summary_cut"] is False


def test_a_fact_survives_many_steps() -> None:
    messages = chat(("I am called CANARY", "hello"), *TALK, last="now")
    spy = Spy()
    result = fitted(messages, SUMMARISE, ROOM, summarise=spy)
    assert "CANARY" in text_of(result)
    assert result.events[0].context["summary_steps"] == len(spy.asked) > 3


def test_room_is_made_for_several_requests() -> None:
    messages = chat(*TALK[:16], last="now")
    result = fitted(messages, SUMMARISE, ROOM, summarise=echo)
    assert ROOM // 4 < len(result.tokens) <= ROOM * 3 // 4


def test_a_conversation_that_grows_keeps_its_summary() -> None:
    spy = Spy()
    remembered = Summaries(spy)
    cuts, before = [], 0
    for turns in range(10, 60):
        messages = chat(*TALK[:turns], last=TALK[turns][0], pinned="PINNED")
        result = fitted(messages, SUMMARISE, ROOM, summarise=remembered)
        if not result.events:
            continue
        made = len(spy.asked) - before
        before = len(spy.asked)
        assert made <= 2  # the chunk that was just filled, in at most two portions
        cuts.append(result.events[0].context["turns_left_out"][0][1])
    assert cuts == sorted(cuts)
    assert len(cuts) > 40
    assert len(set(cuts)) < len(cuts) / 3
    assert len(spy.asked) < len(cuts) / 2


def test_the_prompt_begins_the_same_until_the_room_is_full_again() -> None:
    prompts = [
        fitted(
            chat(*TALK[:turns], last=TALK[turns][0], pinned="PINNED"),
            SUMMARISE,
            ROOM,
            summarise=echo,
        )
        for turns in range(20, 50)
    ]
    same = sum(
        after.tokens[: len(before.tokens) - 1] == before.tokens[:-1]
        for before, after in itertools.pairwise(prompts)
    )
    assert same >= len(prompts) * 2 / 3


def test_what_is_summarised_at_once_fits_into_half_the_room() -> None:
    spy = Spy()
    huge = "WORD " * 400
    messages = chat((huge, "ok"), *TALK[:20], (huge, "ok"), *TALK[20:24], last="now")
    fitted(messages, SUMMARISE, ROOM, summarise=spy)
    for turns, most in spy.asked:
        assert most == summary_limit(ROOM)
        pieces = [m for m in turns if not m.content.startswith("[Summary")]
        assert size(pieces) <= ROOM // 2 + 10
    said = "".join(m.content for turns, _ in spy.asked for m in turns if "WORD" in m.content)
    assert said.count("WORD ") >= 800


def test_all_replaced_turns_are_summarised_in_their_order() -> None:
    spy = Spy("so it was")
    messages = chat(*TALK, last="now")
    result = fitted(messages, SUMMARISE, ROOM, summarise=spy)
    said = [m for turns, _ in spy.asked for m in turns if not m.content.startswith("[Summary")]
    replaced = result.events[0].context["turns_left_out"][0][1] + 1
    assert said == list(messages[: 2 * replaced])
    assert all(turns[0].content.startswith("[Summary") for turns, _ in spy.asked[1:])


def test_a_summary_that_is_too_long_loses_its_end_and_that_is_said() -> None:
    messages = chat(*TALK[:16], last="now")
    result = fitted(messages, SUMMARISE, ROOM, summarise=Spy("Überlang " * 200))
    (event,) = result.events
    assert event.context["summary_cut"] is True
    assert event.context["summary_tokens"] <= summary_limit(ROOM)
    assert "\ufffd" not in text_of(result)


def test_the_last_turn_may_be_the_one_behind_the_summary() -> None:
    messages = chat(*TALK[:16], last="x" * (ROOM - 200))
    result = fitted(messages, SUMMARISE, ROOM, summarise=echo)
    assert len(result.messages) == 1
    assert result.messages[0].content.endswith("x" * (ROOM - 200))
    assert result.messages[0].content.startswith("[Summary")


def test_without_room_for_a_summary_turns_are_left_out_and_that_is_said() -> None:
    spy = Spy()
    messages = chat(*TALK[:16], last="x" * (ROOM - 60))
    result = fitted(messages, SUMMARISE, ROOM, summarise=spy)
    (event,) = result.events
    assert event.code == "context-turns-left-out"
    assert event.context["summary"] == "there is no room for one"
    assert spy.asked == []
    assert result.messages == messages[-1:]


@pytest.mark.parametrize("answer", ["", "  \n "])
def test_an_empty_summary_is_an_error(answer: str) -> None:
    with pytest.raises(AdapterError) as caught:
        fitted(chat(*TALK, last="now"), SUMMARISE, ROOM, summarise=Spy(answer))
    assert caught.value.code == "summary-empty"


def test_a_summary_that_fails_is_an_error() -> None:
    def failing(_turns, _most):
        raise AdapterError("decode-failed", "the runtime failed")

    with pytest.raises(AdapterError) as caught:
        fitted(chat(*TALK, last="now"), SUMMARISE, ROOM, summarise=failing)
    assert caught.value.code == "decode-failed"


def test_without_a_model_to_summarise_it_is_refused_only_when_it_is_needed() -> None:
    messages = chat(*TALK, last="now")
    with pytest.raises(UnsupportedError) as caught:
        fitted(messages, SUMMARISE, ROOM)
    assert caught.value.code == "context-policy-unsupported"
    assert fitted(messages, SUMMARISE, size(messages)).events == ()


def test_a_summary_the_template_refuses_passes_through() -> None:
    template = Template()

    def render(messages):
        if any("<|end|>" in m.content for m in messages):
            raise InputError("content-spells-control-token", "no")
        return template(messages)

    with pytest.raises(InputError) as caught:
        fitted(chat(*TALK, last="now"), SUMMARISE, ROOM, render=render, summarise=Spy("<|end|>"))
    assert caught.value.code == "content-spells-control-token"


def test_system_messages_are_not_summarised() -> None:
    spy = Spy()
    messages = [*chat(*TALK, last="now", pinned="PINNED")]
    messages.insert(9, system("LATER"))
    result = fitted(messages, SUMMARISE, ROOM, summarise=spy)
    assert [m for m in result.messages if m.role == "system"] == [messages[0], messages[9]]
    assert all(m.role != "system" for turns, _ in spy.asked for m in turns)


def test_calls_and_results_are_summarised_together() -> None:
    spy = Spy()
    looked = (user("look"), assistant("", "c1"), tool("RESULT", "c1"), assistant("done"))
    fitted((*looked, *chat(*TALK, last="now")), SUMMARISE, ROOM, summarise=spy)
    assert spy.asked[0][0][:4] == looked


def test_an_empty_answer_and_a_template_with_dear_frames_still_fit() -> None:
    template = Template()

    def render(messages):  # long contents cost more than their pieces say
        return template(messages) + [1] * (sum(len(m.content) for m in messages) // 3)

    result = fitted(chat(*TALK, last="now"), SUMMARISE, ROOM, render=render, summarise=echo)
    assert result.events[0].code == "context-turns-summarised"


def test_the_request_for_a_summary_is_one_user_message() -> None:
    turns = (user("what is up?"), assistant("let me see", "c1"), tool("the sky", "c1"))
    (message,) = summary_request(turns, 100)
    assert message.role == "user"
    assert "at most 60 words" in message.content
    assert (
        "-----\nUser: what is up?\nAssistant: let me see\nAssistant calls look_up with {}\n"
        "Tool: the sky\n-----"
    ) in message.content


def test_an_earlier_summary_enters_the_next_without_its_marks() -> None:
    spy = Spy()
    fitted(chat(*TALK, last="now"), SUMMARISE, ROOM, summarise=spy)
    turns, most = spy.asked[1]
    (message,) = summary_request(turns, most)
    assert "-----\nWhat was said before, in short: small talk\n" in message.content
    assert "[Summary" not in message.content


def test_summaries_are_remembered_by_all_they_were_made_from() -> None:
    spy = Spy("text")
    remembered = Summaries(spy, limit=2)
    for _ in range(2):
        remembered([user("a")], 10)
    assert len(spy.asked) == 1
    remembered([user("a")], 11)
    remembered([assistant("a")], 10)
    assert len(spy.asked) == 3
    remembered([user("a")], 10)  # the oldest was forgotten
    assert len(spy.asked) == 4


def test_a_failure_is_not_remembered() -> None:
    answers = iter([AdapterError("decode-failed", "no"), "text"])

    def make(_turns, _most):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    remembered = Summaries(make)
    with pytest.raises(AdapterError):
        remembered([user("a")], 10)
    assert remembered([user("a")], 10) == "text"
