"""Calls are taken out of answers whole and valid, or not at all; nothing of the text is lost."""

from __future__ import annotations

import itertools
import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.run.tools.forms import FORMATS

from edgewise.core.outcome import Event
from edgewise.core.tools import Tool, ToolCall, ToolChoice
from edgewise.errors import InputError
from edgewise.run.tools import PROMPT_FORMAT, CallParser, ToolFormat

WEATHER = Tool(
    name="weather",
    parameters=json.dumps(
        {
            "type": "object",
            "properties": {
                "place": {"type": "string"},
                "days": {"type": "integer", "minimum": 1},
                "more": {},
            },
            "required": ["place"],
            "additionalProperties": False,
        }
    ),
)
TIMER = Tool(name="weather.timer")
TOOLS = (WEATHER, TIMER)
AUTO = ToolChoice()
TAGGED = FORMATS["tagged"]
ALL = {**FORMATS, "prompt": PROMPT_FORMAT}
OPEN, CLOSE = "<tool_call>\n", "\n</tool_call>"


def parse(
    pieces: list[str] | str,
    form: ToolFormat = TAGGED,
    *,
    cut: bool = False,
    tools: tuple[Tool, ...] = TOOLS,
    choice: ToolChoice = AUTO,
) -> tuple[str, tuple[ToolCall, ...], tuple[Event, ...]]:
    parser = CallParser(form, tools, choice)
    shown = [parser.push(piece) for piece in ([pieces] if isinstance(pieces, str) else pieces)]
    rest, calls, events = parser.finish(cut=cut)
    return "".join(shown) + rest, calls, events


def made(calls: tuple[ToolCall, ...]) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in calls]


def codes(events: tuple[Event, ...]) -> list[str]:
    return [event.code for event in events]


def call(arguments: str, name: str = "weather") -> str:
    return f'{OPEN}{{"name": "{name}", "arguments": {arguments}}}{CLOSE}'


@pytest.mark.parametrize("name", ALL)
def test_marks_split_at_every_place(name: str) -> None:
    form = ALL[name]
    wanted = [("weather", {"place": "a</b>{", "days": 2})]
    lead = "" if form.bare else "Sure. "
    text = lead + form.spell(wanted)
    for at in range(len(text) + 1):
        said, calls, events = parse([text[:at], text[at:]], form)
        assert (said.strip(), made(calls), events) == (lead.strip(), wanted, ())


def test_text_before_a_call_goes_out_at_once_and_may_hold_beginnings_of_marks() -> None:
    parser = CallParser(TAGGED, TOOLS, ToolChoice())
    assert parser.push("a < b, <tool") == "a < b, "
    assert parser.push("box> and <tool_call") == "<toolbox> and "
    assert parser.push(">") == ""
    assert parser.push('{"name": "weather", "arguments": {"place": "x"}}') == ""
    assert parser.finish(cut=False)[0] == ""


def test_several_calls_and_the_text_around_them() -> None:
    first, second = call('{"place": "a"}'), call("{}", "weather.timer")
    text = f"One. {first}\n{second} Done."
    said, calls, events = parse(text)
    assert made(calls) == [("weather", {"place": "a"}), ("weather.timer", {})]
    assert said.split() == ["One.", "Done."]
    assert events == ()


def test_where_one_call_at_a_time_was_asked_for_several_are_none() -> None:
    text = call('{"place": "a"}')
    for mode in ("auto", "required"):
        choice = ToolChoice(mode=mode, parallel=False)
        assert len(parse(text, choice=choice)[1]) == 1
        said, calls, events = parse(text * 2, choice=choice)
        assert (said, calls) == (text * 2, ())
        assert codes(events)[0] == "tool-call-invalid"
        assert "2" in str(events[0].context)
        assert len(parse(text * 2, choice=ToolChoice(mode=mode, parallel=True))[1]) == 2


def test_ids_are_unique_and_hold_nothing_of_the_call() -> None:
    ids = [c.id for _ in range(50) for c in parse(call('{"place": "a"}') * 2)[1]]
    assert len(set(ids)) == 100
    assert all(re.fullmatch("call_[0-9a-f]{24}", id_) for id_ in ids)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"place": "a\\"b}{\\\\"}',
        '{"place": "\\u00e9\\ud83d\\ude00\\n"}',
        '{"place": "</tool_call>", "more": {"a": [{"b": {}}], "c": "]]}}"}}',
        '{"place": "<tool_call>"}',
        ' {\n "place" :\t"x" }\n',
    ],
)
def test_arguments_that_look_like_something_else(arguments: str) -> None:
    said, calls, events = parse(list(call(arguments)))
    assert made(calls) == [("weather", json.loads(arguments))]
    assert (said, events) == ("", ())


@pytest.mark.parametrize("name", ALL)
def test_an_answer_that_was_cut_holds_no_call_wherever_it_was_cut(name: str) -> None:
    form = ALL[name]
    text = form.spell([("weather", {"place": "a"})])
    for at in range(1, len(text) + 1):
        said, calls, events = parse(text[:at], form, cut=True)
        assert said == text[:at]
        assert calls == ()
        assert codes(events) in ([], ["tool-call-truncated"])
    assert codes(parse(text, form, cut=True)[2]) == ["tool-call-truncated"]


def test_a_call_whose_closing_tag_the_model_left_out_is_whole() -> None:
    text = call('{"place": "a"}').removesuffix(CLOSE)
    assert made(parse(text)[1]) == [("weather", {"place": "a"})]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (call('{"place": "a"'), "does not end"),
        (call("{'place': 'a'}"), "malformed"),
        (call('{"place": NaN}'), "NaN"),
        (call('{"place": "a", "more": 1e999}'), "larger than a double"),
        (call('{"place": "a", "more": ' + "9" * 5000 + "}"), "malformed"),
        (call('{"place": "a", "place": "b"}'), "twice in one object"),
        (call('{"place": "\\ud800"}'), "half of a surrogate"),
        (call('{"place": "a\nb"}'), "malformed"),
        (call('["a"]'), "not an object"),
        (call('"{}"'), "not an object"),
        (call('{"place": 1}'), "'string'"),
        (call('{"place": "a", "days": 0}'), "minimum"),
        (call("{}"), "required"),
        (call('{"place": "a", "other": 1}'), "other"),
        (call("{}", "weather.tim"), "no tool called"),
        (call("{}", "weath"), "no tool called"),
        (call("{}", "Weather"), "no tool called"),
        (f"{OPEN}{CLOSE}", "no JSON"),
        (f"{OPEN}[]{CLOSE}", "empty"),
        (f"{OPEN}weather(place='a'){CLOSE}", "no JSON"),
        (f'{OPEN}{{"tool": "weather"}}{CLOSE}', "no 'name'"),
        (call('{"place": "a"}').replace(CLOSE, "</call>"), "does not follow"),
        (call('{"place": "a"}') + call("{}"), "required"),
        ("<tool_call>", "no JSON"),
    ],
)
def test_a_call_that_cannot_be_made_is_text_and_said(text: str, reason: str) -> None:
    text = "So: " + text
    said, calls, events = parse(text)
    assert said == text
    assert calls == ()
    assert codes(events) == ["tool-call-invalid"]
    assert reason in events[0].message.replace("is less than the minimum", "minimum")


@pytest.mark.parametrize("depth", [49, 10_000, 200_000])
def test_deep_arguments_are_invalid_and_nothing_worse(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    for form in ALL.values():
        text = form.spell([("weather", {"place": "a", "more": "DEEP"})]).replace('"DEEP"', deep)
        text = text.replace('\\"DEEP\\"', deep).replace("'DEEP'", deep).replace("DEEP", deep)
        _, calls, events = parse(text, form)
        assert calls == ()
        assert "deep" in events[0].message


def test_arguments_as_deep_as_allowed() -> None:
    deep = "[" * 45 + "]" * 45
    assert len(parse(call(f'{{"place": "a", "more": {deep}}}'))[1]) == 1


def test_deep_arguments_against_a_schema_that_refers_to_itself() -> None:
    tree = Tool(
        name="tree",
        parameters='{"type": "object", "properties": {"t": {"$ref": "#"}}, "$dynamicAnchor": "n"}',
    )
    value: dict[str, object] = {}
    for _ in range(44):
        value = {"t": value}
    _, calls, events = parse(call(json.dumps(value), "tree"), tools=(tree,))
    assert bool(calls) != bool(events)


def test_a_schema_that_points_elsewhere_is_never_fetched() -> None:
    away = Tool(name="away", parameters='{"$ref": "http://127.0.0.1:9/schema.json"}')
    _, calls, events = parse(call("{}", "away"), tools=(away,))
    assert calls == ()
    assert "refers to what is not in it" in events[0].message


@pytest.mark.parametrize("schema", ['{"type": "dict"}', '{"properties": 3}', '{"pattern": "("}'])
def test_a_schema_that_is_none_is_refused_before_the_answer(schema: str) -> None:
    with pytest.raises(InputError) as caught:
        CallParser(TAGGED, (Tool(name="f", parameters=schema),), ToolChoice())
    assert caught.value.code == "tool-invalid"


def test_with_the_choice_none_everything_is_text() -> None:
    text = call('{"place": "a"}')
    assert parse(text, choice=ToolChoice(mode="none")) == (text, (), ())
    assert parse(text, tools=()) == (text, (), ())


def test_another_tool_than_the_required_one_is_no_call() -> None:
    choice = ToolChoice(mode="required", name="weather")
    said, calls, events = parse(call("{}", "weather.timer"), choice=choice)
    assert calls == ()
    assert said
    assert codes(events) == ["tool-call-invalid", "tool-call-missing"]


def test_a_required_call_that_was_not_made_is_said() -> None:
    required = ToolChoice(mode="required")
    assert codes(parse("No.", choice=required)[2]) == ["tool-call-missing"]
    assert codes(parse("No", choice=required, cut=True)[2]) == []
    assert parse("No.")[2] == ()


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 42, "name": "x"}',
        '{"name": "Alice", "age": 3}',
        '{"name": {"first": "a"}, "parameters": {}}',
        "{{ jinja }}",
        "[1, 2]",
        '["name"]',
        "{",
        '{"name',
        "  ",
        "{}",
        'Text, then {"name": "weather", "parameters": {"place": "a"}}',
        "{'name': 1}",
    ],
)
def test_json_that_is_no_call_stays_text_where_calls_are_bare(text: str) -> None:
    for pieces in ([text], list(text)):
        assert parse(pieces, FORMATS["bare"]) == (text, (), ())


@pytest.mark.parametrize(
    "text",
    [
        '<|python_tag|>{"name": "weather", "parameters": {"place": "a"}}',
        '\n {"name": "weather", "parameters": {"place": "a"}} ',
        '{"type": "function", "name": "weather", "parameters": {"place": "a"}}',
        '{"name": "weather", "arguments": {"place": "a"}}',
        '[{"name": "weather", "parameters": {"place": "a"}}]',
    ],
)
def test_bare_calls_as_models_write_them(text: str) -> None:
    for pieces in ([text], list(text)):
        assert made(parse(pieces, FORMATS["bare"])[1]) == [("weather", {"place": "a"})]


def test_bare_calls_one_after_the_other() -> None:
    one = '{"name": "weather", "parameters": {"place": "a"}}'
    for between in ("; ", "\n", ", ", ""):
        said, calls, _ = parse(one + between + one, FORMATS["bare"])
        assert (said, len(calls)) == ("", 2)


@settings(deadline=None)
@given(
    text=st.text(max_size=40),
    bits=st.lists(
        st.sampled_from(
            [
                "<",
                "<tool_call>",
                "</tool_call>",
                '{"name": "weather", "arguments": ',
                "{}",
                '"',
                "\\",
                "{",
                "}",
                "[TOOL_CALLS]",
                "[",
                "]",
                " ",
                "weather",
                "[ARGS]",
            ]
        ),
        max_size=12,
    ),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    name=st.sampled_from(sorted(ALL)),
    cut=st.booleans(),
)
def test_without_calls_no_character_is_lost(
    text: str, bits: list[str], cuts: list[int], name: str, cut: bool
) -> None:
    whole = text[:20] + "".join(bits) + text[20:]
    places = sorted({0, len(whole), *(c % (len(whole) + 1) for c in cuts)})
    pieces = [whole[a:b] for a, b in itertools.pairwise(places)]
    said, calls, events = parse(pieces, ALL[name], cut=cut)
    if not calls:
        assert said == whole
    at_once = parse(whole, ALL[name], cut=cut)
    assert (said, made(calls)) == (at_once[0], made(at_once[1]))
    assert codes(events) == codes(at_once[2])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tagged", "bare"])
def test_ten_megabytes_in_small_pieces_take_linear_time(name: str) -> None:
    def seconds(pieces: int, piece: str) -> float:
        parser = CallParser(ALL[name], TOOLS, ToolChoice())
        started = time.perf_counter()
        size = sum(len(parser.push(piece)) for _ in range(pieces))
        size += len(parser.finish(cut=False)[0])
        assert size == pieces * len(piece)
        return time.perf_counter() - started

    for piece in ("a few <b> [c]", "<tool_call <t"):
        small, large = seconds(20_000, piece), seconds(800_000, piece)
        assert large < 80 * small + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "filling", ['\\"', '"', "{", "[{", '{"', "\\", '":', "</tool_call>", "<tool_call>", " "]
)
def test_a_megabyte_of_nonsense_behind_a_mark_takes_no_time(filling: str) -> None:
    text = f'{OPEN}{{"name": "weather", "arguments": {{"place": "{filling * (1_000_000 // len(filling))}'
    for start in (text, OPEN + filling * 500_000):
        started = time.perf_counter()
        said, calls, _ = parse(start)
        assert time.perf_counter() - started < 5
        assert said == start
        assert calls == ()
