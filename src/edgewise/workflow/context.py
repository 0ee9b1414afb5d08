"""What every workflow works with: one home, its stores, this device, and a way to report."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from typing import Any

import msgspec

from edgewise._version import __version__
from edgewise.core.evidence import Evidence
from edgewise.device import DeviceProfile, probe
from edgewise.errors import IntegrityError
from edgewise.store import BundleStore, EvidenceStore, Home

__all__ = ["Context", "Report", "Step", "StepStatus"]

StepStatus = str
PRODUCER = f"edgewise {__version__}"


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event of a workflow.

    Attributes:
        stage: ``probe``, ``plan``, ``fetch``, ``build``, ``tune``, ``qualify``, ``activate``,
            ``answer``.
        status: ``start``, ``progress``, ``note``, ``done`` or ``reused``.
        message: In words.
        done: Units done, while in progress.
        total: Units in all, where known.
        unit: ``bytes`` or ``steps``.
    """

    stage: str
    status: StepStatus
    message: str = ""
    done: int = 0
    total: int | None = None
    unit: str = "steps"


Report = Callable[[Step], None]


class Context:
    """One home with its stores, seen from this device."""

    def __init__(self, home: Home | None = None, *, report: Report | None = None) -> None:
        self.home = home or Home()
        self.report: Report = report or (lambda _step: None)
        self.evidence = EvidenceStore(self.home, self._evidence_damaged)
        self.bundles = BundleStore(self.home)

    def _evidence_damaged(self, error: IntegrityError) -> None:
        message = f"{error.message}; it was set aside and does not count"
        self.report(Step(stage="evidence", status="note", message=message))

    @functools.cached_property
    def device(self) -> DeviceProfile:
        """Return this device's identity and readings, without measuring."""
        return probe(storage_path=self.home.root, measure=False)

    def record(self, kind: str, subject: str, figures: Any, *, cites: tuple[str, ...] = ()) -> str:
        """Store a piece of evidence about a subject, taken here and now; return its digest.

        Raises:
            ResourceError: the home cannot be written.
        """
        now = dt.datetime.now(dt.UTC)
        return self.evidence.add(
            Evidence(
                kind=kind,
                subject=subject,
                device=self.device.digest,
                created=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
                producer=PRODUCER,
                figures=msgspec.to_builtins(figures, str_keys=True),
                cites=cites,
            )
        )
