"""What setting a model up is asked, and what became of it."""

from __future__ import annotations

import msgspec

from edgewise.bench.tuner import Tuning
from edgewise.build import BuildReceipt
from edgewise.core.recipe import KvType, Recipe
from edgewise.planner import Plan
from edgewise.qualify import SmokeReport
from edgewise.workflow import planning
from edgewise.workflow.checkpoints import Checkpoint

__all__ = ["UpReport", "UpRequest"]


class UpRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to set up.

    Attributes:
        model: Reference, or ``None`` for the default model.
        context_length: Context to reserve.
        kv_type: KV cache format; ``None`` for the runtime's own default.
        recipe: What the weights become.
        template: Built-in template for a model that has none.
        offline: Use no network.
        measure_again: Probe and tune anew, even where evidence exists.
        runtime: Runtime to build for.
        parallel: Requests that are answered at once.
        draft: Reference of a draft model that guesses tokens ahead, or ``None`` for none.
        draft_recipe: What the draft model's weights become.
    """

    model: str | None = None
    context_length: int = planning.DEFAULT_CONTEXT
    kv_type: KvType | None = None
    recipe: Recipe = Recipe(name="as-shipped")
    template: str | None = None
    offline: bool = False
    measure_again: bool = False
    runtime: str = planning.DEFAULT_RUNTIME
    parallel: int = 1
    draft: str | None = None
    draft_recipe: Recipe = Recipe(name="as-shipped")


class UpReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of it. ``status`` is ``ready``, or the first step that said no.

    Attributes:
        status: ``ready``, ``does-not-fit``, ``fits-with-changes``, ``plan-unknown`` or
            ``not-qualified``.
        reasons: Why, when it is not ``ready``.
        fingerprint: The active deployment's fingerprint.
        previous: The fingerprint that was active before.
        checkpoint: What was fetched.
        plan: The plan for this device.
        receipt: How the artifact was built.
        draft_receipt: How the draft model's was, where there is one.
        tuning: How the run configuration was chosen.
        smoke: The smoke qualification.
        evidence: Digests of all evidence taken or reused, by kind.
    """

    status: str
    reasons: tuple[str, ...] = ()
    fingerprint: str | None = None
    previous: str | None = None
    checkpoint: Checkpoint | None = None
    plan: Plan | None = None
    receipt: BuildReceipt | None = None
    draft_receipt: BuildReceipt | None = None
    tuning: Tuning | None = None
    smoke: SmokeReport | None = None
    evidence: dict[str, str] = {}
