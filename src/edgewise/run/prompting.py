"""From a request to prompt tokens: template, tools, context policy, pinned part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgewise.core.bundle import TextSettings
from edgewise.core.outcome import Event
from edgewise.core.request import DEFAULT_MAX_TOKENS, ContextPolicy, Message
from edgewise.core.structure import Structure
from edgewise.run.messages import GenerateParams
from edgewise.run.prompt import PromptBuilder

if TYPE_CHECKING:
    from edgewise.run.context import Summaries, TokenCounts
    from edgewise.run.tools import CallParser
    from edgewise.runtimes.protocol import Engine

__all__ = ["Prompt", "Prompter", "Summarise"]

# Turns to be replaced and the most tokens to do it in; returns the summary.
Summarise = Callable[[Sequence[Message], int], str]

_PROBES: Final = ("a", "B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request's prompt.

    Attributes:
        tokens: Token ids.
        pinned: How many of them belong to the system messages alone, 0 when that is not known.
        events: What was done to the conversation.
    """

    tokens: list[int]
    pinned: int = 0
    events: tuple[Event, ...] = ()


class Prompter:
    """Makes prompts for one engine."""

    def __init__(self, engine: Engine, text: TextSettings, summarise: Summarise) -> None:
        """Compile the template; ``summarise`` is asked by the policy of that name."""
        self._engine = engine
        self._make_summary = summarise
        self._summaries: Summaries | None = None
        self._counts: TokenCounts | None = None
        self._text = text
        self._builder = PromptBuilder(engine, text)
        self._pinned: tuple[tuple[Message, ...], list[int]] = ((), [])

    def prompt(self, params: GenerateParams) -> Prompt:
        """Return the prompt of a request.

        Raises:
            InputError: it does not fit and the policy does not make it fit, or it cannot be
                rendered.
            IntegrityError: the template is not sound.
        """
        if params.prompt is not None:
            return Prompt(tokens=self._raw(params.prompt))
        rendered = self._render(params)
        events: tuple[Event, ...] = self._tool_events(params)
        if params.context_policy is ContextPolicy.REJECT:
            tokens = rendered(params.messages)
        else:
            tokens, applied = self._fit(params, rendered)
            events += applied
        return Prompt(tokens=tokens, pinned=self._pinned_tokens(params, tokens), events=events)

    def forced_structure(self, params: GenerateParams) -> Structure | None:
        """Return the structure that a required tool call has."""
        if params.tool_choice.mode != "required":
            return None
        from edgewise.run import tools  # noqa: PLC0415 - few requests need it

        form = self._builder.tool_format(params.tools)
        return tools.structure_for(form, params.tools, params.tool_choice)

    def call_parser(self, params: GenerateParams) -> CallParser | None:
        """Return what finds tool calls in the answer, ``None`` when none may be made."""
        if not params.tools or params.tool_choice.mode == "none":
            return None
        from edgewise.run.tools import CallParser  # noqa: PLC0415 - few requests need it

        form = self._builder.tool_format(params.tools)
        return CallParser(form, params.tools, params.tool_choice)

    def conversation(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt of plain messages."""
        return self._builder.tokens(messages)

    def _raw(self, prompt: str | tuple[int, ...]) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        return self._engine.tokenize(prompt, add_special=self._text.add_bos, parse_special=False)

    def _render(self, params: GenerateParams) -> Callable[[Sequence[Message]], list[int]]:
        if not params.tools or params.tool_choice.mode == "none":
            return self._builder.tokens

        def render(messages: Sequence[Message]) -> list[int]:
            return self._builder.tokens(
                messages, tools=params.tools, tool_choice=params.tool_choice
            )

        return render

    def _tool_events(self, params: GenerateParams) -> tuple[Event, ...]:
        if not params.tools or params.tool_choice.mode == "none":
            return ()
        return self._builder.tool_format(params.tools).events

    def _fit(
        self,
        params: GenerateParams,
        render: Callable[[Sequence[Message]], list[int]],
    ) -> tuple[list[int], tuple[Event, ...]]:
        from edgewise.run.context import (  # noqa: PLC0415 - few requests need it
            Summaries,
            TokenCounts,
            fit,
        )

        if self._summaries is None or self._counts is None:
            self._summaries = Summaries(self._make_summary)
            self._counts = TokenCounts(self._tokenize)
        context = self._engine.context_length
        answer = params.max_tokens or min(DEFAULT_MAX_TOKENS, context // 4)
        fitted = fit(
            params.messages,
            policy=params.context_policy,
            room=context - answer,
            render=render,
            tokenize=self._tokenize,
            detokenize=self._detokenize,
            summarise=self._summaries,
            count=self._counts,
        )
        return fitted.tokens, fitted.events

    def _tokenize(self, text: str) -> list[int]:
        return self._engine.tokenize(text, add_special=False, parse_special=False)

    def _detokenize(self, tokens: list[int]) -> str:
        return b"".join(map(self._engine.token_bytes, tokens)).decode("utf-8", "replace")

    def _pinned_tokens(self, params: GenerateParams, tokens: list[int]) -> int:
        """Return how many tokens the leading system messages take, whatever follows them."""
        count = next((i for i, m in enumerate(params.messages) if m.role != "system"), 0)
        if count == 0 or params.tools:
            return 0
        leading = tuple(params.messages[:count])
        if self._pinned[0] != leading:
            first, second = (
                self._builder.tokens((*leading, Message(role="user", content=probe)))
                for probe in _PROBES
            )
            same = next(
                (
                    i
                    for i, pair in enumerate(zip(first, second, strict=False))
                    if len(set(pair)) > 1
                ),
                0,
            )
            self._pinned = (leading, first[:same])
        prefix = self._pinned[1]
        return len(prefix) if tokens[: len(prefix)] == prefix else 0
