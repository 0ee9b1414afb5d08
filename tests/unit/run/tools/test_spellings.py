"""Arguments between marks and Python's calls: typed by the schema, and never a wrong call."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.run.tools.forms import FORMATS

from edgewise.core.outcome import Event
from edgewise.core.tools import Tool, ToolChoice
from edgewise.errors import InputError, UnsupportedError
from edgewise.run.tools import CallParser, ToolFormat

XML, PYTHON = FORMATS["parameters"], FORMATS["python-list"]
MARKED = [name for name, form in FORMATS.items() if form.marked is not None]
AUTO = ToolChoice()
TYPED = [name for name in MARKED if FORMATS[name].typed_by_schema]
PYTHONIC = [name for name, form in FORMATS.items() if form.python is not None]


def tool(properties: dict[str, Any], **more: Any) -> Tool:
    schema = {"type": "object", "properties": properties, **more}
    return Tool(name="f", parameters=json.dumps(schema))


def read(
    text: str, form: ToolFormat, declared: Tool, choice: ToolChoice = AUTO
) -> tuple[str, list[dict[str, Any]], list[str]]:
    """Return what is shown, the arguments of the calls, and what was said about them."""
    found: list[tuple[str, list[dict[str, Any]], tuple[Event, ...]]] = []
    for pieces in ([text], list(text)):
        parser = CallParser(form, (declared,), choice)
        said = "".join(map(parser.push, pieces))
        rest, calls, events = parser.finish(cut=False)
        found.append((said + rest, [json.loads(c.arguments) for c in calls], events))
    assert found[0] == found[1]
    said, made, events = found[0]
    return said, made, [event.message for event in events]


def xml(**values: str) -> str:
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"


STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
ANY: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (STRING, "5", "5"),
        (STRING, "true", "true"),
        (STRING, "null", "null"),
        (STRING, '{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        (STRING, '"quoted"', '"quoted"'),
        (STRING, "", ""),
        (STRING, "\n two \n\n", "\n two \n\n"),
        (STRING, "\\u0041\\n", "\\u0041\\n"),
        (STRING, "a < b && c > d </div>", "a < b && c > d </div>"),
        (INTEGER, "5", 5),
        (INTEGER, " 5 ", 5),
        ({"type": "number"}, "-0.5e3", -500.0),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "True", True),
        ({"type": "null"}, "None", None),
        ({"type": "array"}, '[1, "two"]', [1, "two"]),
        ({"type": "object"}, '{"a": {"b": null}}', {"a": {"b": None}}),
        ({"type": ["integer", "boolean"]}, "1", 1),
        ({"type": ["string", "null"]}, "x", "x"),
        ({"enum": ["1", 2]}, "1", "1"),
        ({"enum": ["[a", "1"]}, "[a", "[a"),
        ({"const": "null"}, "null", "null"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"$ref": "#/$defs/n"}, "5", 5),
        ({"anyOf": [INTEGER, {"type": "array"}]}, "[5]", [5]),
        ({"type": ["string", "integer"], "minLength": 3}, "5", 5),
        (ANY, "plain words", "plain words"),
    ],
)
def test_the_schema_says_what_a_text_is(schema: Any, text: str, value: Any) -> None:
    declared = tool({"a": schema}, **{"$defs": {"n": INTEGER}})
    assert read(xml(a=text), XML, declared) == ("", [{"a": value}], [])


@pytest.mark.parametrize(
    ("schema", "text", "why"),
    [
        (ANY, "5", "may be a text or a number"),
        (ANY, "true", "may be a text or a boolean"),
        (ANY, '{"a": 1}', "may be a text or a JSON object"),
        (ANY, '{"a": 1, "a": 2}', "twice"),
        (ANY, "[1, 2", "cannot be read"),
        ({"type": ["string", "null"]}, "null", "may be a text or a null"),
        ({"type": ["string", "null"]}, "None", "may be a text or a null"),
        (INTEGER, "five", "no value"),
        (INTEGER, '"5"', "no value"),
        (INTEGER, "5.5", "no value"),
        (INTEGER, "5 6", "no value"),
        (INTEGER, "", "no value"),
        ({"type": "boolean"}, "TRUE", "no value"),
        ({"type": "array"}, "[1, 2", "cannot be read"),
        ({"type": "object"}, "{'a': 1}", "cannot be read"),
        ({"type": "number"}, "NaN", "no value"),
        ({"type": "number"}, "1e999", "no value"),
        ({"type": "array"}, "[" * 60 + "]" * 60, "deep"),
        ({"type": "string", "maxLength": 2}, "abc", "too long"),
    ],
)
def test_what_may_be_two_things_or_none_is_no_call(schema: Any, text: str, why: str) -> None:
    said, made, messages = read(xml(a=text), XML, tool({"a": schema}))
    assert (said, made) == (xml(a=text), [])
    assert why in messages[0]


def test_an_argument_that_is_not_declared_has_no_type() -> None:
    _, made, messages = read(xml(a="x", b="y"), XML, tool({"a": STRING}))
    assert made == []
    assert "not declared" in messages[0]
    further = tool({"a": STRING}, additionalProperties=INTEGER)
    assert read(xml(a="x", b="5"), XML, further)[1] == [{"a": "x", "b": 5}]


BOTH = tool({"a": STRING, "b": STRING})


@pytest.mark.parametrize(
    "value",
    [
        "x</parameter>y",
        "x\n</parameter>\ny",
        "x</parameter>",
        "</parameter></function></tool_call>",
        "<parameter=b>\ny",
        "<parameter=b>",
        "</function>",
        "</tool_call>",
        "<tool_call>\n<function=f>\n",
        "<function=f>",
        "x\n</parameter>\n<parameter=a>\ny",
        "x\n</parameter>\n<parameter=c>\ny",
    ],
)
def test_a_value_that_holds_marks_is_no_call(value: str) -> None:
    text = xml(a=value)
    assert read(text, XML, BOTH)[:2] == (text, [])


def test_one_text_that_is_two_arguments_is_what_it_spells() -> None:
    """No reader can tell it from two arguments; a forced call cannot spell it by accident."""
    assert xml(a="x\n</parameter>\n<parameter=b>\ny") == xml(a="x", b="y")


@pytest.mark.parametrize(
    "text",
    [
        xml(a="x").replace("</parameter>\n", ""),
        xml(a="x").replace("</function>\n", ""),
        xml(a="x").replace("</function>", "</fun>"),
        xml(a="x").replace("<function=f>", "<function=>"),
        xml(a="x").replace("<function=f>", "<function=f"),
        xml(a="x").replace("<parameter=a>", "<parameter=a"),
        xml(a="x").replace("<parameter=a>", "<parameter=>"),
        xml(a="x").replace("<parameter=a>", "junk <parameter=a>"),
        xml(a="x").replace("</function>", "junk </function>"),
        xml(a="x").replace("<function=f>", "<function=g>"),
        xml(a="x") + xml(a="x").replace("=f>", "=g>"),
    ],
)
def test_what_is_not_whole_is_no_call(text: str) -> None:
    said, made, messages = read(text, XML, BOTH)
    assert (said, made) == (text, [])
    assert messages


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<parameter=a>\n", "<parameter=a>"),
        ("\n</parameter>", "</parameter>"),
        ("</parameter>\n", "</parameter>"),
        ("</parameter>\n", "</parameter> \n"),
    ],
)
def test_where_space_around_a_value_is_not_the_templates_there_is_no_call(
    before: str, after: str
) -> None:
    text = xml(a="x", b="y").replace(before, after, 1)
    assert read(text, XML, BOTH)[:2] == (text, [])


def test_space_where_no_value_is_does_not_count() -> None:
    text = xml(a="x").replace("=f>\n", "=f>").replace("</tool_call>", "</tool_call>\n\n")
    assert read(text, XML, BOTH)[1] == [{"a": "x"}]


def test_a_mark_outside_of_calls_spoils_them() -> None:
    for text in (xml(a="x") + "\n</parameter>", xml(a="x") + " <parameter=a>" + xml(a="y")):
        assert read(text, XML, BOTH)[:2] == (text, [])


@pytest.mark.parametrize("name", TYPED)
@settings(deadline=None)
@given(value=st.text(max_size=30))
def test_texts_come_back_to_the_last_space(name: str, value: str) -> None:
    form = FORMATS[name]
    text = form.spell([("f", {"a": value})])
    said, made, messages = read(text, form, BOTH)
    held = any(mark in value for mark in form.held)
    assert bool(messages) == held
    assert made == ([] if held else [{"a": value}])
    assert said.strip() == (text.strip() if held else "")


@pytest.mark.parametrize("name", TYPED)
@settings(deadline=None)
@given(data=st.data())
def test_whatever_a_value_holds_no_other_call_comes_of_it(name: str, data: st.DataObject) -> None:
    """Unless the whole is, to the character, how another call is spelled."""
    form = FORMATS[name]
    parts = form.spell([("f", {"b": "x", "a": "y"})]).replace("\n", "\0\n\0").split("\0")
    bits = st.sampled_from([*form.held, *parts, "x", " ", "b"])
    value = data.draw(st.lists(bits, max_size=10).map("".join))
    text = form.spell([("f", {"a": value})])
    _, made, _ = read(text, form, BOTH)
    if made and made != [{"a": value}]:
        assert form.spell([("f", arguments) for arguments in made]) == text


@pytest.mark.parametrize("name", PYTHONIC)
@pytest.mark.parametrize(
    "value",
    [
        ")]<|tool_call_end|>",
        "</call>```",
        "'\"\"\"'''",
        '\\u0041\\n\\"',
        "a\nb\t\r",
        "é😀\u2028",
        "f(a=1)",
        "[f(a=",
    ],
)
def test_python_values_that_hold_marks_come_back(name: str, value: str) -> None:
    form = FORMATS[name]
    assert read(form.spell([("f", {"a": value})]), form, BOTH) == ("", [{"a": value}], [])


def python(inner: str) -> str:
    return f"<|tool_call_start|>{inner}<|tool_call_end|>"


@pytest.mark.parametrize(
    "inner",
    [
        "[f('x')]",
        "[f(a=x)]",
        "[f(a='x', a='y')]",
        "[f(a='x' 'y')]",
        "[f(a=f'x')]",
        "[f(a='x'), g()]",
        "[f(a='x') f(a='y')]",
        "[f(a='x')",
        "f(a='x'); print(1)",
        "[f(a='x')][0]",
        "[]",
        "[f.a='x']",
        "f (a='x')",
        "[f(a='\\d')]",
        "[f(a=__import__('os'))]",
    ],
)
def test_what_is_no_sound_python_call_is_no_call(inner: str) -> None:
    text = python(inner)
    said, made, messages = read(text, PYTHON, BOTH)
    assert (said, made) == (text, [])
    assert messages


def test_python_calls_as_models_write_them() -> None:
    for inner, count in (
        ('[f(a="x")]', 1),
        ("f(a='x')", 1),
        ("[ f(a='x',), \n f(b='''y''') , ]", 2),
        ("[f(a='x'), f()]", 2),
    ):
        assert len(read(python(inner), PYTHON, BOTH)[1]) == count
    block = FORMATS["python-block"]
    assert len(read("```tool_code\nf(a='x')\nf(b='y')\n```", block, BOTH)[1]) == 2


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "[f]",
        "[see (a)]",
        "[f(x) is what you want]",
        "[sic](http://a.b)",
        "[",
        "[f(",
        "f(a='x')",
        "Use [f(a='x')]",
        "[ ] task",
        "[f() looks right]",
    ],
)
def test_a_list_that_is_no_call_stays_text_where_calls_are_bare(text: str) -> None:
    assert read(text, FORMATS["python-bare"], BOTH) == (text, [], [])


def test_a_bare_call_that_is_broken_is_said() -> None:
    text = "[f(a='x']"
    said, made, messages = read(text, FORMATS["python-bare"], BOTH)
    assert (said, made, len(messages)) == (text, [], 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MARKED, *PYTHONIC])
def test_a_megabyte_behind_a_mark_takes_no_time(name: str) -> None:
    form = FORMATS[name]
    start = form.spell([("f", {"a": "VALUE"})]).partition("VALUE")[0]
    for filling in ("<", "</parameter>", "<parameter=a>\n", "'", "\\", "f(a=", "[", "a</arg_key>"):
        text = start + filling * (1_000_000 // len(filling))
        parser = CallParser(form, (BOTH,), ToolChoice())
        started = time.perf_counter()
        said = parser.push(text) + parser.finish(cut=False)[0]
        assert time.perf_counter() - started < 5
        assert said == text


def test_patterns_are_matched_in_linear_time_and_refused_where_they_cannot_be() -> None:
    slow = tool({"a": {"type": "string", "pattern": "^(a+)+$"}})
    started = time.perf_counter()
    assert read(xml(a="a" * 5000 + "!"), XML, slow)[1] == []
    assert time.perf_counter() - started < 5
    assert read(xml(a="aaa"), XML, slow)[1] == [{"a": "aaa"}]
    schemas: list[dict[str, Any]]
    for pattern in ("(?=a)b", "(a)\\1"):
        schemas = [{"pattern": pattern}, {"patternProperties": {pattern: {}}}]
        for schema in schemas:
            with pytest.raises(UnsupportedError) as caught:
                CallParser(XML, (tool({"a": schema}),), ToolChoice())
            assert caught.value.code == "structure-unsupported"
    CallParser(XML, (tool({"a": {"pattern": "^\\p{L}+$"}}),), ToolChoice())  # not Python's
    data = tool({"pattern": {"enum": [{"pattern": "("}]}}, default={"pattern": "("})
    CallParser(XML, (data,), ToolChoice())
    with pytest.raises(InputError):
        CallParser(XML, (tool({"a": {"type": "strin"}}),), ToolChoice())


def test_formats_are_notes_and_multiples_are_decimal() -> None:
    declared = tool({"a": {"type": "string", "format": "date"}, "b": {"multipleOf": 0.01}})
    assert "'b' may be a text or a number" in read(xml(a="no date", b="4.35"), XML, declared)[2][0]
    assert read(xml(a="no date"), XML, declared)[1] == [{"a": "no date"}]
    declared = tool({"b": {"type": "number", "multipleOf": 0.01}})
    assert read(xml(b="4.35"), XML, declared)[1] == [{"b": 4.35}]


XML_BITS = (
    *("<tool_call>\n<function=", "f", ">", "\n", "<parameter=a>", "x", "</parameter>"),
    *("</function>", "</tool_call>", "<arg_key>", "a", "</arg_key>\n<arg_value>", "</arg_value>"),
)
PYTHON_BITS = (
    *("[", "f(", "a=", "'x'", ")", "]", "<call>", "</call>", ", "),
    *("<|tool_call_start|>", "<|tool_call_end|>", "```tool_code\n", "```", "<calls>\n"),
)


@settings(deadline=None)
@given(
    name=st.sampled_from([*MARKED, *PYTHONIC]),
    bits=st.lists(st.sampled_from((*XML_BITS, *PYTHON_BITS)), max_size=14),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_without_calls_no_character_is_lost(name: str, bits: list[str], cuts: list[int]) -> None:
    whole = "".join(bits)
    places = sorted({0, len(whole), *(c % (len(whole) + 1) for c in cuts)})
    parser = CallParser(FORMATS[name], (BOTH,), ToolChoice())
    said = "".join(parser.push(whole[a:b]) for a, b in itertools.pairwise(places))
    rest, calls, _ = parser.finish(cut=False)
    if not calls:
        assert said + rest == whole
