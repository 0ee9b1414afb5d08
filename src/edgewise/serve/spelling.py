"""Tokens with their log-probabilities, as OpenAI's two shapes write them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from edgewise.core.outcome import TokenLogprob
from edgewise.serve.replies import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob

__all__ = ["chat_logprobs", "completion_logprobs", "spell"]

# What OpenAI writes where a token's probability is beyond what it reports.
_UNLIKELY = -9999.0


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> ChatLogprobs:
    """Return tokens in the shape of ``/v1/chat/completions``."""
    return ChatLogprobs(
        content=[
            ChatLogprob(
                token=token.data.decode("utf-8", "replace"),
                logprob=_UNLIKELY if token.logprob is None else _finite(token.logprob),
                bytes=list(token.data),
                top_logprobs=[
                    TopLogprob(
                        token=data.decode("utf-8", "replace"),
                        logprob=_finite(logprob),
                        bytes=list(data),
                    )
                    for _, data, logprob in token.top
                ],
            )
            for token in tokens
        ]
    )


def completion_logprobs(tokens: Iterable[TokenLogprob], *, start: int = 0) -> CompletionLogprobs:
    """Return tokens in the shape of ``/v1/completions``.

    Args:
        tokens: In order.
        start: Characters of the text in front of the first.
    """
    names: list[str] = []
    logprobs: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    place = start
    for token in tokens:
        names.append(_name(token.data))
        logprobs.append(None if token.logprob is None else _finite(token.logprob))
        tops.append(None if token.logprob is None else _top(token))
        offsets.append(place)
        place += len(decoder.decode(token.data))
    return CompletionLogprobs(
        tokens=names, token_logprobs=logprobs, top_logprobs=tops, text_offset=offsets
    )


def spell(tokens: Iterable[TokenLogprob]) -> str:
    """Return the text that tokens make."""
    return b"".join(token.data for token in tokens).decode("utf-8", "replace")


def _top(token: TokenLogprob) -> dict[str, float]:
    top: dict[str, float] = {}
    for _, data, logprob in token.top:
        top.setdefault(_name(data), _finite(logprob))  # likeliest first: the first one stays
    return top


def _finite(logprob: float) -> float:
    return max(logprob, _UNLIKELY)  # JSON has no minus infinity


def _name(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
