"""``mlc-chat-config.json``: what WebLLM reads beside the weights.

WebLLM has no template engine: it joins fixed strings around the messages. They are found by
rendering the checkpoint's own template with marks for messages, and are only written if putting
them together again gives the template's text exactly. Edgewise itself renders the template and
sends the finished prompt, so it does not depend on them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from edgewise.errors import EdgewiseError, InputError
from edgewise.models.template import ChatTemplate
from edgewise.runtimes.webllm.config import LlamaConfig
from edgewise.runtimes.webllm.formats import Numbers

__all__ = ["CHAT_CONFIG", "PREFILL_CHUNK", "chat_config", "conversation", "stop_token_ids"]

CHAT_CONFIG: Final = "mlc-chat-config.json"
PREFILL_CHUNK: Final = 128

_MARKS = ("\u2983A\u2984", "\u2983B\u2984", "\u2983C\u2984")
_SYSTEM = "\u2983S\u2984"


def chat_config(
    source: Path, config: LlamaConfig, numbers: Numbers, context_length: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the configuration of a checkpoint folder, and notes on what it could not carry.

    Raises:
        InputError: ``generation_config.json`` or ``tokenizer_config.json`` is damaged.
    """
    template = _template(source)
    found = None if template is None else conversation(template)
    notes: tuple[str, ...] = ()
    if found is None:
        notes = (
            "WebLLM's fixed strings cannot express the chat template: give it rendered prompts"
            if template
            else "the checkpoint has no chat template: give WebLLM rendered prompts",
        )
    stops = stop_token_ids(source)
    return {
        "version": "0.1.0",
        "model_type": "llama",
        "quantization": numbers.name,
        "model_config": {
            "hidden_size": config.hidden,
            "intermediate_size": config.intermediate,
            "num_attention_heads": config.heads,
            "num_hidden_layers": config.layers,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.norm_eps,
            "position_embedding_base": config.rope_theta,
            "vocab_size": config.vocab,
            "tie_word_embeddings": config.tied,
            "context_window_size": context_length,
            "prefill_chunk_size": PREFILL_CHUNK,
            "max_batch_size": 1,
            "tensor_parallel_shards": 1,
        },
        "vocab_size": config.vocab,
        "context_window_size": context_length,
        "sliding_window_size": -1,
        "attention_sink_size": -1,
        "prefill_chunk_size": PREFILL_CHUNK,
        "tensor_parallel_shards": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "eos_token_id": list(stops),
        "tokenizer_files": ["tokenizer.json"],
        "tokenizer_info": {
            "token_postproc_method": "byte_level",
            "prepend_space_in_encode": False,
            "strip_space_in_decode": False,
        },
        "conv_template": {
            "name": "edgewise",
            **(found or _bare()),
            "stop_str": [],
            "stop_token_ids": list(stops),
        },
    }, notes


def conversation(template: ChatTemplate) -> dict[str, Any] | None:
    """Return WebLLM's strings for a template, or ``None`` if no fixed strings equal it.

    The strings go around ``system``, then ``user`` and ``assistant`` in turn.
    """
    first, answer, second = _MARKS
    turns = [("user", first), ("assistant", answer), ("user", second)]
    try:
        plain = _render(template, turns)
        with_system = _render(template, [("system", _SYSTEM), *turns])
    except EdgewiseError:
        return None
    if [plain.count(mark) for mark in _MARKS] != [1, 1, 1] or with_system.count(_SYSTEM) != 1:
        return None
    before, rest = plain.split(first)
    between, rest = rest.split(answer)
    again, after = rest.split(second)
    system_before, system_after = with_system.split(_SYSTEM)
    system_after = system_after.split(first)[0]
    role = _common_end(again, before, system_after)
    lead = before[: len(before) - len(role)]
    system_end = system_after[: len(system_after) - len(role)]
    default = _default_system(lead, system_before, system_end)
    if default is None or after != between:
        return None
    return {
        "system_template": f"{system_before}{{system_message}}{system_end}",
        "system_message": default,
        "render_empty_system_message": bool(lead),
        "roles": {"user": role, "assistant": between},
        "role_templates": {"user": "{user_message}", "assistant": "{assistant_message}"},
        "role_content_sep": "",
        "role_empty_sep": "",
        "seps": ["", again[: len(again) - len(role)]],
        "add_role_after_system_message": True,
    }


def stop_token_ids(source: Path) -> tuple[int, ...]:
    """Return the ids that end an answer, from ``generation_config.json`` or ``config.json``.

    Raises:
        InputError: the file is damaged.
    """
    for name in ("generation_config.json", "config.json"):
        value = _json(source / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        if value is not None and all(isinstance(item, int) for item in ids):
            return tuple(ids)
    return ()


def _default_system(lead: str, before: str, after: str) -> str | None:
    """Return the system message that the template writes by itself; ``None`` if it is none."""
    if not lead:
        return ""
    if len(lead) >= len(before) + len(after) and lead.startswith(before) and lead.endswith(after):
        return lead[len(before) : len(lead) - len(after)]
    return None


def _common_end(*texts: str) -> str:
    """Return the longest common end that begins at a tag or line, so that pieces tokenise alike."""
    shortest = min(texts, key=len)
    for start in range(len(shortest)):
        end = shortest[start:]
        if end[0] in "<[\n" and all(text.endswith(end) for text in texts):
            return end
    return ""


def _bare() -> dict[str, Any]:
    return {
        "system_template": "{system_message}",
        "system_message": "",
        "roles": {"user": "", "assistant": ""},
        "role_templates": {"user": "{user_message}", "assistant": "{assistant_message}"},
        "role_content_sep": "",
        "role_empty_sep": "",
        "seps": [""],
        "add_role_after_system_message": True,
    }


def _render(template: ChatTemplate, turns: list[tuple[str, str]]) -> str:
    return template.render([{"role": role, "content": text} for role, text in turns])


def _template(source: Path) -> ChatTemplate | None:
    found = _json(source / "tokenizer_config.json").get("chat_template")
    if isinstance(found, str):
        return ChatTemplate(source=found, name="tokenizer_config.json:chat_template")
    beside = source / "chat_template.jinja"
    if beside.is_file():
        return ChatTemplate(source=beside.read_text(encoding="utf-8"), name=beside.name)
    return None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(
            "config-unreadable", f"{path.name} of the checkpoint cannot be read: {error}"
        ) from error
    return found if isinstance(found, dict) else {}
