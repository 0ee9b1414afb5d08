"""Chat templates: from messages to the text a model was trained on, without trusting either.

Invariants: a template ends within its limits of time and size or fails with a typed error; it
reaches nothing outside the values it is given; which template was used is always named, and none
ever takes the place of another silently; what came from a message can be told from what the
template wrote, so that a user cannot write control tokens.

Tokenisation, truncation and the decision about BOS are made elsewhere, from the rendered text.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.models.gguf_types import GgufFile
from edgewise.models.template_marks import mark_message, mark_tool, split_marked, unused_marks

__all__ = [
    "BUILTIN_TEMPLATES",
    "ChatTemplate",
    "RenderedPrompt",
    "Segment",
    "chat_template",
]

Message: TypeAlias = Mapping[str, Any]

# The largest template in use is about 16 KiB. Compiling takes up to 2 KiB of memory a character.
SOURCE_CHARS_MAX: Final = 128 << 10
SIZE_LIMIT_CHARS: Final = 2_000_000
TIME_LIMIT_S: Final = 1.0
# Messages are the caller's own data, so these only stop accidents.
MESSAGE_DEPTH_MAX: Final = 64

_TEMPLATE_KEY: Final = "tokenizer.chat_template"

BUILTIN_TEMPLATES: Final[Mapping[str, str]] = {
    "chatml": (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a prompt.

    Attributes:
        text: The part.
        is_content: Whether it came from the caller: the content of a message, a tool's
            definition, or a call. Such text is tokenised without looking for control tokens.
    """

    text: str
    is_content: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A rendered prompt and where its parts came from.

    Attributes:
        text: The whole prompt, the same as :meth:`ChatTemplate.render` returns.
        segments: Parts that make up ``text``.
        exact: Whether the parts tell content from template. When not, because the template
            changes content, there is one part and ``is_content`` is false in it.
    """

    text: str
    segments: tuple[Segment, ...]
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A chat template and where it came from.

    Attributes:
        source: Jinja source.
        name: ``gguf:tokenizer.chat_template`` or ``builtin:...``; shown to the user.
    """

    source: str
    name: str

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the source, as 64 hex digits."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        bos_token: str = "",
        eos_token: str = "",
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
        time_limit_s: float = TIME_LIMIT_S,
        size_limit_chars: int = SIZE_LIMIT_CHARS,
    ) -> str:
        """Return the prompt for a conversation.

        Args:
            messages: JSON-like mappings with ``role`` and ``content``.
            add_generation_prompt: Whether the prompt ends where the assistant starts.
            bos_token: Text of the first token, which some templates write themselves.
            eos_token: Text of the end token.
            tools: JSON-like descriptions of functions, for templates that know them.
            now: What ``strftime_now`` formats; the local time when ``None``.
            time_limit_s: Wall time for compiling and rendering.
            size_limit_chars: Largest prompt.

        Raises:
            InputError: the messages are not JSON-like (``messages-invalid``), or the template
                itself refuses them (``template-rejected``).
            IntegrityError: the template does not compile or fails (``template-invalid``), takes
                too long (``template-too-slow``), makes too much (``template-too-large``), or
                reaches for what it must not (``template-unsafe``).
        """
        from edgewise.models.template_render import render_bounded  # noqa: PLC0415 - jinja2

        if len(self.source) > SOURCE_CHARS_MAX:
            raise IntegrityError(
                "template-too-large",
                f"the chat template {self.name} has {len(self.source)} characters; at most "
                f"{SOURCE_CHARS_MAX} are allowed",
                context={"template": self.name, "source_chars": len(self.source)},
                hint="the file is damaged, or hostile",
            )
        variables = {
            "messages": _plain(messages, "messages"),
            "tools": None if tools is None else _plain(tools, "tools"),
            "documents": None,
            "add_generation_prompt": bool(add_generation_prompt),
            "bos_token": bos_token,
            "eos_token": eos_token,
        }
        return render_bounded(
            self.source,
            self.name,
            variables,
            now=now or datetime.now(tz=UTC).astimezone(),
            time_limit_s=time_limit_s,
            size_limit_chars=size_limit_chars,
        )

    def render_segments(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        bos_token: str = "",
        eos_token: str = "",
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
        time_limit_s: float = TIME_LIMIT_S,
        size_limit_chars: int = SIZE_LIMIT_CHARS,
    ) -> RenderedPrompt:
        """Return the prompt for a conversation, with content told from template.

        Content is every text under ``content``, every ``text`` of its parts, and what is more
        than a plain word in the tools and in the calls of them. It is rendered a second time
        with marks around it; the parts count only when they join to the plain prompt. Arguments
        and limits (for each of the two renders) are those of :meth:`render`.

        Raises:
            InputError: as :meth:`render`.
            IntegrityError: as :meth:`render`.
        """
        render = functools.partial(
            self.render,
            add_generation_prompt=add_generation_prompt,
            bos_token=bos_token,
            eos_token=eos_token,
            now=now or datetime.now(tz=UTC).astimezone(),  # the same in both renders
            time_limit_s=time_limit_s,
            size_limit_chars=size_limit_chars,
        )
        text = render(messages, tools=tools)
        plain = _plain(messages, "messages")
        plain_tools = None if tools is None else _plain(tools, "tools")
        marks = unused_marks(self.source, text, bos_token, eos_token, repr((plain, plain_tools)))
        parts: list[tuple[str, bool]] | None = None
        if marks is not None:
            try:
                marked = render(
                    [mark_message(message, marks) for message in plain],
                    tools=plain_tools and [mark_tool(tool, marks) for tool in plain_tools],
                )
            except (InputError, IntegrityError):
                marked = ""  # the template looks into the content, and minds the marks
            parts = split_marked(marked, marks)
        if parts is None or "".join([part for part, _ in parts]) != text:
            whole = (Segment(text=text, is_content=False),)
            return RenderedPrompt(text=text, segments=whole, exact=False)
        segments = tuple(Segment(text=part, is_content=callers) for part, callers in parts)
        return RenderedPrompt(text=text, segments=segments, exact=True)


def chat_template(file: GgufFile, *, allow_builtin: str | None = None) -> ChatTemplate:
    """Return the chat template of a model.

    Args:
        file: The model.
        allow_builtin: Name of the built-in template to use when the model has none; without
            it there is no replacement.

    Raises:
        InputError: there is no built-in template of that name (``template-unknown``).
        IntegrityError: the model's template is not text (``gguf-bad-metadata``).
        UnsupportedError: the model has no template (``template-missing``).
    """
    if allow_builtin is not None and allow_builtin not in BUILTIN_TEMPLATES:
        raise InputError(
            "template-unknown",
            f"there is no built-in chat template {allow_builtin!r}",
            context={"known": sorted(BUILTIN_TEMPLATES)},
            hint=f"the built-in templates are {', '.join(sorted(BUILTIN_TEMPLATES))}",
        )
    source = file.metadata.get(_TEMPLATE_KEY)
    if source is not None and not isinstance(source, str):
        raise IntegrityError(
            "gguf-bad-metadata",
            f"{_TEMPLATE_KEY} in {file.path} is not text",
            context={"path": file.path, "field": _TEMPLATE_KEY},
            hint="convert the checkpoint again with a current converter",
        )
    if source and not source.isspace():
        return ChatTemplate(source=source, name=f"gguf:{_TEMPLATE_KEY}")
    if allow_builtin is not None:
        return ChatTemplate(
            source=BUILTIN_TEMPLATES[allow_builtin], name=f"builtin:{allow_builtin}"
        )
    raise UnsupportedError(
        "template-missing",
        f"{file.path} has no chat template",
        context={"path": file.path, "known": sorted(BUILTIN_TEMPLATES)},
        hint="use a chat model, or name a built-in template if you know that it fits this one",
    )


def _plain(value: Any, field: str, depth: int = 0) -> Any:
    """Return JSON-like data as plain dictionaries and lists, which a template may hold."""
    if depth > 0 and (value is None or isinstance(value, bool | int | float)):
        return value
    if depth > 0 and isinstance(value, str):
        return str(value)
    if depth < MESSAGE_DEPTH_MAX:
        if isinstance(value, Mapping):
            if field == "messages" and depth == 1 and not isinstance(value.get("role"), str):
                raise _messages_invalid(field, "a message has no role")
            if all(isinstance(key, str) for key in value):
                return {str(k): _plain(v, field, depth + 1) for k, v in value.items()}
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
            if (
                field == "messages"
                and depth == 0
                and not all(isinstance(m, Mapping) for m in value)
            ):
                raise _messages_invalid(field, "a message is not a mapping")
            return [_plain(item, field, depth + 1) for item in value]
    raise _messages_invalid(field, f"a {type(value).__name__} cannot be given to a template")


def _messages_invalid(field: str, why: str) -> InputError:
    return InputError(
        "messages-invalid",
        f"the {field} are not JSON-like data: {why}",
        context={"field": field, "reason": why},
        hint="give a list of mappings with role and content",
    )
