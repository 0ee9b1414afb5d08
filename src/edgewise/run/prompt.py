"""From messages to prompt tokens, so that content can never act as a control token.

The template's own text may name control tokens; the content of a message may not, even when it
spells one, and neither may a tool's definition or a call. Where one does, template text and
content are tokenised apart. Whether a begin token is added is decided for each rendered prompt:
never two, never none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgewise.core.bundle import TextSettings
from edgewise.core.request import Message
from edgewise.core.tools import Tool, ToolChoice
from edgewise.errors import InputError
from edgewise.models.template import ChatTemplate, RenderedPrompt
from edgewise.run.special_tokens import SpecialTokens
from edgewise.run.tools import render
from edgewise.run.tools.detect import detect_format
from edgewise.run.tools.formats import ToolFormat

if TYPE_CHECKING:
    from edgewise.runtimes.protocol import Engine

__all__ = ["PromptBuilder"]

# Far above ordinary text (about 4); only long runs of one character come near it.
_MOST_CHARACTERS_A_TOKEN = 200
_AUTO = ToolChoice()


class PromptBuilder:
    """Renders and tokenises conversations for one engine."""

    def __init__(self, engine: Engine, text: TextSettings) -> None:
        self._engine = engine
        self._text = text
        self._template = ChatTemplate(source=text.template_source, name=text.template_name)
        self._special = SpecialTokens(text.special_tokens)
        self._tool_format: ToolFormat | None = None

    def tool_format(self, _tools: Sequence[Tool] = ()) -> ToolFormat:
        """Return how this model spells calls, whichever the tools; found out once, by rendering."""
        if self._tool_format is None:
            form = detect_format(self._template, self._text)
            marks = form.marker_tokens(self._tokenize)
            ids = tuple((mark, token) for token, mark in marks.items())
            self._tool_format = replace(form, token_ids=ids)
        return self._tool_format

    def tokens(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        tool_choice: ToolChoice = _AUTO,
    ) -> list[int]:
        """Return the prompt's token ids, with the answer's turn opened.

        Raises:
            IntegrityError: the template is invalid, unsafe or never ends.
            InputError: the template rejects these messages, or content that spells a control
                token cannot be told apart because the template rewrites content.
        """
        offered = () if tool_choice.mode == "none" else tuple(tools)
        texts = render.texts_of(messages, offered)
        self._require_sane_size(sum(map(len, texts)))
        rendered = self._rendered(messages, offered, tool_choice)
        add_special = self._text.add_bos and not (
            self._text.bos_token and rendered.text.startswith(self._text.bos_token)
        )
        spelled = self._spelled(texts, rendered)
        if spelled is None:
            return self._tokenize(rendered.text, add_special=add_special, parse_special=True)
        if not rendered.exact:
            raise InputError(
                "content-spells-control-token",
                f"a message or tool spells the control token {spelled!r} and this model's "
                "template rewrites content, so the two cannot be kept apart",
                hint=f"remove {spelled!r} from the text",
            )
        ids: list[int] = []
        for index, segment in enumerate(rendered.segments):
            ids += self._tokenize(
                segment.text,
                add_special=add_special and index == 0,
                parse_special=not segment.is_content,
            )
        return ids

    def _rendered(
        self, messages: Sequence[Message], tools: Sequence[Tool], choice: ToolChoice
    ) -> RenderedPrompt:
        given = None
        conversation = [{"role": m.role, "content": m.content} for m in messages]
        if render.needs_format(messages, tools):
            form = self.tool_format()
            if form.by_prompt:
                conversation = render.explained(messages, tools, choice, form)
            else:
                conversation = render.native(messages, form)
                given = render.definitions(tools) or None
        return self._template.render_segments(
            conversation,
            add_generation_prompt=True,
            bos_token=self._text.bos_token,
            eos_token=self._text.eos_token,
            tools=given,
        )

    def _spelled(self, texts: Sequence[str], rendered: RenderedPrompt) -> str | None:
        """Return a control token that the caller's texts spell, if they do."""
        together = "\0".join(texts)
        return next(
            (
                token
                for token in self._special.spelled_in(rendered.text)
                if token in together or _crosses(rendered, token)
            ),
            None,
        )

    def _require_sane_size(self, size: int) -> None:
        """Refuse what cannot fit before it is rendered and tokenised at length."""
        context = self._engine.context_length
        if size > context * _MOST_CHARACTERS_A_TOKEN:
            raise InputError(
                "prompt-too-long",
                f"the messages have {size} characters; a context of {context} tokens cannot hold "
                "them",
                context={"characters": size, "context": context},
                hint="shorten the prompt, or set the model up with a larger context: "
                "edgewise up --context N",
            )

    @property
    def _tokenize(self) -> Callable[..., list[int]]:
        return self._engine.tokenize


def _crosses(rendered: RenderedPrompt, token: str) -> bool:
    """Return whether a token stands in the prompt other than in the template's own text."""
    own = sum(part.text.count(token) for part in rendered.segments if not part.is_content)
    return own != rendered.text.count(token)
