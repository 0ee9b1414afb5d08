"""The plan: does this candidate fit this tier, what would make it fit, how fast can it be.

A verdict is one of four, and each has its reasons: ``fits``; ``fits-with-changes``, naming the
changes; ``does-not-fit``, with the shortfall in bytes at the smallest setting; ``unknown``, with
what is missing. A number that is missing never counts as zero, and a model without shape rules
is ``unknown``, not a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol

import msgspec

from edgewise.core.ledger import DraftMemory, MemoryLedger
from edgewise.core.quantity import Estimated, Quantity, Unknown
from edgewise.core.recipe import KvType, RunConfig
from edgewise.core.tier import Tier
from edgewise.core.units import mib
from edgewise.models.architecture import ModelShape
from edgewise.planner.roofline import DecodeBound, PrefillBound, decode_bound, prefill_bound
from edgewise.runtimes.reports import Footprint

__all__ = [
    "Candidate",
    "Change",
    "DraftCandidate",
    "FootprintModel",
    "Plan",
    "Verdict",
    "make_plan",
]

_SMALLEST_CONTEXT = 512


class Verdict(StrEnum):
    """What the plan says."""

    FITS = "fits"
    FITS_WITH_CHANGES = "fits-with-changes"
    DOES_NOT_FIT = "does-not-fit"
    UNKNOWN = "unknown"


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One change to the run configuration that the verdict depends on."""

    setting: str
    before: str
    after: str
    saves_bytes: int


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to whether and how a candidate fits.

    Attributes:
        verdict: See :class:`Verdict`.
        reasons: In words, why.
        changes: Under ``fits-with-changes``, what to change.
        shortfall_bytes: Under ``does-not-fit``, what is missing at the smallest setting.
        memory: The ledger for the configuration that was asked about.
        decode: Bound of the decode rate.
        prefill: Bound of the prefill rate.
        tier: The tier that was asked about.
        run_config: The configuration that was asked about.
        model: Name and file digest, architecture and size of what was planned.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    changes: tuple[Change, ...] = ()
    shortfall_bytes: int | None = None
    memory: MemoryLedger
    decode: DecodeBound
    prefill: PrefillBound
    tier: Tier
    run_config: RunConfig
    model: dict[str, str | int | None]


class FootprintModel(Protocol):
    """A runtime's own account of what it will hold."""

    def __call__(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return the memory lines of a model under a run configuration."""
        ...


class DraftCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A draft model beside the candidate, run by the same configuration; fields as its own."""

    shape: ModelShape | None
    shape_missing: str = ""
    weights_bytes: int


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What is planned.

    Attributes:
        shape: The model's shape, or ``None`` when there are no rules for it.
        shape_missing: Why there is no shape.
        weights_bytes: Bytes of all tensors, from the tensor index.
        run_config: How it would be run.
        app_bytes: The hosting application's own share.
        facts: Name, digest and so on, for the report.
        draft: A draft model beside it, if any.
    """

    shape: ModelShape | None
    shape_missing: str = ""
    weights_bytes: int
    run_config: RunConfig
    app_bytes: Quantity
    facts: dict[str, str | int | None]
    draft: DraftCandidate | None = None


def make_plan(candidate: Candidate, tier: Tier, footprint: FootprintModel) -> Plan:
    """Return the plan of a candidate on a tier. Pure: reads nothing.

    Raises:
        UnsupportedError: the runtime has no KV cache of the format that is asked.
    """
    ledger = _ledger(candidate, candidate.run_config, tier, footprint)
    verdict, reasons, changes, shortfall = _verdict(candidate, ledger, tier, footprint)
    notes = tuple(_remarks(candidate))
    return Plan(
        verdict=verdict,
        reasons=reasons + notes,
        changes=changes,
        shortfall_bytes=shortfall,
        memory=ledger,
        decode=decode_bound(candidate.shape, ledger.kv_cache_bytes, tier.memory_bandwidth_bytes_s),
        prefill=prefill_bound(
            candidate.shape, candidate.run_config.context_length, tier.compute_gflops
        ),
        tier=tier,
        run_config=candidate.run_config,
        model=candidate.facts,
    )


def _ledger(
    candidate: Candidate, config: RunConfig, tier: Tier, footprint: FootprintModel
) -> MemoryLedger:
    draft, loading = _draft_memory(candidate.draft, config, footprint)
    if candidate.shape is None:
        unknown = Unknown(reason=candidate.shape_missing)
        return MemoryLedger(
            weights_bytes=Estimated(value=candidate.weights_bytes, source="tensor index"),
            kv_cache_bytes=unknown,
            workspace_bytes=unknown,
            runtime_bytes=unknown,
            app_bytes=candidate.app_bytes,
            budget_bytes=tier.memory_budget_bytes,
            draft=draft,
        )
    lines = footprint(candidate.shape, config)
    return MemoryLedger(
        weights_bytes=lines.weights_bytes,
        kv_cache_bytes=lines.kv_cache_bytes,
        workspace_bytes=lines.workspace_bytes,
        runtime_bytes=_more(lines.runtime_bytes, loading),
        app_bytes=candidate.app_bytes,
        budget_bytes=tier.memory_budget_bytes,
        draft=draft,
    )


def _draft_memory(
    draft: DraftCandidate | None, config: RunConfig, footprint: FootprintModel
) -> tuple[DraftMemory | None, int]:
    """Return a draft's lines, and what loading it adds to the runtime's."""
    if draft is None:
        return None, 0
    if draft.shape is None:
        unknown = Unknown(reason=draft.shape_missing)
        weights = Estimated(value=draft.weights_bytes, source="tensor index")
        return DraftMemory(
            weights_bytes=weights, kv_cache_bytes=unknown, workspace_bytes=unknown
        ), 0
    lines = footprint(draft.shape, config)
    return DraftMemory(
        weights_bytes=lines.weights_bytes,
        kv_cache_bytes=lines.kv_cache_bytes,
        workspace_bytes=lines.workspace_bytes,
    ), lines.model_bytes


def _more(line: Quantity, loading: int) -> Quantity:
    if not loading or isinstance(line, Unknown):
        return line
    return Estimated(value=int(line.number) + loading, source=f"{line.source}; two models")


def _verdict(
    candidate: Candidate, ledger: MemoryLedger, tier: Tier, footprint: FootprintModel
) -> tuple[Verdict, tuple[str, ...], tuple[Change, ...], int | None]:
    peak, budget = ledger.peak_bytes, ledger.budget_bytes
    missing = tuple(
        f"{what}: {line.reason}"
        for what, line in (("memory", peak), ("budget", budget))
        if isinstance(line, Unknown)
    )
    if isinstance(peak, Unknown) or isinstance(budget, Unknown):
        return _unknown(candidate, ledger, tier, footprint, missing)
    if peak.number <= budget.number:
        spare = int(budget.number - peak.number)
        why = f"the peak stays {mib(spare)} below the budget of {mib(int(budget.number))}"
        return Verdict.FITS, (why,), (), None
    smallest = int(peak.number)
    for config in _smaller(candidate.run_config):
        tried = _ledger(candidate, config, tier, footprint).peak_bytes
        if isinstance(tried, Unknown):
            continue
        smallest = min(smallest, int(tried.number))
        if tried.number <= budget.number:
            changes = _changes(candidate, config, tier, footprint)
            why = f"as asked it is {mib(int(peak.number - budget.number))} over the budget"
            return Verdict.FITS_WITH_CHANGES, (why,), changes, None
    shortfall = smallest - int(budget.number)
    why = (
        f"even with the smallest KV cache it is {mib(shortfall)} over the budget of "
        f"{mib(int(budget.number))}; a smaller model or weight format is needed"
    )
    return Verdict.DOES_NOT_FIT, (why,), (), shortfall


def _unknown(
    candidate: Candidate,
    ledger: MemoryLedger,
    tier: Tier,
    footprint: FootprintModel,
    missing: tuple[str, ...],
) -> tuple[Verdict, tuple[str, ...], tuple[Change, ...], int | None]:
    ledgers = [ledger]
    ledgers += [_ledger(candidate, c, tier, footprint) for c in _smaller(candidate.run_config)]
    known = min(_known_bytes(one) for one in ledgers)
    budget = ledger.budget_bytes
    if not isinstance(budget, Unknown) and known > budget.number:
        # What is known is too much at any setting; the unknown lines cannot be negative.
        shortfall = known - int(budget.number)
        why = f"the known lines alone are {mib(shortfall)} over the budget"
        return Verdict.DOES_NOT_FIT, (why, *missing), (), shortfall
    return Verdict.UNKNOWN, missing, (), None


def _known_bytes(ledger: MemoryLedger) -> int:
    return sum(int(line.number) for line in ledger.lines.values() if not isinstance(line, Unknown))


def _smaller(config: RunConfig) -> Iterator[RunConfig]:
    """Yield configurations that take less, the least intrusive first.

    The order makes the first that fits minimal: each change in it was tried without the others.
    """
    variants = [config]
    if not config.flash_attention:
        variants.append(msgspec.structs.replace(config, flash_attention=True))
    if config.kv_type is KvType.F16:
        variants.append(msgspec.structs.replace(config, kv_type=KvType.Q8_0, flash_attention=True))
    yield from variants[1:]
    context = config.context_length
    while context > _SMALLEST_CONTEXT:
        context = max(_SMALLEST_CONTEXT, context // 2)
        for variant in variants:
            yield msgspec.structs.replace(variant, context_length=context)


def _changes(
    candidate: Candidate, config: RunConfig, tier: Tier, footprint: FootprintModel
) -> tuple[Change, ...]:
    found = []
    current = candidate.run_config
    for setting in ("flash_attention", "kv_type", "context_length"):
        before, after = getattr(current, setting), getattr(config, setting)
        if before == after:
            continue
        changed = msgspec.structs.replace(current, **{setting: after})
        saved = _peak(candidate, current, tier, footprint) - _peak(
            candidate, changed, tier, footprint
        )
        found.append(
            Change(setting=setting, before=str(before), after=str(after), saves_bytes=saved)
        )
        current = changed
    return tuple(found)


def _peak(candidate: Candidate, config: RunConfig, tier: Tier, footprint: FootprintModel) -> int:
    peak = _ledger(candidate, config, tier, footprint).peak_bytes
    return 0 if isinstance(peak, Unknown) else int(peak.number)


def _remarks(candidate: Candidate) -> Iterator[str]:
    shape, asked = candidate.shape, candidate.run_config.context_length
    if shape is None and candidate.shape_missing:
        yield candidate.shape_missing
    if shape is not None and asked > shape.context_length_trained:
        yield (
            f"a context of {asked} is longer than the {shape.context_length_trained} tokens the "
            "model was trained for; answers beyond that are unreliable"
        )
