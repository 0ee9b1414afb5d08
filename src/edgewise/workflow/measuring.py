"""Measure what a plan predicted: load the model, fill its context, read the peak."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgewise.bench.messages import SERVICE, FillParams
from edgewise.core.quantity import Estimated, Measured, Quantity, Unknown
from edgewise.core.recipe import RunConfig
from edgewise.device.process import peak_resident_bytes
from edgewise.errors import AdapterError, UnsupportedError
from edgewise.planner import Plan
from edgewise.run.messages import Loaded, LoadParams
from edgewise.runtimes.launch import start_worker
from edgewise.runtimes.reports import MemoryReport
from edgewise.workflow.checkpoints import describe, text_settings
from edgewise.workflow.context import Context, Step
from edgewise.workflow.planning import PlanRequest, locate

__all__ = ["MeasuredMemory", "measure_memory"]


class MeasuredMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured beside what was planned.

    Attributes:
        worker: The worker's report, with the context full.
        app_bytes: Peak of this process.
        peak_bytes: Both together.
        planned_bytes: The plan's peak.
        planned_over_measured_ratio: 1 is a perfect plan.
        run_config: The configuration that was run.
    """

    worker: MemoryReport
    app_bytes: Quantity
    peak_bytes: Quantity
    planned_bytes: int
    planned_over_measured_ratio: float
    run_config: RunConfig


def measure_memory(context: Context, request: PlanRequest, plan: Plan) -> MeasuredMemory:
    """Return the memory that the planned configuration takes on this device.

    Raises:
        UnsupportedError: the plan is for another device, or its peak is unknown.
        AdapterError: the model cannot be run, or this system reports no peak.
    """
    planned = plan.memory.peak_bytes
    if isinstance(planned, Unknown):
        raise UnsupportedError("plan-unknown", f"nothing to compare with: {planned.reason}")
    path, _ = locate(context, request.model, offline=request.offline)
    context.report(Step(stage="measure", status="start", message="filling the context"))
    report = _fill(context, request, plan, path)
    app, worker = peak_resident_bytes(), report.peak_resident_bytes
    if isinstance(app, Unknown) or isinstance(worker, Unknown):
        raise AdapterError("memory-unreadable", "this system reports no peak of a process")
    total = int(app.number + worker.number)
    source = "worker's and this process's peaks together"
    if not isinstance(plan.memory.app_bytes, Measured):
        total = int(worker.number) + int(getattr(plan.memory.app_bytes, "value", 0))
        source = "worker's peak and the declared share of the application"
    measured = MeasuredMemory(
        worker=report,
        app_bytes=app,
        peak_bytes=Estimated(value=total, source=source),
        planned_bytes=int(planned.number),
        planned_over_measured_ratio=round(planned.number / total, 4),
        run_config=plan.run_config,
    )
    context.record("memory", str(plan.model.get("sha256") or path.name), measured)
    return measured


def _fill(context: Context, request: PlanRequest, plan: Plan, path: Path) -> MemoryReport:
    description = describe(path)
    try:
        text = text_settings(description)
    except UnsupportedError:
        text = text_settings(description, template="chatml")  # only its memory counts here
    config, draft = plan.run_config, None
    if request.draft is not None:
        draft, _ = locate(context, request.draft, offline=request.offline)
    worker = start_worker(request.runtime, SERVICE, run_config=config)

    def progress(done: int) -> None:
        context.report(
            Step(
                stage="measure",
                status="progress",
                message="tokens",
                done=done,
                total=config.context_length,
            )
        )

    try:
        worker.call(
            "load",
            LoadParams(
                runtime=request.runtime,
                artifact=str(path),
                run_config=config,
                text=text,
                draft=None if draft is None else str(draft),
            ),
            Loaded,
        )
        return worker.start("fill", FillParams()).result(
            MemoryReport, notice=int, on_notice=progress
        )
    finally:
        worker.close()
