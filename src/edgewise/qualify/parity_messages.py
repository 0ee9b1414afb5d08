"""What the parity worker is asked, and what it answers; nothing heavy is imported here."""

from __future__ import annotations

import msgspec

from edgewise.core.outcome import FinishReason
from edgewise.core.quantity import Quantity
from edgewise.core.request import Message

__all__ = [
    "SERVICE",
    "Answer",
    "AskParams",
    "Distance",
    "DistanceParams",
    "EncodeParams",
    "Encoded",
    "Reading",
    "ScoreParams",
    "Scored",
]

SERVICE = "edgewise.qualify.parity_service:ParityService"


class EncodeParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts to tokenise, as content or with control tokens parsed."""

    texts: tuple[str, ...]
    parse_special: bool = False


class Encoded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text's token ids, or why its engine will not tokenise it."""

    ids: list[int] = []
    refused: str | None = None


class ScoreParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Windows of tokens to run teacher-forced, and the file for their log-probabilities.

    The first ``skip`` tokens of each window are evaluated at once and only the positions after
    them are scored, so that a deep context does not take a step for every token. With ``read``
    the engine is held against itself besides: beginnings of each window are read at once, the
    way a prompt is, and compared with what it said token by token.
    """

    windows: tuple[tuple[int, ...], ...]
    file: str
    skip: int = 0
    read: bool = False


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far what an engine says after a prompt is from what it says token by token.

    Attributes:
        places: How many beginnings were read, each from an empty cache.
        longest_tokens: The longest of them.
        kl_mean_nats: Of the next-token distributions, token by token against at once.
        kl_max_nats: The largest.
        top1_agreement: Share of places with the same likeliest token.
    """

    places: int
    longest_tokens: int
    kl_mean_nats: Quantity
    kl_max_nats: Quantity
    top1_agreement: Quantity


class Scored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file holds float32, ``(positions, vocab_size)``.

    The positions are those after each token but a window's last and the skipped ones.
    """

    positions: int
    vocab_size: int
    seconds: float
    reading: Reading | None = None


class AskParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages to answer greedily."""

    messages: tuple[Message, ...]
    max_tokens: int


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A greedy answer; the token ids are empty where the runtime gives text only."""

    text: str
    tokens: tuple[int, ...] = ()
    finish: FinishReason
    prompt: tuple[int, ...] = ()
    prompt_tokens: int | None


class DistanceParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two files that scoring the same windows left, with the same ``skip``."""

    first: str
    second: str
    windows: tuple[tuple[int, ...], ...]
    skip: int = 0


class Distance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far two sets of next-token distributions are apart, over the same positions."""

    positions: int
    top1_agreement: Quantity
    top1_without_near_ties: Quantity
    kl_mean_nats: Quantity
    kl_p99_nats: Quantity
    kl_max_nats: Quantity
    perplexity: Quantity
    other_perplexity: Quantity
