"""The chat template of a LiteRT-LM bundle, and whether a begin token goes in front of it.

LiteRT-LM gives a template every content as a list of parts, and renders ``bos_token`` as nothing.
Templates from checkpoints mostly join content as text and would fail, or repeat it as a list.
The bundle's template therefore begins with lines that turn the parts back into text; the rest is
the checkpoint's own. The engine's ``start_token`` is put in front of whatever was rendered, so
it is set only where the model's tokenizer puts a begin token that the rendering does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.models.template import ChatTemplate

__all__ = ["ChatSource", "bundle_template", "needs_start_token", "read_chat_source"]

TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"

# Only text parts: a part without text makes the runtime's template engine fail, and say so.
_PARTS_TO_TEXT = (
    "{%- set edgewise = namespace(messages=[], text='') -%}"
    "{%- for message in messages -%}"
    "{%- if message['content'] is string -%}"
    "{%- set edgewise.text = message['content'] -%}"
    "{%- else -%}"
    "{%- set edgewise.text = '' -%}"
    "{%- for part in message['content'] -%}"
    "{%- set edgewise.text = edgewise.text ~ part['text'] -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{%- set edgewise.messages = edgewise.messages + "
    "[dict(message, content=edgewise.text)] -%}"
    "{%- endfor -%}"
    "{%- set messages = edgewise.messages -%}"
)

_PROBE = ({"role": "user", "content": "x"},)
_PROBE_TIME = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSource:
    """What a checkpoint says about its conversations.

    Attributes:
        template: Its template.
        bos_token: Text of the begin token, empty if there is none.
        eos_token: Text of the end token, empty if there is none.
    """

    template: ChatTemplate
    bos_token: str
    eos_token: str

    def render(self, messages: Sequence[dict[str, Any]], *, now: datetime | None = None) -> str:
        """Return the prompt the checkpoint's template makes, with the answer's turn opened.

        Raises:
            InputError: the template refuses the messages.
            IntegrityError: the template is invalid or never ends.
        """
        return self.template.render(
            messages, bos_token=self.bos_token, eos_token=self.eos_token, now=now
        )

    def prompt_ids(
        self,
        messages: Sequence[dict[str, Any]],
        encode: Callable[[str, bool], list[int]],
    ) -> list[int]:
        """Return the prompt's token ids, with one begin token where the model has one.

        Args:
            messages: The conversation.
            encode: ``(text, add_special) -> ids``, control tokens recognised.

        Raises:
            InputError: the template refuses the messages.
            IntegrityError: the template is invalid or never ends.
        """
        text = self.render(messages)
        written = bool(self.bos_token) and text.startswith(self.bos_token)
        return encode(text, not written)


def read_chat_source(folder: Path) -> ChatSource:
    """Return what a checkpoint's folder says about its conversations.

    Raises:
        InputError: it has no chat template.
        IntegrityError: its tokenizer settings are no JSON object.
    """
    settings = _settings(folder / SETTINGS_FILE)
    file = folder / TEMPLATE_FILE
    source = _text(file) if file.is_file() else settings.get("chat_template")
    if not isinstance(source, str) or not source.strip():
        raise UnsupportedError(
            "template-missing",
            "the checkpoint has no chat template, and LiteRT-LM cannot run without one",
            context={"searched": [TEMPLATE_FILE, SETTINGS_FILE]},
            hint="add chat_template.jinja to the checkpoint, or build for the litert runtime",
        )
    return ChatSource(
        template=ChatTemplate(source=source, name=f"checkpoint:{TEMPLATE_FILE}"),
        bos_token=_token(settings.get("bos_token")),
        eos_token=_token(settings.get("eos_token")),
    )


def bundle_template(source: ChatSource) -> str:
    """Return the template to put into a bundle: the checkpoint's, made to take parts."""
    eos = json.dumps(source.eos_token, ensure_ascii=False)
    settings = f"{{%- set bos_token = '' -%}}{{%- set eos_token = {eos} -%}}"
    return f"{settings}{_PARTS_TO_TEXT}{source.template.source}"


def needs_start_token(source: ChatSource, encode: Callable[[str, bool], list[int]]) -> bool:
    """Return whether the engine must put the begin token in front of what it renders.

    Args:
        source: The checkpoint's template and tokens.
        encode: ``(text, add_special) -> ids``, control tokens recognised.

    Raises:
        InputError: the template refuses a plain user message.
        IntegrityError: the template is invalid or never ends.
    """
    if not source.bos_token:
        return False
    begin = encode(source.bos_token, False)
    if len(begin) != 1:
        return False
    wanted = source.prompt_ids(_PROBE, encode)[:1] == begin
    rendered = source.template.render(
        _PROBE, bos_token="", eos_token=source.eos_token, now=_PROBE_TIME
    )
    return wanted and not rendered.startswith(source.bos_token)


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(_text(path))
    except ValueError as error:
        raise IntegrityError(
            "checkpoint-damaged", f"{path.name} is no JSON: {error}", context={"file": path.name}
        ) from error
    if not isinstance(settings, dict):
        raise IntegrityError(
            "checkpoint-damaged", f"{path.name} is no JSON object", context={"file": path.name}
        )
    return settings


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise IntegrityError(
            "checkpoint-damaged", f"{path.name} is not UTF-8", context={"file": path.name}
        ) from error


def _token(value: Any) -> str:
    """Return a token's text; some checkpoints write a mapping with ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
