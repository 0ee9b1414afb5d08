"""From messages to prompt tokens, so that content can never act as a control token.

The template's own text may name control tokens; the content of a message may not, even when it
spells one. Where it does, template text and content are tokenised apart. Whether a begin token
is added is decided for each rendered prompt: never two, never none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgewise.core.bundle import TextSettings
from edgewise.core.request import Message
from edgewise.errors import InputError
from edgewise.models.template import ChatTemplate

if TYPE_CHECKING:
    from edgewise.runtimes.protocol import Engine

__all__ = ["PromptBuilder"]

# Far above ordinary text (about 4); only long runs of one character come near it.
_MOST_CHARACTERS_A_TOKEN = 200


class PromptBuilder:
    """Renders and tokenises conversations for one engine."""

    def __init__(self, engine: Engine, text: TextSettings) -> None:
        self._engine = engine
        self._text = text
        self._template = ChatTemplate(source=text.template_source, name=text.template_name)

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt's token ids, with the answer's turn opened.

        Raises:
            IntegrityError: the template is invalid, unsafe or never ends.
            InputError: the template rejects these messages, or content that spells a control
                token cannot be told apart because the template rewrites content.
        """
        self._require_sane_size(messages)
        rendered = self._template.render_segments(
            [{"role": m.role, "content": m.content} for m in messages],
            add_generation_prompt=True,
            bos_token=self._text.bos_token,
            eos_token=self._text.eos_token,
        )
        add_special = self._text.add_bos and not (
            self._text.bos_token and rendered.text.startswith(self._text.bos_token)
        )
        spelled = [t for t in self._text.special_tokens if any(t in m.content for m in messages)]
        if not spelled:
            return self._tokenize(rendered.text, add_special=add_special, parse_special=True)
        if not rendered.exact:
            raise InputError(
                "content-spells-control-token",
                f"a message spells the control token {spelled[0]!r} and this model's template "
                "rewrites content, so the two cannot be kept apart",
                hint=f"remove {spelled[0]!r} from the text",
            )
        ids: list[int] = []
        for index, segment in enumerate(rendered.segments):
            ids += self._tokenize(
                segment.text,
                add_special=add_special and index == 0,
                parse_special=not segment.is_content,
            )
        return ids

    def _require_sane_size(self, messages: Sequence[Message]) -> None:
        """Refuse what cannot fit before it is rendered and tokenised at length."""
        size = sum(len(message.content) for message in messages)
        context = self._engine.context_length
        if size > context * _MOST_CHARACTERS_A_TOKEN:
            raise InputError(
                "prompt-too-long",
                f"the messages have {size} characters; a context of {context} tokens cannot hold "
                "them",
                context={"characters": size, "context": context},
                hint="shorten the prompt, or use a larger context: --context N",
            )

    @property
    def _tokenize(self) -> Callable[..., list[int]]:
        return self._engine.tokenize
