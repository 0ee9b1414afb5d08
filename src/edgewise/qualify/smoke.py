"""Smoke qualification: does this artifact work on this device at all.

It is the least that must hold before activation. It says nothing about the quality of answers.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgewise.core.recipe import RunConfig
from edgewise.qualify.service import SERVICE, Check
from edgewise.run.messages import Loaded, LoadParams
from edgewise.runtimes import registry
from edgewise.runtimes.protocol import MemoryReport, PartitionReport
from edgewise.runtimes.worker import WorkerProcess

__all__ = ["SmokeReport", "smoke"]


class SmokeReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All checks, with where the operators ran and what memory the worker held.

    A fallback (an operator that ran elsewhere than asked) fails the report.
    """

    checks: tuple[Check, ...]
    partition: PartitionReport
    memory: MemoryReport

    @property
    def passed(self) -> bool:
        """Return whether every check passed and nothing fell back."""
        return all(check.passed for check in self.checks) and not self.partition.fallbacks

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return why it did not pass; empty when it did."""
        failed = tuple(f"{c.name}: {c.detail}" for c in self.checks if not c.passed)
        fell_back = tuple(
            f"{operator} did not run on {self.partition.requested}"
            for operator in self.partition.fallbacks
        )
        return failed + fell_back


def smoke(runtime: str, artifact: Path, run_config: RunConfig) -> SmokeReport:
    """Return the report for an artifact under a run configuration, on this device.

    Raises:
        AdapterError: the artifact cannot be loaded, or the worker died.
        UnsupportedError: the runtime is not installed.
    """
    environment = registry.adapter(runtime).worker_environment(run_config)
    worker = WorkerProcess(SERVICE, environment=environment)
    try:
        worker.call(
            "load",
            LoadParams(runtime=runtime, artifact=str(artifact), run_config=run_config),
            Loaded,
        )
        return SmokeReport(
            checks=tuple(worker.call("smoke", None, list[Check])),
            partition=worker.call("partition", None, PartitionReport),
            memory=worker.call("memory", None, MemoryReport),
        )
    finally:
        worker.close()
