"""One table of everything that has been built from a checkpoint, from evidence alone.

A figure that nobody has taken is unknown, and says what would take it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from edgewise.bench.artifact import ArtifactBench, bench_artifact
from edgewise.build import BuildReceipt
from edgewise.core.quantity import Quantity, Unknown
from edgewise.errors import EdgewiseError
from edgewise.qualify.parity import ParityReport, References
from edgewise.qualify.parity_gate import GateResult
from edgewise.runtimes.reports import PartitionReport
from edgewise.workflow.artifacts import label, reference_for, subject
from edgewise.workflow.building import builds
from edgewise.workflow.checkpoints import fetch_checkpoint
from edgewise.workflow.context import Context, Step
from edgewise.workflow.parity import ParityRequest, parity_of

__all__ = ["CompareRequest", "Comparison", "Row", "compare"]

BENCH_KIND = "artifact-bench"
_NOT_TAKEN = Unknown(reason="not measured yet: edgewise compare --measure")


class CompareRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to compare.

    Attributes:
        model: Checkpoint reference, or ``None`` for the default model.
        measure: Take what is missing, here and now.
        again: With ``measure``, take it also where there is evidence.
        runtimes: Only these; all when empty.
        windows: Stretches of text for parity.
        window_tokens: Tokens of each.
        text_file: Text for parity; see :class:`~edgewise.workflow.parity.ParityRequest`.
    """

    model: str | None = None
    measure: bool = False
    again: bool = False
    runtimes: tuple[str, ...] = ()
    windows: int = 4
    window_tokens: int = 64
    text_file: str | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One artifact.

    Attributes:
        label: Runtime and format.
        runtime: Its runtime.
        version: The runtime's version.
        formats: Weights, activations, embedding and head, exactly.
        double_quantised: Whether quantised weights were quantised again.
        fingerprint: The build's part of the deployment fingerprint; evidence is kept under it.
        sha256: The artifact.
        size_bytes: Size of its files.
        build_seconds: Time of the export.
        build_peak_bytes: Peak of the exporter.
        load_ms, ttft_ms, decode_tok_s, peak_resident_bytes: See
            :class:`~edgewise.bench.artifact.ArtifactBench`.
        kl_mean_nats: Against the checkpoint in F32.
        top1_agreement: Against the checkpoint in F32.
        gate: What the parity gate says.
        delegated: Operators that run where they were asked to.
        fallbacks: Operators that do not, by name.
        fallback_count: How many those are.
        evidence: Digests of everything above.
        problems: Why a figure could not be taken.
    """

    label: str
    runtime: str
    version: str
    formats: str
    double_quantised: bool
    fingerprint: str
    sha256: str
    size_bytes: int
    build_seconds: Quantity
    build_peak_bytes: Quantity
    load_ms: Quantity = _NOT_TAKEN
    ttft_ms: Quantity = _NOT_TAKEN
    decode_tok_s: Quantity = _NOT_TAKEN
    peak_resident_bytes: Quantity = _NOT_TAKEN
    kl_mean_nats: Quantity = _NOT_TAKEN
    top1_agreement: Quantity = _NOT_TAKEN
    gate: GateResult | None = None
    delegated: int | None = None
    fallbacks: tuple[str, ...] = ()
    fallback_count: int | None = None
    evidence: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class Comparison(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All artifacts of a checkpoint on a device."""

    checkpoint: str
    checkpoint_sha256: str
    device: str
    rows: tuple[Row, ...]


def compare(context: Context, request: CompareRequest) -> Comparison:
    """Return the table. Without ``measure`` nothing is loaded and nothing is run.

    Raises:
        InputError: the reference is wrong.
        EdgewiseError: the checkpoint cannot be had.
    """
    checkpoint = fetch_checkpoint(context, request.model)
    rows = []
    with context.home.work_folder() as work:
        references = References(work)
        for digest, receipt in _newest(builds(context, checkpoint.sha256)):
            if request.runtimes and receipt.runtime not in request.runtimes:
                continue
            problems = _measure(context, receipt, request, references) if request.measure else ()
            rows.append(_row(context, digest, receipt, problems))
    return Comparison(
        checkpoint=checkpoint.reference,
        checkpoint_sha256=checkpoint.sha256,
        device=context.device.digest,
        rows=tuple(rows),
    )


def _newest(known: list[tuple[str, BuildReceipt]]) -> list[tuple[str, BuildReceipt]]:
    """Return the newest build of each runtime and format, in the order of the first."""
    newest: dict[str, tuple[str, BuildReceipt]] = {}
    for digest, receipt in known:
        newest[label(receipt)] = (digest, receipt)
    return list(newest.values())


def _measure(
    context: Context, receipt: BuildReceipt, request: CompareRequest, references: References
) -> tuple[str, ...]:
    problems = []
    if request.again or _bench(context, receipt) is None:
        try:
            _take_bench(context, receipt)
        except EdgewiseError as error:
            problems.append(f"not timed: {error}")
    if request.again or _parity(context, receipt) is None:
        try:
            first = reference_for(context, receipt)
            parity_of(
                context,
                first,
                receipt,
                ParityRequest(
                    first=label(first),
                    second=label(receipt),
                    text_file=request.text_file,
                    windows=request.windows,
                    window_tokens=request.window_tokens,
                ),
                references,
            )
        except EdgewiseError as error:
            problems.append(f"not compared: {error}")
    for problem in problems:
        message = f"{label(receipt)}: {problem}"
        context.report(Step(stage="compare", status="note", message=message))
    return tuple(problems)


def _take_bench(context: Context, receipt: BuildReceipt) -> None:
    context.report(Step(stage="measure", status="start", message=label(receipt)))
    what = subject(context, receipt)
    bench = bench_artifact(
        what.runtime, what.artifact, what.run_config, what.text, device=context.device.digest
    )
    context.record(BENCH_KIND, receipt.fingerprint, bench)


def _bench(context: Context, receipt: BuildReceipt) -> tuple[str, ArtifactBench] | None:
    found = context.evidence.latest(
        kind=BENCH_KIND, subject=receipt.fingerprint, device=context.device.digest
    )
    if found is None:
        return None
    return found[0], msgspec.convert(found[1].figures, type=ArtifactBench)


def _parity(context: Context, receipt: BuildReceipt) -> tuple[str, ParityReport] | None:
    found = context.evidence.latest(
        kind="parity", subject=receipt.fingerprint, device=context.device.digest
    )
    if found is None:
        return None
    return found[0], msgspec.convert(found[1].figures, type=ParityReport)


def _row(context: Context, digest: str, receipt: BuildReceipt, problems: tuple[str, ...]) -> Row:
    bench, parity = _bench(context, receipt), _parity(context, receipt)
    partition = receipt.partition if bench is None else bench[1].partition
    distance = None if parity is None else parity[1].distance
    figures: dict[str, Any] = {}
    if bench is not None:
        for name in ("load_ms", "ttft_ms", "decode_tok_s", "peak_resident_bytes"):
            figures[name] = getattr(bench[1], name)
    if distance is not None:
        figures["kl_mean_nats"] = distance.kl_mean_nats
        figures["top1_agreement"] = distance.top1_agreement
    elif parity is not None:
        why = Unknown(reason="; ".join(parity[1].missing))
        figures["kl_mean_nats"] = figures["top1_agreement"] = why
    return Row(
        label=label(receipt),
        runtime=receipt.runtime,
        version=receipt.runtime_version,
        formats="as it was" if receipt.resolved is None else receipt.resolved.words,
        double_quantised=receipt.double_quantised,
        fingerprint=receipt.fingerprint,
        sha256=receipt.sha256,
        size_bytes=receipt.size_bytes,
        build_seconds=receipt.seconds,
        build_peak_bytes=receipt.peak_memory_bytes,
        gate=None if parity is None else parity[1].gate,
        **_placement(partition),
        evidence=(digest, *(found[0] for found in (bench, parity) if found is not None)),
        problems=problems,
        **figures,
    )


def _placement(partition: PartitionReport | None) -> dict[str, Any]:
    if partition is None:
        return {}
    return {
        "delegated": partition.delegated,
        "fallbacks": partition.fallbacks,
        "fallback_count": partition.fallen_back,
    }
