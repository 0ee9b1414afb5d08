"""What an answer tells about how sure the model was of it, and what is made of that.

Signals hold no content: counts, probabilities and verdicts only. They are taken from the model's
own distribution at temperature 1, before any rule of sampling, and, where a structure was in
force, also from what that structure left of it.
"""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

import msgspec

from edgewise.errors import InputError

__all__ = ["MARGIN_MAX_NATS", "Escalation", "FinishName", "Signals", "TokenSignals", "Validator"]

# Beyond it nothing has a chance; a float32 still holds the weight of such a token.
MARGIN_MAX_NATS: Final = 80.0

# The values of FinishReason, which stands in a module that imports this one.
FinishName: TypeAlias = Literal["stop", "tool-calls", "length", "deadline", "cancelled"]
Validator: TypeAlias = Literal["passed", "failed", "not-run"]


class TokenSignals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures over the tokens of an answer, without the one that ended it.

    Attributes:
        tokens: How many there are.
        entropy_mean: Mean Shannon entropy of the distributions they were chosen from, divided by
            the logarithm of the vocabulary's size: 0 (certain) to 1 (uniform).
        entropy_max: The largest.
        margin_mean: Mean difference of the log-probabilities of the two likeliest tokens, nats;
            at most :data:`MARGIN_MAX_NATS` each.
        margin_min: The smallest.
        margin_first: That of the first token.
        logprob_mean: Mean log-probability of the chosen tokens, nats.
        logprob_min: The smallest.
    """

    tokens: int
    entropy_mean: float
    entropy_max: float
    margin_mean: float
    margin_min: float
    margin_first: float
    logprob_mean: float
    logprob_min: float

    def features(self, prefix: str = "") -> dict[str, float]:
        """Return the figures by name, with the answer's whole log-probability."""
        values: dict[str, float] = msgspec.structs.asdict(self)
        tokens = values.pop("tokens")
        values["logprob_sum"] = self.logprob_mean * tokens
        values["tokens_log"] = math.log1p(tokens)
        return {prefix + name: value for name, value in values.items()}


class Signals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The signals of one answer.

    Attributes:
        raw: By the model's own distribution; ``None`` for an answer without a token.
        allowed: By what a structure or a call's grammar left of it, over the tokens where that
            was more than one; ``None`` where there was no structure. An answer whose every token
            was forced has 0 tokens, no entropy and the largest margin.
        finish: Why the answer ended.
        prompt_tokens: Tokens of the prompt.
        context_tokens: Tokens that the context holds.
        validator: Whether the answer has its structure, or its calls are valid.
        checks: What the caller checked, e.g. ``{"sources": False}``; added by
            :func:`msgspec.structs.replace`.
        taken_ms: What taking them cost in the worker, measured.
    """

    raw: TokenSignals | None
    allowed: TokenSignals | None = None
    finish: FinishName
    prompt_tokens: int
    context_tokens: int
    validator: Validator = "not-run"
    checks: dict[str, bool] = {}
    taken_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.prompt_tokens < 0 or self.context_tokens < 1:
            raise InputError(
                "signals-invalid",
                f"{self.prompt_tokens} prompt tokens in a context of {self.context_tokens}",
                hint="a context holds at least one token",
            )

    def features(self) -> dict[str, float]:
        """Return all signals as numbers by name, as calibration reads them.

        What is not known is absent: an answer without tokens has no entropy.
        """
        found: dict[str, float] = {}
        if self.raw is not None:
            found |= self.raw.features()
        if self.allowed is not None:
            found |= self.allowed.features("allowed_")
        found["context_share"] = self.prompt_tokens / self.context_tokens
        found["cut"] = float(self.finish not in {"stop", "tool-calls"})
        found["invalid"] = float(self.validator == "failed")
        for name, passed in self.checks.items():
            found[f"check_{name}"] = float(passed)
        return found


class Escalation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a calibration makes of one finished local answer. It sends nothing anywhere.

    An answer is *kept* (``judged`` and not ``suggested``): its error rate is bounded. Or it is
    *offered* (``suggested``): it is shown as unverified, and the application may ask the user
    whether to send a new request elsewhere, which has a route and a consent of its own. Or it is
    *unjudged*: no calibration stands, so that nothing is said about it and nothing is suggested.

    Attributes:
        judged: Whether a calibration that stands applied.
        suggested: Whether asking elsewhere is suggested.
        reasons: Why, in words; at least one.
        score: Estimated probability that the answer is wrong.
        threshold: Largest score that is kept.
        slice: Slice of the calibration that applied.
        target_error: Bound on the error rate of kept answers.
        confidence: How sure that bound is.
        evidence: Digest of the calibration; empty when none stands.
    """

    judged: bool
    suggested: bool
    reasons: tuple[str, ...]
    score: float | None = None
    threshold: float | None = None
    slice: str = ""
    target_error: float | None = None
    confidence: float | None = None
    evidence: str = ""

    def __post_init__(self) -> None:
        if not self.reasons or (self.judged and not self.evidence):
            raise InputError(
                "escalation-invalid",
                "an escalation has a reason, and a judged one names its evidence",
                hint="make it with edgewise.route.calibrate.judge",
            )
