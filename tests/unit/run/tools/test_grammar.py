"""A required call: every answer that fits the grammar is a valid call, spelled as the model does."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.run.tools.forms import FORMATS, TEMPLATES, detected

from edgewise.core.structure import StructureKind
from edgewise.core.tools import Tool, ToolChoice
from edgewise.errors import UnsupportedError
from edgewise.run.tools import PROMPT_FORMAT, CallParser, ToolFormat, structure_for

llguidance = pytest.importorskip("llguidance")

ALL = {**FORMATS, "prompt": PROMPT_FORMAT}
REQUIRED = ToolChoice(mode="required")
PLACE = Tool(
    name="place",
    parameters=json.dumps(
        {
            "type": "object",
            "properties": {
                "town": {"$ref": "#/$defs/town"},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["town"],
            "additionalProperties": False,
            "$defs": {"town": {"enum": ["Bad Ems", 'O"x\\']}},
        }
    ),
)
NONE = Tool(name="none.at-all", parameters='{"type": "object", "additionalProperties": false}')


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return llguidance.LLTokenizer("byte")


def fits(source: str, text: str, tokenizer: object) -> bool:
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(source))
    assert not matcher.get_error()
    data = list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


@pytest.mark.parametrize("name", ALL)
def test_calls_fit_and_nothing_else_does(name: str, tokenizer: object) -> None:
    form = ALL[name]
    structure = structure_for(form, (PLACE, NONE), REQUIRED)
    assert structure is not None
    assert structure.kind is StructureKind.LARK
    source = structure.source
    one: tuple[str, dict[str, Any]] = ("place", {"town": 'O"x\\', "days": 3})
    two: tuple[str, dict[str, Any]] = ("none.at-all", {})
    for calls in ([one], [two], [one, two]):
        text = form.spell(calls).strip("\n ") if name == "tagged-backwards" else form.spell(calls)
        if name == "tagged-backwards":  # spaces around the whole are the template's
            text = form.before_all + text + form.after_all
        assert fits(source, text, tokenizer), text
        parser = CallParser(form, (PLACE, NONE), REQUIRED)
        parser.push(text)
        _, made, events = parser.finish(cut=False)
        assert [(c.name, json.loads(c.arguments)) for c in made] == calls
        assert events == ()
    for call in (
        ("place", {"town": "Ems"}),
        ("other", {}),
        ("place", {"days": 1}),
        ("none.at-all", {"a": 1}),
    ):
        assert not fits(source, form.spell([call]), tokenizer)
    assert not fits(source, "", tokenizer)
    assert not fits(source, "Hello" + form.spell([one]), tokenizer)


@pytest.mark.parametrize("name", ALL)
def test_a_named_tool_is_called_once(name: str, tokenizer: object) -> None:
    form = ALL[name]
    choice = ToolChoice(mode="required", name="none.at-all")
    structure = structure_for(form, (PLACE, NONE), choice)
    assert structure is not None
    one: tuple[str, dict[str, Any]] = ("none.at-all", {})
    assert fits(structure.source, form.spell([one]), tokenizer)
    assert not fits(structure.source, form.spell([one, one]), tokenizer)
    assert not fits(structure.source, form.spell([("place", {"town": "Bad Ems"})]), tokenizer)


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_nothing_is_forced_that_is_not_required(mode: str) -> None:
    assert structure_for(PROMPT_FORMAT, (PLACE,), ToolChoice(mode=mode)) is None


def test_marks_that_are_control_tokens_need_their_ids() -> None:
    form = detected(TEMPLATES["function-object"], "<|tool_call|>", "<|/tool_call|>")
    assert structure_for(form, (NONE,), REQUIRED) is None
    form = replace(form, token_ids=(("<|tool_call|>", 7), ("<|/tool_call|>", 8)))
    structure = structure_for(form, (NONE,), REQUIRED)
    assert structure is not None
    assert "call: <[7]> (call_0) <[8]>" in structure.source


def test_endless_calling_is_bounded(tokenizer: object) -> None:
    form: ToolFormat = PROMPT_FORMAT
    structure = structure_for(form, (NONE,), REQUIRED)
    assert structure is not None
    one: tuple[str, dict[str, Any]] = ("none.at-all", {})
    assert fits(structure.source, form.spell([one] * 8), tokenizer)
    assert not fits(structure.source, form.spell([one] * 9), tokenizer)


def test_control_tokens_are_taken_by_their_ids() -> None:
    """Bytes, then the end, then two control tokens that no text spells."""

    class Vocabulary:
        eos_token_id = 256
        bos_token_id = None
        special_token_ids = (256, 257, 258)
        tokens = (
            *(bytes([value]) for value in range(256)),
            b"<|end|>",
            b"<|tool_call|>",
            b"<|/tool_call|>",
        )

        def __call__(self, text: bytes | str) -> list[int]:
            return list(text.encode() if isinstance(text, str) else text)

    form = detected(TEMPLATES["function-object"], "<|tool_call|>", "<|/tool_call|>")
    form = replace(form, token_ids=(("<|tool_call|>", 257), ("<|/tool_call|>", 258)))
    structure = structure_for(form, (NONE,), ToolChoice(mode="required", name="none.at-all"))
    assert structure is not None
    matcher = llguidance.LLMatcher(
        llguidance.LLTokenizer(llguidance.TokenizerWrapper(Vocabulary()), eos_token=[256]),
        llguidance.LLMatcher.grammar_from_lark(structure.source),
    )
    inside = list(b'{"name": "none.at-all", "arguments": {}}')
    assert matcher.try_consume_tokens(list(b"<|tool_call|>")) == 0
    answer = [257, *inside, 258]
    assert matcher.try_consume_tokens(answer) == len(answer)
    assert matcher.is_accepting()


def test_a_schema_that_no_grammar_carries_is_refused_by_name() -> None:
    tool = Tool(name="f", parameters='{"type": "object", "$ref": "https://example.org/x"}')
    with pytest.raises(UnsupportedError) as caught:
        structure_for(PROMPT_FORMAT, (tool,), REQUIRED)
    assert caught.value.code == "structure-unsupported"
