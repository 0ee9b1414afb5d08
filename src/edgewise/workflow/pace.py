"""How long an answer of a deployment is expected to take here, from what was measured of it.

Invariant: the rates are those of this very artifact, set up like this, on this device; where they
are not known, neither is the time. The model is taken for loaded, and nothing is guessed ahead.
"""

from __future__ import annotations

from typing import Final

import msgspec

from edgewise.bench.tuner import Trial, Tuning
from edgewise.core.bundle import Bundle
from edgewise.core.quantity import Estimated, Quantity, Unknown
from edgewise.core.request import Request
from edgewise.route.cloud_rules import characters
from edgewise.workflow.context import Context

__all__ = ["Pace"]

# A rule of thumb for texts in Latin script; the tokens are counted when it runs, after the route.
_CHARACTERS_PER_TOKEN: Final = 4
_LEAST: Final = 1e-3  # tokens per second that a device may have
_MOST: Final = 1e7


class Pace:
    """Says for each request of one deployment how long its answer may take.

    The rates are read once: they belong to the fingerprint. Callable from any thread.
    """

    def __init__(self, context: Context, bundle: Bundle | None) -> None:
        self._context = context
        self._bundle = bundle
        self._read = False
        self._trial: Trial | None = None

    def __call__(self, request: Request) -> Quantity:
        """Return the seconds until an answer of the longest length asked for, estimated."""
        if self._bundle is None:
            return Unknown(reason="no deployment is active")
        if request.max_tokens is None:
            return Unknown(reason="the request does not say how long its answer may be")
        if not self._read:
            self._trial, self._read = _measured(self._context, self._bundle), True
        if self._trial is None:
            return Unknown(reason="nobody measured this deployment on this device")
        decode, prefill = self._trial.decode_tok_s, self._trial.prefill_tok_s
        if isinstance(decode, Unknown) or isinstance(prefill, Unknown):
            return Unknown(reason="its rate could not be measured")
        if not all(_LEAST <= rate.number <= _MOST for rate in (decode, prefill)):
            return Unknown(reason="its measured rate is not a plausible one")
        prompt = _prompt_tokens(request)
        return Estimated(
            value=round(request.max_tokens / decode.number + prompt / prefill.number, 3),
            source=f"estimated: up to {request.max_tokens} tokens at {decode.number:.3g} tok/s and "
            f"about {prompt} of the prompt at {prefill.number:.3g} tok/s, as measured here",
        )


def _prompt_tokens(request: Request) -> int:
    if isinstance(request.prompt, tuple):
        return len(request.prompt)
    length = characters(request) if request.prompt is None else len(request.prompt)
    return -(-length // _CHARACTERS_PER_TOKEN)


def _measured(context: Context, bundle: Bundle) -> Trial | None:
    """Return the newest trial of this artifact with this configuration on this device."""
    deployment = bundle.deployment
    device = context.device.digest
    found = context.evidence.find(kind="tuning", subject=deployment.artifact.sha256)
    for _, piece in reversed(found):
        if piece.device != device:
            continue
        try:
            trials = msgspec.convert(piece.figures, type=Tuning).trials
        except msgspec.ValidationError:  # of another version
            continue
        for trial in trials:
            if trial.run_config == deployment.compute.run_config and _positive(trial):
                return trial
    return None


def _positive(trial: Trial) -> bool:
    rates = (trial.decode_tok_s, trial.prefill_tok_s)
    return all(isinstance(rate, Unknown) or rate.number > 0 for rate in rates)
