"""Formats are learned from what templates make of calls, not from names of models."""

# ruff: noqa: RUF001 - DeepSeek's marks hold this bar
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.run.tools.forms import FORMATS, TEMPLATES, UNAWARE, detected

from edgewise.run.tools import PROMPT_FORMAT, ToolFormat, parse_calls
from edgewise.run.tools.spellings import MarkedArguments, PythonCalls

CALLS = [
    ("get.weather", {"place": 'Bad "Ems" {a}', "days": 3, "deep": {"l": [1, [2, {"x": None}]]}}),
    ("set-timer_2", {}),
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_form_is_learned(name: str) -> None:
    assert not FORMATS[name].by_prompt
    assert FORMATS[name].events == ()


@pytest.mark.parametrize("name", UNAWARE)
def test_what_a_template_cannot_spell_is_explained_in_the_prompt_and_said(name: str) -> None:
    form = detected(UNAWARE[name])
    spelling = "harmony channels" if name == "harmony" else None
    assert form == replace(PROMPT_FORMAT, system_turn=name != "no-system", instead_of=spelling)
    assert (spelling or "how calls are spelled") in form.events[0].message
    assert [event.code for event in form.events] == ["tools-by-prompt"]


def as_read(form: ToolFormat, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments as they come out of the parser: as texts, where a schema types them."""
    if form.marked is None or form.marked.quoted:
        return arguments
    return {key: form.marked.spell_value(value) for key, value in arguments.items()}


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_format_spells_it_reads(name: str) -> None:
    form = FORMATS[name]
    calls = CALLS[:1] if name == "bare" else CALLS
    parsed = parse_calls(form.spell(calls), form)
    assert parsed.problem is None
    assert list(parsed.calls) == [(name, as_read(form, given)) for name, given in calls]
    assert parsed.text == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tagged", {"begin": "<tool_call>\n", "end": "\n</tool_call>", "between": "\n"}),
        ("tagged-list", {"begin": "<|tool_call_start|>", "listed": True}),
        ("other-keys", {"name_key": "tool_name", "arguments_key": "parameters"}),
        ("bare", {"begin": "", "also_begin": ("<|python_tag|>",), "bare": True}),
        ("named-tag", {"begin": "<function=", "separator": (">",), "end": "</function>"}),
        ("mistral-list", {"begin": "[TOOL_CALLS] ", "listed": True, "takes_short_ids": True}),
        ("mistral-with-id", {"separator": ("[CALL_ID]", "[ARGS]"), "takes_short_ids": True}),
        (
            "deepseek-text",
            {
                "begin": "<｜tool▁call▁begin｜>",
                "before_all": "<｜tool▁calls▁begin｜>",
                "after_all": "<｜tool▁calls▁end｜>",
                "takes_text": True,
            },
        ),
        ("nested", {"nested": True}),
        (
            "parameters",
            {
                "begin": "\n<tool_call>\n<function=",
                "separator": (">\n",),
                "marked": MarkedArguments(
                    opening="<parameter=", middle=">\n", closing="\n</parameter>\n"
                ),
                "end": "</function>\n</tool_call>",
                "typed_by_schema": True,
            },
        ),
        (
            "parameters-python",
            {
                "marked": MarkedArguments(
                    opening="<parameter=", middle=">", closing="</parameter>", pythonic=True
                )
            },
        ),
        (
            "keys-and-values",
            {
                "begin": "<tool_call>",
                "separator": ("\n",),
                "marked": MarkedArguments(
                    opening="<arg_key>",
                    middle="</arg_key>\n<arg_value>",
                    closing="</arg_value>\n",
                ),
            },
        ),
        (
            "invoked",
            {"before_all": "<calls>\n", "begin": '<invoke name="', "end": "</invoke>\n"},
        ),
        ("parameters-json", {"typed_by_schema": False}),
        (
            "python-list",
            {
                "begin": "<|tool_call_start|>",
                "python": PythonCalls(opening="[", join=", ", closing="]"),
            },
        ),
        (
            "python-block",
            {"begin": "```tool_code\n", "python": PythonCalls(join="\n"), "end": "\n```"},
        ),
        (
            "python-bare",
            {
                "bare": True,
                "python": PythonCalls(opening="[", join=", ", closing="]", pythonic=False),
            },
        ),
        ("python-each", {"begin": "<call>", "python": PythonCalls(pythonic=False)}),
    ],
)
def test_the_parts_of_a_format(name: str, expected: dict[str, object]) -> None:
    form = FORMATS[name]
    assert {key: getattr(form, key) for key in expected} == expected


def test_marks_that_are_control_tokens_are_told_with_their_ids() -> None:
    form = detected(TEMPLATES["function-object"], "<|im_start|>", "<|tool_call|>", "<|/tool_call|>")
    assert form.control == ("<|tool_call|>", "<|/tool_call|>")
    ids = {"<|tool_call|>": [7], "<|/tool_call|>": [8]}

    def tokenize(text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert not add_special
        assert parse_special
        return ids[text]

    assert form.marker_tokens(tokenize) == {7: "<|tool_call|>", 8: "<|/tool_call|>"}


def test_a_mark_of_several_tokens_needs_no_help() -> None:
    form = FORMATS["tagged"]
    assert form.marker_tokens(lambda text, **_: list(text.encode())) == {}


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}{% for t in tools %}{{ t|tojson }}{% endfor %}{{ '[' * 100000 if messages[1] is defined else '' }}{{ messages[1].tool_calls|tojson }}",
        "{{ tools|tojson }}{{ messages|tojson }}{{ messages[1].tool_calls[0].function.name }} call",
        "{{ tools|tojson }}{% for i in range(10**9) %}{% endfor %}",
        "{{ tools|tojson }}{{ nothing.at.all }}",
        # A mark that is an ordinary word would be found in ordinary answers.
        "{{ tools|tojson }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}call {{ c.function|tojson }}{% endfor %}{% endfor %}",
    ],
)
def test_templates_that_are_hostile_or_odd_get_the_prompt_format(source: str) -> None:
    assert detected(source).by_prompt


def test_a_format_is_plain_data() -> None:
    assert ToolFormat(begin="<a>") == ToolFormat(begin="<a>")
    assert ToolFormat(begin="<a>").starts == ("<a>",)
