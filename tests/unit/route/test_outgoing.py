"""What cannot be replaced is refused, as it is sent and not as it was written."""

from __future__ import annotations

import json

import pytest

from edgewise.core.request import Message, Request
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolCall
from edgewise.errors import InputError, UnsupportedError
from edgewise.route.destinations import Basis, Destination
from edgewise.route.minimise import default_detectors
from edgewise.route.outgoing import Outgoing, prepare, unreplaced
from edgewise.route.policy import CloudUse, MinimiseRule, Policy, TaskRule

DETECTORS = default_detectors(contacts=["Anna M\u00fcller"])
POLICY = Policy(
    name="p",
    tasks=(TaskRule(name="chat", cloud=CloudUse.WHEN_NEEDED, destinations=("acme",)),),
    destinations=(
        Destination(
            name="acme", url="https://a.example/v1", model="m", purpose="x", basis=Basis.CONTRACT
        ),
    ),
    minimise=(MinimiseRule(fields=("messages", "tools", "structure", "stop")),),
    require_signature=False,
)
HELLO = Message(role="user", content="hello")
VALUES = (
    "Anna",
    "M\u00fcller",
    "4111111111111111",
    "DE89370400440532013000",
    "93.184.216.34",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "AKIAIOSFODNN7EXAMPLE",
    "anna@example.org",
)


def prepared(**asked: object) -> Outgoing:
    request = Request(**{"data_class": "personal", "messages": (HELLO,), **asked})  # type: ignore[arg-type]
    return prepare(POLICY, request, "acme", DETECTORS)


def refused(**asked: object) -> str:
    with pytest.raises(UnsupportedError, match="cloud-request-unsupported") as caught:
        prepared(**asked)
    return str(caught.value)


def schema(text: str, *, ascii_only: bool = True) -> str:
    return json.dumps({"type": "object", "description": text}, ensure_ascii=ascii_only)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("before", ["", "a\n", "a\t", 'a"', "a\\n"])
def test_no_identifier_leaves_in_tools_or_a_structure(value: str, before: str) -> None:
    text = f"{before}{value}"
    kind = StructureKind.JSON_SCHEMA
    assert "tools holds" in refused(tools=(Tool(name="t", description=text),))
    assert "tools holds" in refused(tools=(Tool(name="t", parameters=schema(text)),))
    assert "structure holds" in refused(structure=Structure(kind=kind, source=schema(text)))


@pytest.mark.parametrize("value", VALUES)
def test_no_identifier_leaves_in_escapes_or_in_a_key(value: str) -> None:
    escaped = "".join(f"\\u{ord(character):04x}" for character in value)
    parameters = f'{{"type": "object", "properties": {{"{escaped}": {{"type": "string"}}}}}}'
    refused(tools=(Tool(name="t", parameters=parameters),))
    refused(structure=Structure(kind=StructureKind.JSON_SCHEMA, source=parameters))


def test_no_number_leaves_however_it_is_written() -> None:
    for number in ("4111111111111111", "4.111111111111111e15", "4111111111111111.0"):
        refused(tools=(Tool(name="t", parameters=f'{{"const": {number}}}'),))


def test_no_identifier_leaves_in_a_name() -> None:
    called = Message(
        role="assistant",
        content="",
        tool_calls=(ToolCall(id="1", name="ask_anna", arguments="{}"),),
    )
    answer = Message(role="tool", content="yes", tool_call_id="1")
    assert "the name of a call holds" in refused(messages=(HELLO, called, answer))
    assert "tools holds" in refused(tools=(Tool(name="call_4111111111111111"),))
    assert "tools holds" in refused(tools=(Tool(name="mail.anna"),))


@pytest.mark.parametrize(
    "name", ["", "anna@example.org 4111111111111111", "a\r\nb", "a\n", "\u00e4"]
)
def test_a_call_is_named_as_a_tool_is(name: str) -> None:
    with pytest.raises(InputError, match="tool-invalid"):
        ToolCall(id="1", name=name, arguments="{}")


def test_a_stop_in_two_parts_is_read_as_one() -> None:
    assert "stop holds" in refused(stop=("a\n4111 1111", "1111 1111"))


def test_what_holds_none_leaves_as_it_was() -> None:
    tool = Tool(
        name="look_up",
        description='Finds "things":\n\tone a line, 50% of them',
        parameters=json.dumps(
            {
                "type": "object",
                "properties": {
                    "max_tokens": {"type": "integer", "maximum": 4096},
                    "day": {"type": "string", "pattern": "^\\d{4}-\\d{2}-\\d{2}$"},
                    "how": {"enum": ["will", "mark", "new\nline"]},
                },
            }
        ),
    )
    done = prepared(tools=(tool,), stop=("\n\n",))
    assert done.payload.tools == (tool,)
    assert not done.minimised.replaced


def test_what_was_minimised_has_nothing_unreplaced() -> None:
    content = json.dumps({"to": "Anna", "card": 4111111111111111, "text": "x\nanna@example.org"})
    done = prepared(messages=(Message(role="user", content=content),), tools=(Tool(name="t"),))
    assert unreplaced(done.payload, DETECTORS) == {}
    later = prepared(stop=("Zoe\n",)).payload
    assert unreplaced(later, default_detectors(contacts=["Zoe"])) == {"contact": 1}


def test_an_answer_in_json_is_restored_as_json() -> None:
    text = 'Say that "x@y"@example.org wrote'
    done = prepared(
        messages=(Message(role="user", content=text),), structure=Structure(kind=StructureKind.JSON)
    )
    restorer = done.restorer()
    answer = restorer.feed('{"who": "[EMAIL_1]"}') + restorer.flush()
    assert json.loads(answer) == {"who": '"x@y"@example.org'}
