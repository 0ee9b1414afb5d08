"""WebLLM's fixed strings: found for templates that they can express, and for no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgewise.models.template import BUILTIN_TEMPLATES, ChatTemplate
from edgewise.runtimes.webllm import tiny
from edgewise.runtimes.webllm.chat_config import chat_config, conversation, stop_token_ids
from edgewise.runtimes.webllm.config import read_config
from edgewise.runtimes.webllm.formats import numbers

CHATML = BUILTIN_TEMPLATES["chatml"]
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind<|im_end|>\n{% endif %}"
)
COUNTING = "{% for m in messages %}[{{ loop.index }}]{{ m['content'] }}{% endfor %}>"
REPEATING = "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}"


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source=source, name="test")


def joined(found: dict[str, Any], system: str | None, turns: list[str]) -> str:
    """What WebLLM makes of its strings: system, then user and assistant in turn."""
    told = found["system_message"] if system is None else system
    text = ""
    if told or found["render_empty_system_message"]:
        text = found["system_template"].replace("{system_message}", told)
    roles = ("user", "assistant")
    for index, turn in enumerate(turns):
        text += found["roles"][roles[index % 2]] + turn + found["seps"][index % len(found["seps"])]
    return text + str(found["roles"]["assistant"])


@pytest.mark.parametrize("source", [CHATML, DEFAULT_SYSTEM + CHATML])
@pytest.mark.parametrize("system", [None, "Be brief"])
@pytest.mark.parametrize("turns", [["Hi"], ["Hi", "Hello", "Bye"]])
def test_the_strings_give_the_templates_own_text(
    source: str, system: str | None, turns: list[str]
) -> None:
    found = conversation(template(source))
    assert found is not None
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    assert joined(found, system, turns) == template(source).render(messages)


@pytest.mark.parametrize("source", [COUNTING, REPEATING, "{{ raise_exception('no') }}"])
def test_a_template_that_they_cannot_express_has_none(source: str) -> None:
    assert conversation(template(source)) is None


def test_the_configuration_names_what_webllm_reads(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path)
    config = read_config(folder)
    found, notes = chat_config(folder, config, numbers("q0f32"), 256)
    assert notes == ()
    assert found["context_window_size"] == 256
    assert found["vocab_size"] == config.vocab
    assert found["conv_template"]["stop_token_ids"] == [0, 2]
    assert found["tokenizer_files"] == ["tokenizer.json"]
    assert 0 < found["top_p"] <= 1


def test_a_checkpoint_without_a_template_says_so(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    _, notes = chat_config(folder, read_config(folder), numbers("q0f32"), 256)
    assert "no chat template" in notes[0]


def test_end_tokens_come_from_the_generation_config_first(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path)
    assert stop_token_ids(folder) == (0, 2)
    (folder / "generation_config.json").unlink()
    assert stop_token_ids(folder) == (2,)
