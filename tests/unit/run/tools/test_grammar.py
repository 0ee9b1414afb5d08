"""A required call: every answer that fits the grammar is a valid call, spelled as the model does."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.unit.run.tools.forms import FORMATS, TEMPLATES, detected

from edgewise.core.structure import StructureKind
from edgewise.core.tools import Tool, ToolChoice
from edgewise.errors import UnsupportedError
from edgewise.run.tools import PROMPT_FORMAT, CallParser, ToolFormat, structure_for

llguidance = pytest.importorskip("llguidance")

ALL = {**FORMATS, "prompt": PROMPT_FORMAT}
SPELLED = [name for name, form in ALL.items() if form.marked or form.python]
REQUIRED = ToolChoice(mode="required")
SEVERAL = ToolChoice(mode="required", parallel=True)
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
    structure = structure_for(form, (PLACE, NONE), SEVERAL)
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
@pytest.mark.parametrize("parallel", [None, False])
def test_one_call_is_forced_where_several_were_not_asked_for(
    name: str, parallel: bool | None, tokenizer: object
) -> None:
    form = ALL[name]
    choice = ToolChoice(mode="required", parallel=parallel)
    structure = structure_for(form, (PLACE, NONE), choice)
    assert structure is not None
    one: tuple[str, dict[str, Any]] = ("none.at-all", {})
    other: tuple[str, dict[str, Any]] = ("place", {"town": "Bad Ems"})
    assert fits(structure.source, form.spell([one]), tokenizer)
    assert fits(structure.source, form.spell([other]), tokenizer)
    assert not fits(structure.source, form.spell([one, other]), tokenizer)


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
    structure = structure_for(form, (NONE,), SEVERAL)
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


MIXED = Tool(
    name="mixed",
    parameters=json.dumps(
        {
            "type": "object",
            "properties": {
                "note": {"type": "string", "maxLength": 9},
                "unit": {"enum": ["C", "a </b>"]},
                "count": {"type": "integer", "minimum": 0, "maximum": 99},
                "sure": {"type": "boolean", "description": "Whether."},
                "more": {
                    "type": "object",
                    "properties": {"t": {"type": "string", "maxLength": 5}},
                    "required": ["t"],
                    "additionalProperties": False,
                },
            },
            "required": ["note", "more"],
            "additionalProperties": False,
        }
    ),
)


def drawn(source: str, tokenizer: Any, seed: int) -> str:
    """Return a text of a grammar, each byte drawn from those that may come."""
    random = Random(seed)
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(source))
    data = bytearray()
    while not matcher.is_stopped():
        mask = matcher.compute_bitmask()
        allowed = [i for i in range(256) if mask[i // 8] >> (i % 8) & 1]
        # Marks are long and texts are dull: prefer what marks are made of.
        marks = [i for i in allowed if chr(i) in "<>/=_\n|'[]"]
        if not allowed or (matcher.is_accepting() and random.random() < 0.5):
            break
        byte = random.choice(marks if marks and random.random() < 0.4 else allowed)
        assert matcher.consume_token(byte)
        data.append(byte)
    assert matcher.is_accepting()
    return data.decode()


@pytest.mark.parametrize("name", SPELLED)
def test_whatever_is_drawn_from_the_grammar_is_a_valid_call(name: str, tokenizer: object) -> None:
    structure = structure_for(ALL[name], (MIXED, NONE), REQUIRED)
    assert structure is not None
    for seed in range(30):
        text = drawn(structure.source, tokenizer, seed)
        parser = CallParser(ALL[name], (MIXED, NONE), REQUIRED)
        parser.push(text)
        _, made, events = parser.finish(cut=False)
        assert len(made) == 1, (text, events)


@pytest.mark.parametrize("name", [n for n in SPELLED if ALL[n].typed_by_schema])
def test_a_forced_value_cannot_hold_a_mark(name: str, tokenizer: object) -> None:
    form = ALL[name]
    note = Tool(
        name="note", parameters='{"type": "object", "properties": {"a": {"type": "string"}}}'
    )
    structure = structure_for(form, (note,), REQUIRED)
    assert structure is not None
    assert fits(structure.source, form.spell([("note", {"a": "x <b> y"})]), tokenizer)
    for mark in form.held:
        assert not fits(structure.source, form.spell([("note", {"a": f"x{mark}y"})]), tokenizer)


@pytest.mark.parametrize("name", SPELLED)
@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, "/$ref"),
        ({"anyOf": [{"properties": {"a": {}}}]}, "/anyOf"),
        ({"properties": {"a": {}}, "required": ["b"]}, "/required"),
    ],
)
def test_arguments_that_are_declared_elsewhere_are_refused_by_name(
    name: str, schema: dict[str, Any], pointer: str
) -> None:
    tool = Tool(name="f", parameters=json.dumps({"type": "object", **schema}))
    with pytest.raises(UnsupportedError) as caught:
        structure_for(ALL[name], (tool,), REQUIRED)
    assert caught.value.context == {"tool": "f", "pointer": pointer}


def test_names_that_python_cannot_write_are_left_out_or_refused(tokenizer: object) -> None:
    form = ALL["python-list"]
    schema = {"type": "object", "properties": {"a b": {"type": "null"}, "c": {"type": "null"}}}
    tool = Tool(name="f", parameters=json.dumps(schema))
    structure = structure_for(form, (tool,), REQUIRED)
    assert structure is not None
    assert fits(structure.source, "<|tool_call_start|>[f(c=null)]<|tool_call_end|>", tokenizer)
    needed = Tool(name="f", parameters=json.dumps({**schema, "required": ["a b"]}))
    with pytest.raises(UnsupportedError):
        structure_for(form, (needed,), REQUIRED)
    with pytest.raises(ValueError, match="a b"):
        form.spell([("f", {"a b": None})])


def test_marks_around_arguments_that_are_control_tokens_cannot_be_forced() -> None:
    form = detected(TEMPLATES["keys-and-values"], "<arg_key>", "</arg_key>", "</arg_value>")
    ids = tuple((mark, 7) for mark in form.control)
    with pytest.raises(UnsupportedError) as caught:
        structure_for(replace(form, token_ids=ids), (MIXED,), REQUIRED)
    assert caught.value.context["mark"] in form.control


@pytest.mark.parametrize("name", SPELLED)
def test_listed_texts_are_spelled_to_the_last_sign(name: str, tokenizer: object) -> None:
    listed = ["a/b", "c\\d", "e\tf", "g\n", "é日 😀", "[i](j)*", 'k"l', "m'n", "~&|", "-", " "]
    tool = Tool(
        name="f",
        parameters=json.dumps({"type": "object", "properties": {"a": {"enum": listed}}}),
    )
    form = ALL[name]
    structure = structure_for(form, (tool,), REQUIRED)
    assert structure is not None
    for value in listed:
        text = form.spell([("f", {"a": value})])
        assert fits(structure.source, text, tokenizer), value
        parser = CallParser(form, (tool,), REQUIRED)
        parser.push(text)
        assert [json.loads(c.arguments) for c in parser.finish(cut=False)[1]] == [{"a": value}]
    assert not fits(structure.source, form.spell([("f", {"a": "a.b"})]), tokenizer)
