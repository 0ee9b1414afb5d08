"""A bundle's template gives what the checkpoint's gives, and one begin token where there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.models.template import ChatTemplate
from edgewise.runtimes.litert.chat import (
    ChatSource,
    bundle_template,
    needs_start_token,
    read_chat_source,
)

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe good.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BEGIN = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TURNS = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "é {{ x }}\n"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "Once more."},
]


def source(template: str, bos: str = "<s>") -> ChatSource:
    return ChatSource(
        template=ChatTemplate(source=template, name="test"), bos_token=bos, eos_token='</"s">'
    )


def encoder(adds: bool, begin: str = "<s>"):
    """A tokenizer of characters, in which the begin token is one token."""

    def encode(text: str, add_special: bool) -> list[int]:
        ids = [-1] if adds and add_special else []
        for part in text.split(begin):
            ids += [-1, *map(ord, part)]
        del ids[1 if adds and add_special else 0]  # no begin token in front of the first part
        return ids

    return encode


def rendered(template: str, messages: list[dict[str, Any]]) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    # LiteRT-LM knows neither of the two tokens.
    compiled = environment.from_string(template)
    return compiled.render(messages=messages, add_generation_prompt=True)


@pytest.mark.parametrize(("template", "bos"), [(CHATML, "<|im_start|>"), (BEGIN, "")])
def test_parts_and_text_render_alike(template: str, bos: str) -> None:
    chat = source(template, bos)
    wanted = chat.render(TURNS)
    parts = [
        {**turn, "content": [{"type": "text", "text": c} for c in _halves(turn["content"])]}
        for turn in TURNS
    ]
    ours = bundle_template(chat)
    assert rendered(ours, TURNS) == wanted
    assert rendered(ours, parts) == wanted


def _halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def test_a_begin_token_that_the_engine_leaves_out_of_the_text_is_put_in_front() -> None:
    chat = source(BEGIN)
    assert not rendered(bundle_template(chat), TURNS).startswith("<s>")
    assert needs_start_token(chat, encoder(adds=False))
    assert needs_start_token(chat, encoder(adds=True))


def test_a_begin_token_that_the_template_spells_is_not_doubled() -> None:
    chat = source("<s>" + BEGIN.removeprefix("{{ bos_token }}"))
    assert not needs_start_token(chat, encoder(adds=False))
    assert not needs_start_token(chat, encoder(adds=True))
    chatml = source(CHATML, "<|im_start|>")
    assert not needs_start_token(chatml, encoder(adds=False, begin="<|im_start|>"))


def test_a_begin_token_that_only_the_tokenizer_adds_is_kept() -> None:
    chat = source(CHATML)
    assert needs_start_token(chat, encoder(adds=True))
    assert not needs_start_token(chat, encoder(adds=False))
    assert not needs_start_token(source(CHATML, ""), encoder(adds=True))


def test_the_template_is_read_from_its_file_or_from_the_settings(tmp_path: Path) -> None:
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": BEGIN}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    chat = read_chat_source(tmp_path)
    assert (chat.template.source, chat.bos_token, chat.eos_token) == (BEGIN, "<s>", "</s>")
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    assert read_chat_source(tmp_path).template.source == CHATML


def test_no_template_is_said_and_damage_is_typed(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        read_chat_source(tmp_path)
    assert caught.value.code == "template-missing"
    for text in (b"{", b"[]", b"\xff"):
        (tmp_path / "tokenizer_config.json").write_bytes(text)
        with pytest.raises(IntegrityError):
            read_chat_source(tmp_path)
