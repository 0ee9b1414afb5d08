"""The device probe with its evidence: measured once per device, read anew every time.

Measuring happens in a worker: its buffers of hundreds of MB are gone when it ends and never
count as this application's memory.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgewise.device import DeviceProfile, RuntimePresence, detect_contention, probe
from edgewise.errors import IntegrityError
from edgewise.run.service import capabilities_in_worker
from edgewise.runtimes import registry
from edgewise.runtimes.host import Emit, Method
from edgewise.runtimes.worker import WorkerProcess
from edgewise.workflow.context import Context, Step

__all__ = ["SERVICE", "ProbeService", "known_or_measured_device", "measure_and_record"]

SERVICE = "edgewise.workflow.probing:ProbeService"


class ProbeService:
    """The worker that measures."""

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {"probe": Method(str, self._probe)}

    def cancel(self) -> None:
        """Do nothing: a probe takes about a second."""

    def clear_cancel(self) -> None:
        """Do nothing."""

    def _probe(self, storage_path: str, emit: Emit) -> DeviceProfile:
        return probe(storage_path=Path(storage_path), measure=True, progress=emit)


def measure_and_record(context: Context) -> tuple[DeviceProfile, str]:
    """Return a fully measured profile and the digest of its evidence.

    Raises:
        AdapterError: the measuring process died.
        ResourceError: the home cannot be written.
    """

    def progress(what: str) -> None:
        context.report(Step(stage="probe", status="progress", message=what))

    context.report(Step(stage="probe", status="start", message="measuring this device"))
    worker = WorkerProcess(SERVICE)
    try:
        measured = worker.start("probe", str(context.home.root)).result(
            DeviceProfile, notice=str, on_notice=progress
        )
    finally:
        worker.close()
    progress("trying the runtimes")
    profile = msgspec.structs.replace(measured, runtimes=_try_runtimes())
    for reason in profile.contention.reasons:
        context.report(Step(stage="probe", status="note", message=f"contention: {reason}"))
    digest = context.record("device", profile.digest, profile)
    context.report(Step(stage="probe", status="done", message=f"device {profile.digest[:12]}"))
    return profile, digest


def known_or_measured_device(
    context: Context, *, measure_again: bool = False
) -> tuple[DeviceProfile, str]:
    """Return this device's profile and the digest of the evidence its measurements come from.

    Bandwidth and runtimes are taken from earlier evidence of the same device where there is
    some; memory, storage, power and thermal readings are always of now. Figures that were taken
    beside other work are measured again once the device is quiet.

    Raises:
        AdapterError: the measuring process died.
        ResourceError: the home cannot be written.
        IntegrityError: stored evidence is damaged.
    """
    now = context.device
    found = None if measure_again else _best_known(context, now.digest)
    if found is None:
        return measure_and_record(context)
    digest, created, known = found
    if known.contention.contended and not detect_contention().contended:
        return measure_and_record(context)
    profile = msgspec.structs.replace(
        now, bandwidth=known.bandwidth, contention=known.contention, runtimes=known.runtimes
    )
    taken = " beside other work" if known.contention.contended else ""
    message = f"device {now.digest[:12]}, measured{taken} {created}"
    context.report(Step(stage="probe", status="reused", message=message))
    return profile, digest


def _best_known(context: Context, device: str) -> tuple[str, str, DeviceProfile] | None:
    """Return the newest quiet measurement of a device, or the newest at all.

    Raises:
        IntegrityError: stored evidence is no device profile.
    """
    best = None
    for digest, piece in context.evidence.find(kind="device", subject=device):
        try:
            profile = msgspec.convert(piece.figures, type=DeviceProfile)
        except msgspec.ValidationError as error:
            raise IntegrityError(
                "evidence-unreadable", f"evidence {digest[:12]} is no device profile"
            ) from error
        if best is None or not profile.contention.contended or best[2].contention.contended:
            best = (digest, piece.created, profile)
    return best


def _try_runtimes() -> tuple[RuntimePresence, ...]:
    found = []
    for name in registry.names():
        capabilities = capabilities_in_worker(name)
        found.append(
            RuntimePresence(
                name=name,
                version=capabilities.version or "",
                can_run=capabilities.can_run,
                reason=capabilities.reason or "its native library was loaded",
                backends=capabilities.backends,
            )
        )
    return tuple(found)
