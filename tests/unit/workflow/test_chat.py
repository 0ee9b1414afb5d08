"""A conversation's history: turns, tool calls with their results, and requests beside it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.serve.fakes import completed

from edgewise.core.outcome import Outcome
from edgewise.core.request import ContextPolicy, Message, Request
from edgewise.core.tools import Tool, ToolCall
from edgewise.errors import InputError
from edgewise.workflow.chat import Chat

CALLS = (
    ToolCall(id="call_1", name="weather", arguments='{"town":"Ems"}'),
    ToolCall(id="call_2", name="weather", arguments='{"town":"Bonn"}'),
)
WEATHER = Tool(name="weather", parameters='{"type":"object"}')


class Scripted:
    """A session that answers as it was told to, and notes what it was asked."""

    def __init__(self, *answers: Outcome) -> None:
        self.answers = list(answers)
        self.asked: list[Request] = []

    def ask(self, request: Request, *, on_text: Any = None) -> Outcome:
        self.asked.append(request)
        return self.answers.pop(0)


def chat(*answers: Outcome) -> tuple[Chat, Scripted]:
    session = Scripted(*answers)
    return Chat(session, system="Be brief."), session  # type: ignore[arg-type]


def test_calls_and_their_results_join_the_history() -> None:
    talk, session = chat(completed("", 4, tool_calls=CALLS), completed("Take one to Ems.", 4))
    talk.ask("Do I need an umbrella?", tools=[WEATHER])
    assert session.asked[0].tools == (WEATHER,)
    outcome = talk.give({"call_2": "sun", "call_1": "rain"}, tools=(WEATHER,))
    assert outcome.text == "Take one to Ems."
    assert [m.role for m in session.asked[1].messages] == [
        *("system", "user", "assistant", "tool", "tool")
    ]
    results = session.asked[1].messages[-2:]
    assert [(m.tool_call_id, m.content) for m in results] == [("call_1", "rain"), ("call_2", "sun")]
    assert [m.role for m in talk.messages][-1] == "assistant"


@pytest.mark.parametrize("results", [{}, {"call_1": "rain"}, {"call_1": "r", "call_3": "s"}])
def test_results_for_other_calls_are_refused(results: dict[str, str]) -> None:
    talk, session = chat(completed("", 4, tool_calls=CALLS))
    talk.ask("Do I need an umbrella?", tools=(WEATHER,))
    before = talk.messages
    with pytest.raises(InputError) as caught:
        talk.give(results)
    assert caught.value.code == "tool-results-mismatched"
    assert caught.value.context["calls"] == ["call_1", "call_2"]
    assert talk.messages == before
    assert len(session.asked) == 1


def test_results_without_calls_are_refused() -> None:
    talk = Chat(Scripted())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tool-results-mismatched"):
        talk.give({"call_1": "rain"})


def test_a_request_of_ones_own_leaves_the_history_alone() -> None:
    talk, session = chat(completed("Yes.", 1))
    own = Request(messages=(Message(role="user", content="Is it raining?"),), max_tokens=3)
    talk.request(own)
    assert session.asked == [own]
    assert [m.role for m in talk.messages] == ["system"]


def test_lists_and_names_are_taken_where_they_are_written() -> None:
    talk, session = chat(*[completed("a", 1)] * 3)
    talk.ask("Hi", stop="\n", context_policy="retrieval")
    talk.ask("Hi", stop=["a", "b"])
    assert session.asked[0].stop == ("\n",)
    assert session.asked[0].context_policy is ContextPolicy.RETRIEVAL
    assert session.asked[1].stop == ("a", "b")


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ({"temperature": 0.5}, "sampling=edgewise.Sampling(temperature=…)"),
        ({"top_q": 1}, "max_tokens"),
        ({"messages": ()}, "max_tokens"),
    ],
)
def test_an_option_that_there_is_not_says_what_to_write(option: dict[str, Any], hint: str) -> None:
    talk, session = chat()
    with pytest.raises(InputError) as caught:
        talk.ask("Hi", **option)
    assert caught.value.code == "request-invalid"
    assert hint in str(caught.value.hint)
    assert not session.asked
