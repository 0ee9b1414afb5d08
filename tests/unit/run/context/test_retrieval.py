"""Retrieval: an old turn comes back when it is asked about, and no text is query syntax."""

from __future__ import annotations

import sqlite3
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
from edgewise.errors import UnsupportedError
from edgewise.run.context.retrieval import rank
from edgewise.run.context.turns import Conversation

RETRIEVE, TRUNCATE = ContextPolicy.RETRIEVAL, ContextPolicy.TRUNCATE_OLDEST_TURNS
TALK = [(f"tell me of topic {n}", f"topic {n} is a thing") for n in range(40)]
FACT = ("My locker's code is 4711-ZEBRA.", "I will remember that.")


def test_an_old_fact_comes_back_when_it_is_asked_about() -> None:
    messages = chat(*TALK[:3], FACT, *TALK[3:], last="What was the code of my locker?")
    result = fitted(messages, RETRIEVE, 500)
    assert "4711-ZEBRA" in text_of(result)
    assert "4711-ZEBRA" not in text_of(fitted(messages, TRUNCATE, 500))
    left_out, back = result.events
    assert left_out.code == "context-turns-left-out"
    assert back.code == "context-turns-retrieved"
    assert [3, 3] in back.context["turns_retrieved"]
    assert all(not first <= 3 <= last for first, last in left_out.context["turns_left_out"])


def test_what_comes_back_stands_in_its_own_order() -> None:
    messages = chat(
        ("the zebra sleeps", "yes"),
        *TALK[:10],
        ("the zebra zebra zebra eats", "yes"),
        *TALK[10:],
        last="zebra?",
    )
    contents = [m.content for m in fitted(messages, RETRIEVE, 400).messages]
    assert contents.index("the zebra sleeps") < contents.index("the zebra zebra zebra eats")
    positions = [[m.content for m in messages].index(text) for text in contents if "topic" in text]
    assert positions == sorted(positions)


def test_at_most_half_the_room_is_for_old_turns() -> None:
    old = [(f"zebra {n} " + "x" * 40, "ok") for n in range(50)]
    messages = chat(*old, *TALK, last="zebra?")
    result = fitted(messages, RETRIEVE, 1000)
    back = [m for m in result.messages[:-1] if "zebra" in m.content]
    assert back
    assert sum(len(m.content) + 3 for m in back) <= 500
    assert result.messages[-2] == messages[-2]


def test_without_shared_words_it_is_truncation() -> None:
    messages = chat(*TALK, last="xylophone")
    result = fitted(messages, RETRIEVE, 600)
    assert result.messages == fitted(messages, TRUNCATE, 600).messages
    assert [event.code for event in result.events] == ["context-turns-left-out"]


def test_a_turn_that_is_too_large_makes_place_for_the_next_best() -> None:
    messages = chat(
        ("zebra facts", "short"), ("zebra " * 200, "long"), *TALK, last="tell me of a zebra"
    )
    result = fitted(messages, RETRIEVE, 500)
    assert "zebra facts" in text_of(result)


def test_a_tool_result_comes_back_with_its_call() -> None:
    messages = (
        user("please look"),
        assistant("", "c1"),
        tool("the zebra weighs 350 kg", "c1"),
        assistant("done"),
        *chat(*TALK, last="what did the zebra weigh?"),
    )
    result = fitted(messages, RETRIEVE, 400)
    assert result.messages[:4] == messages[:4]


def test_among_equals_the_newer_turn_comes_first() -> None:
    messages = chat(*[("a zebra", "yes")] * 5, *TALK, last="zebra")
    assert rank(Conversation(messages), "zebra") == [4, 3, 2, 1, 0]


def test_rare_words_count_more() -> None:
    messages = chat(("the zebra", "ok"), *TALK, last="-")
    assert rank(Conversation(messages), "tell me of the topic zebra")[0] == 0


@pytest.mark.parametrize(
    ("fact", "question"),
    [
        ("私の犬の名前はポチです", "犬の名前は何ですか"),
        ("我的密码是老虎", "密码是什么"),
        ("내 고양이 이름은 나비야", "고양이 이름은?"),
        ("แมวของฉันชื่อมะลิ", "แมวชื่ออะไร"),
        ("मेरी बिल्ली का नाम मीना है", "बिल्ली का नाम?"),
        ("Mein Fahrradschloß ist GRÜN", "fahrradschloss"),
        ("le cafe\u0301 est ferm\u00e9", "CAF\u00c9"),
    ],
)
def test_words_are_found_in_many_scripts(fact: str, question: str) -> None:
    messages = chat(*TALK[:5], (fact, "ok"), *TALK[5:], last="-")
    assert rank(Conversation(messages), question)[0] == 5


HOSTILE = [
    '" OR turns MATCH "',
    "words : zebra",
    "NEAR(zebra topic, 5)",
    "zebra* AND NOT topic",
    '"',
    "'; DROP TABLE turns; --",
    "^zebra + -topic",
    "{words} : (",
    "\x00zebra\x00",
    "AND OR NOT NEAR",
    "",
    "?!",
]


@pytest.mark.parametrize("question", HOSTILE)
def test_no_question_is_query_syntax(question: str) -> None:
    messages = chat(("a zebra", "yes"), *TALK, last=question or "-")
    found = rank(Conversation(messages), question)
    assert (0 in found) == ("zebra" in question)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=6), st.text(max_size=200))
def test_any_text_can_be_searched(texts: list[str], question: str) -> None:
    conversation = Conversation(chat(*[(text, "ok") for text in texts], last="-"))
    found = rank(conversation, question)
    assert found == rank(conversation, question)
    assert len(set(found)) == len(found)
    assert set(found) <= set(range(len(texts)))


def test_a_question_of_very_many_words_is_searched() -> None:
    question = " ".join(f"word{n}" for n in range(50_000))
    messages = chat(("word7 is here", "ok"), *TALK, last=question)
    assert rank(Conversation(messages), question) == [0]


def test_without_full_text_search_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lacking(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if "fts5" in sql:
                raise sqlite3.OperationalError("no such module: fts5")
            return super().execute(sql, *arguments)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda name: connect(name, factory=Lacking))
    messages = chat(*TALK, last="zebra")
    with pytest.raises(UnsupportedError) as caught:
        fitted(messages, RETRIEVE, 500)
    assert caught.value.code == "retrieval-unavailable"
    assert "fts5" in caught.value.message
    assert fitted(messages, RETRIEVE, size(messages)).events == ()


def test_a_python_without_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    with pytest.raises(UnsupportedError) as caught:
        fitted(chat(*TALK, last="zebra"), RETRIEVE, 500)
    assert caught.value.code == "retrieval-unavailable"


def test_estimates_that_are_too_low_are_corrected() -> None:
    template = Template()

    def render(messages):  # each word of three letters costs much more than its letters
        return template(messages) + [1] * sum(30 * m.content.count("zeb") for m in messages)

    messages = chat(*[("zeb", "ok")] * 30, *TALK, last="zeb")
    result = fitted(messages, RETRIEVE, 600, render=render)
    assert result.events
