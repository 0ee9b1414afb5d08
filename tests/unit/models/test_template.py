"""Chat templates: rendering, the source that is named, and content told from template."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.builders import CHATML, raw_gguf, raw_kv, string_bytes, tiny_gguf

from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.models import ChatTemplate, Segment, chat_template, read_gguf
from edgewise.models.template import BUILTIN_TEMPLATES

HELLO = [{"role": "user", "content": "Hello"}]
NOON = datetime(2026, 2, 3, 12, 0, tzinfo=UTC)


def render(source: str, messages: Any = HELLO, **options: Any) -> Any:
    return ChatTemplate(source=source, name="test").render(messages, **options)


def segments(source: str, messages: Any = HELLO, **options: Any) -> Any:
    return ChatTemplate(source=source, name="test").render_segments(messages, **options)


def test_chatml() -> None:
    expected = "<|im_start|>user\nHello<|im_end|>\n"
    assert render(CHATML, add_generation_prompt=False) == expected
    assert render(CHATML) == expected + "<|im_start|>assistant\n"


def test_special_tokens_and_tools_are_given() -> None:
    source = "{{ bos_token }}{{ tools[0].name }}{{ messages[0].content }}{{ eos_token }}"
    assert render(source, bos_token="<s>", eos_token="</s>", tools=[{"name": "f"}]) == (
        "<s>fHello</s>"
    )
    assert render("{{ tools is none }}{{ documents is none }}") == "TrueTrue"


def test_blocks_are_trimmed_and_loops_controlled() -> None:
    source = """
    {%- for i in range(9) %}
    {% if i == 1 %}{% continue %}{% endif %}
    {% if i == 3 %}{% break %}{% endif %}
{{ i }}
    {% endfor %}
"""
    assert render(source) == "0\n2\n"


def test_json_is_not_escaped_for_html() -> None:
    value = {"b": "<&'\">\u00e9", "a": [1, None, True]}
    expected = json.dumps(value, ensure_ascii=False)
    assert render("{{ tools[0]|tojson }}", tools=[value]) == expected
    assert render("{{ tools[0]|tojson(indent=2) }}", tools=[value]) == json.dumps(
        value, ensure_ascii=False, indent=2
    )
    assert render("{{ 1|tojson(sort_keys=true, ensure_ascii=true) }}") == "1"


def test_date_is_given() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}", now=NOON) == "03 Feb 2026"
    assert len(render("{{ strftime_now('%Y') }}")) == 4


def test_generation_tag_renders_its_body() -> None:
    assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "aHellob"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ ' x '|trim }}", "x"),
        ("{{ 'ab'.replace('b', 'c') ~ 1 ~ 'd' }}", "ac1d"),
        ("{{ 'a-b-c'.split('-')[1:]|join('+') }}", "b+c"),
        ("{{ '{} and {a}'.format('x', a=1) }}", "x and 1"),
        ("{{ '%s=%03d%%' % ('a', 7) }}", "a=007%"),
        ("{{ '%s'|format('a') }}", "a"),
        (
            "{% set ns = namespace(x=0) %}{% for m in [1, 2] %}{% set ns.x = ns.x + m %}{% endfor %}{{ ns.x }}",
            "3",
        ),
        ("{% macro f(a, b=2) %}{{ a * b }}{% endmacro %}{{ f(4) }}{{ f('x') }}", "8xx"),
        ("{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "b1a2"),
        ("{% for k, v in {'b': 1, 'a': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}", "a2b1"),
        ("{% for x in [1, 2, 3]|batch(2, 0) %}{{ x }}{% endfor %}", "[1, 2][3, 0]"),
        ("{{ [1, 2, 3]|sum }}{{ [3, 1]|sort }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 5 }}", "6[1, 3]3332"),
        (
            "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }}",
            "['Hello']",
        ),
        ("{{ messages[0].get('missing', 'd') }}{{ messages[0]['content'][0] }}", "dH"),
        ("{{ 'a\\nb'|indent(2) }}{{ 'x'|center(3) }}", "a\n  b x "),
        ("{{ loop is defined }}{{ undefined_name }}{{ 'x' if messages else 'y' }}", "Falsex"),
        ("{% set x %}{{ 'in' }}{{ 'side' }}{% endset %}{{ x|length }}{{ x|upper }}", "6INSIDE"),
        (
            "{% for a in [1, 2] %}{{ loop.index }}{{ loop.last }}{{ loop.cycle('o', 'e') }}{% endfor %}",
            "1Falseo2Truee",
        ),
    ],
)
def test_what_templates_use(source: str, expected: Any) -> None:
    assert render(source) == expected


def test_template_may_refuse_the_messages() -> None:
    with pytest.raises(InputError) as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.code == "template-rejected"
    assert "roles must alternate" in caught.value.message


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'open",
        "{% for %}",
        "{% nonsense %}",
        "{{ 1|no_such_filter }}",
        "{{ missing.attribute }}",
        "{{ 1 + 'a' }}",
        "{{ 1 / 0 }}",
        "{% include 'x' %}",
        "{{ missing() }}",
    ],
)
def test_template_that_fails_is_invalid(source: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        render(source)
    assert caught.value.code == "template-invalid"
    assert caught.value.context["template"] == "test"


def test_syntax_error_names_its_line() -> None:
    with pytest.raises(IntegrityError) as caught:
        render("a\nb\n{% for %}")
    assert caught.value.context["line"] == 3


@pytest.mark.parametrize(
    "messages",
    [
        "text",
        [1],
        [{"content": "no role"}],
        [{"role": 1}],
        [{"role": "user", "content": object()}],
        [{"role": "user", "content": b"bytes"}],
        [{"role": "user", 1: "x"}],
    ],
)
def test_messages_that_are_not_json_like(messages: Any) -> None:
    with pytest.raises(InputError) as caught:
        render(CHATML, messages)
    assert caught.value.code == "messages-invalid"


def test_messages_nested_without_end() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InputError) as caught:
        render(CHATML, [{"role": "user", "content": loop}])
    assert caught.value.code == "messages-invalid"


def test_a_template_cannot_change_the_messages() -> None:
    messages = [{"role": "user", "content": "Hello", "list": [1]}]
    with pytest.raises(IntegrityError) as caught:
        render("{{ messages[0].list.append(2) }}", messages)
    assert caught.value.code == "template-unsafe"
    assert messages[0]["list"] == [1]


def test_digest_and_name() -> None:
    template = ChatTemplate(source="abc", name="x")
    assert template.digest == hashlib.sha256(b"abc").hexdigest()


def test_segments_of_chatml() -> None:
    prompt = segments(CHATML, [*HELLO, {"role": "assistant", "content": "<|im_end|>"}])
    assert prompt.exact
    assert prompt.text == "".join(part.text for part in prompt.segments)
    assert prompt.segments == (
        Segment(text="<|im_start|>user\n", is_content=False),
        Segment(text="Hello", is_content=True),
        Segment(text="<|im_end|>\n<|im_start|>assistant\n", is_content=False),
        Segment(text="<|im_end|>", is_content=True),
        Segment(text="<|im_end|>\n<|im_start|>assistant\n", is_content=False),
    )


@pytest.mark.parametrize(
    "expression",
    ["content|trim", "content.strip()", "content|tojson", "content|upper", "content + '!'"],
)
def test_segments_survive_what_templates_do(expression: Any) -> None:
    source = f"[{{% for m in messages %}}{{% set content = m.content %}}{{{{ {expression} }}}}{{% endfor %}}]"
    messages = [{"role": "user", "content": "  two words\n "}]
    prompt = segments(source, messages)
    assert prompt.text == render(source, messages)
    assert "".join(part.text for part in prompt.segments) == prompt.text
    if expression != "content|tojson":  # there the white space is written as \\n, outside
        assert prompt.exact
        assert [p.text.lower() for p in prompt.segments if p.is_content] == ["two words"]


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content[1:] }}",
        "{{ messages[0].content|length }}",
        "{{ messages[0].content|replace('llo', 'y') }}{{ messages[0].content|first }}",
        "{{ messages[0].content.split('l')[0] }}",
        "{{ 'yes' if messages[0].content.startswith('He') else raise_exception('no') }}",
        "{{ messages[0].content[::-1] }}",
    ],
)
def test_segments_fall_back_when_content_is_taken_apart(source: str) -> None:
    prompt = segments(source)
    assert prompt.text == render(source)
    assert not prompt.exact
    assert prompt.segments == (Segment(text=prompt.text, is_content=False),)


def test_segments_of_content_parts() -> None:
    source = "{% for p in messages[0].content %}<{{ p.text }}>{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt = segments(source, [{"role": "user", "content": parts}])
    assert [p.text for p in prompt.segments if p.is_content] == ["a", "b"]


def test_marks_in_the_content_are_not_taken_for_ours() -> None:
    content = "\ue000<|im_end|>\ue001\ue002"
    prompt = segments(CHATML, [{"role": "user", "content": content}])
    assert prompt.exact
    assert [p.text for p in prompt.segments if p.is_content] == [content]


def test_content_with_every_possible_mark_falls_back() -> None:
    content = "".join(map(chr, range(0xE000, 0xF900)))
    prompt = segments(CHATML, [{"role": "user", "content": content}])
    assert not prompt.exact
    assert content in prompt.text


@pytest.mark.parametrize("content", ["", "  \n"])
def test_segments_without_content(content: Any) -> None:
    prompt = segments(CHATML, [{"role": "user", "content": content}])
    assert prompt.exact
    assert not any(part.is_content for part in prompt.segments)


def test_template_of_a_model(tmp_path: Path) -> None:
    template = chat_template(read_gguf(tiny_gguf(tmp_path / "m.gguf")))
    assert template.source == CHATML
    assert template.name == "gguf:tokenizer.chat_template"


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_no_template_is_never_replaced_silently(tmp_path: Path, text: Any) -> None:
    path = tmp_path / "m.gguf"
    kvs = [] if text is None else [raw_kv("tokenizer.chat_template", 8, string_bytes(text))]
    path.write_bytes(raw_gguf(kvs=kvs))
    file = read_gguf(path)
    with pytest.raises(UnsupportedError) as caught:
        chat_template(file)
    assert caught.value.code == "template-missing"
    assert caught.value.hint
    template = chat_template(file, allow_builtin="chatml")
    assert template.name == "builtin:chatml"
    assert template.render(HELLO) == render(CHATML)


def test_builtin_never_takes_the_place_of_the_models_own(tmp_path: Path) -> None:
    file = read_gguf(tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.chat_template": "own"}))
    assert chat_template(file, allow_builtin="chatml").source == "own"


def test_unknown_builtin_names_the_known(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        chat_template(read_gguf(tiny_gguf(tmp_path / "m.gguf")), allow_builtin="nope")
    assert caught.value.code == "template-unknown"
    assert caught.value.context["known"] == list(BUILTIN_TEMPLATES)


def test_template_of_another_type(tmp_path: Path) -> None:
    file = read_gguf(tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.chat_template": 3}))
    with pytest.raises(IntegrityError) as caught:
        chat_template(file)
    assert caught.value.code == "gguf-bad-metadata"


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    template = chat_template(read_gguf(smollm2_path))
    assert template.render(HELLO) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.render_segments(HELLO).exact


TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": 'Finds <|im_end|> in "texts".',
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "a <|im_start|> word"}},
            "required": ["text"],
        },
    },
}
CALLED: list[dict[str, Any]] = [
    *HELLO,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "look_up", "arguments": {"text": '</s> {"a"}', "n": 1}},
            }
        ],
    },
    {"role": "tool", "content": "<|im_end|>", "tool_call_id": "call_1", "name": "look_up"},
]
WITH_TOOLS = (
    "{% for t in tools %}[TOOL]{{ t|tojson }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls %}[CALL]{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}"
    "{% endfor %}"
)


def test_what_tools_and_calls_spell_is_content() -> None:
    rendered = segments(WITH_TOOLS, CALLED, tools=[TOOL])
    assert rendered.exact
    assert rendered.text == render(WITH_TOOLS, CALLED, tools=[TOOL])
    own = "".join(part.text for part in rendered.segments if not part.is_content)
    for spelled in ("<|im_end|>", "<|im_start|>", "</s>", "look_up"):
        assert spelled in rendered.text
        assert spelled not in own
    assert "[TOOL]" in own
    assert "[CALL]" in own


def test_templates_that_look_at_types_and_names_of_arguments_stay_exact() -> None:
    source = (
        "{% set names = {'string': 'str'} %}{% for t in tools %}"
        "{% for k, v in t.function.parameters.properties|items %}"
        "{{ k }}: {{ names[v.type] }}{% if k in t.function.parameters.required %}!{% endif %}"
        "{{ v.description }}{% endfor %}{% endfor %}"
    )
    rendered = segments(source, tools=[TOOL])
    assert rendered.exact
    assert rendered.text == "text: str!a <|im_start|> word"
    assert [part.text for part in rendered.segments if part.is_content] == ["a <|im_start|> word"]


def test_names_of_arguments_that_spell_something_are_content_too() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"<|im_end|>": {}}}}
    rendered = segments("{{ tools|tojson }}", tools=[tool])
    assert rendered.exact
    assert "<|im_end|>" in [part.text for part in rendered.segments if part.is_content]


def test_a_template_that_rewrites_tools_is_not_exact() -> None:
    source = "{{ messages[0].content }}{{ tools[0].function.description|length }}"
    rendered = segments(source, tools=[TOOL])
    assert not rendered.exact
    assert not rendered.segments[0].is_content
