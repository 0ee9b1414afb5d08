"""Structures and tools, end to end on the real model."""

from __future__ import annotations

import json

import pytest

from edgewise.cli.answer import exit_code
from edgewise.core.outcome import Completed, FinishReason
from edgewise.core.request import Message, Request, Sampling
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolChoice
from edgewise.errors import ExitCode, InputError
from edgewise.run.session import Session

pytestmark = [pytest.mark.model, pytest.mark.slow]

PERSON = Structure(
    kind=StructureKind.JSON_SCHEMA,
    source=json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "age": {"type": "integer", "minimum": 0, "maximum": 120},
            },
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    ),
)
WEATHER = Tool(
    name="get_weather",
    parameters='{"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, '
    '"required": ["city"], "additionalProperties": false}',
)


def asked(text: str, **fields) -> Request:
    return Request(messages=(Message(role="user", content=text),), **fields)


def answer(session: Session, request: Request) -> Completed:
    outcome = session.ask(request)
    assert isinstance(outcome, Completed), outcome
    return outcome


def test_a_schema_holds_whatever_is_drawn(session: Session) -> None:
    for seed in range(6):
        hot = Sampling(temperature=2.5, seed=seed)
        request = asked("Maria is 37.", structure=PERSON, max_tokens=120, sampling=hot)
        found = answer(session, request)
        if found.finish is FinishReason.STOP:
            person = json.loads(found.text)
            assert set(person) == {"name", "age"}
            assert 0 <= person["age"] <= 120
            assert len(person["name"]) <= 20
            assert exit_code(found, request) is ExitCode.OK


def test_a_cut_answer_is_never_a_whole_one(session: Session) -> None:
    request = asked("Maria is 37.", structure=PERSON, max_tokens=3)
    found = answer(session, request)
    assert found.finish is FinishReason.LENGTH
    assert exit_code(found, request) is ExitCode.RESOURCE
    assert exit_code(found) is ExitCode.OK


@pytest.mark.parametrize(
    ("structure", "allowed"),
    [
        (Structure(kind=StructureKind.CHOICE, choices=("yes", "no")), {"yes", "no"}),
        (Structure(kind=StructureKind.REGEX, source="[ab]{2}"), {"aa", "ab", "ba", "bb"}),
        (Structure(kind=StructureKind.LARK, source='start: "left" | "right"'), {"left", "right"}),
        (Structure(kind=StructureKind.GBNF, source='root ::= "one" | "two"'), {"one", "two"}),
    ],
)
def test_other_kinds(session: Session, structure: Structure, allowed: set[str]) -> None:
    found = answer(session, asked("Choose.", structure=structure, max_tokens=12))
    assert found.text in allowed
    assert found.finish is FinishReason.STOP


def test_a_structure_that_is_none_leaves_the_session_usable(session: Session) -> None:
    wrong = Structure(kind=StructureKind.JSON_SCHEMA, source='{"type": "objekt"}')
    with pytest.raises(InputError, match="structure-invalid"):
        session.ask(asked("x", structure=wrong))
    pid = session.worker_pid
    assert answer(session, asked("Hello", max_tokens=2)).text
    assert session.worker_pid == pid


def test_guesses_and_structures_go_together(session: Session) -> None:
    text = "Repeat as JSON: Maria, 37. Maria, 37."
    session.ask(asked(text, max_tokens=1))
    with_guesses = answer(session, asked(text, structure=PERSON, max_tokens=60))
    without = answer(session, asked(text, structure=PERSON, max_tokens=60, speculate=False))
    assert with_guesses.text == without.text


def test_a_required_call_is_made_and_is_valid(session: Session) -> None:
    found = answer(
        session,
        asked(
            "What is the weather in Paris?",
            tools=(WEATHER,),
            tool_choice=ToolChoice(mode="required", name="get_weather"),
            max_tokens=200,
        ),
    )
    assert "tools-by-prompt" in {event.code for event in found.events}
    for call in found.tool_calls:
        assert call.name == "get_weather"
        assert set(json.loads(call.arguments)) == {"city"}
    if found.finish is FinishReason.TOOL_CALLS:
        assert found.tool_calls
    else:
        assert found.finish is FinishReason.LENGTH
        assert not found.tool_calls


@pytest.mark.parametrize("parallel", [None, False])
def test_a_required_call_ends_the_answer(session: Session, parallel: bool | None) -> None:
    time = Tool(name="get_time", parameters=WEATHER.parameters)
    for seed in range(4):
        found = answer(
            session,
            asked(
                "What is the weather in Paris, in Rome and in Oslo?",
                tools=(WEATHER, time),
                tool_choice=ToolChoice(mode="required", parallel=parallel),
                sampling=Sampling(temperature=1.0, seed=seed),
                max_tokens=200,
            ),
        )
        assert found.finish is FinishReason.TOOL_CALLS, found.text
        assert len(found.tool_calls) == 1
