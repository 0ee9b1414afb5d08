"""Smoke qualification: does this artifact work on this device at all.

It is the least that must hold before activation. It says nothing about the quality of answers.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgewise.core.recipe import RunConfig
from edgewise.qualify.checks import SERVICE, Check
from edgewise.run.messages import Loaded, LoadParams, RuntimeFacts
from edgewise.runtimes.launch import start_worker
from edgewise.runtimes.reports import MemoryReport, PartitionReport

__all__ = ["SmokeReport", "smoke"]


class SmokeReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All checks, with where the operators ran and what memory the worker held.

    A runtime that ran nothing where it was asked to fails the report. Single operators that ran
    elsewhere are named in the partition and are part of the fingerprint.
    """

    checks: tuple[Check, ...]
    partition: PartitionReport
    memory: MemoryReport
    runtime: RuntimeFacts

    @property
    def passed(self) -> bool:
        """Return whether every check passed and nothing fell back."""
        return all(check.passed for check in self.checks) and self.partition.delegated > 0

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return why it did not pass; empty when it did."""
        failed = tuple(f"{c.name}: {c.detail}" for c in self.checks if not c.passed)
        if not self.partition.delegated:
            failed += (f"no operator ran on {self.partition.requested}",)
        return failed


def smoke(
    runtime: str, artifact: Path, run_config: RunConfig, *, draft: Path | None = None
) -> SmokeReport:
    """Return the report for an artifact under a run configuration, on this device.

    Args:
        runtime: Name of the runtime.
        artifact: The artifact.
        run_config: How it is run.
        draft: The artifact of a draft model beside it: it is loaded for all checks, as deployed,
            and has two of its own.

    Raises:
        InputError: the draft model's vocabulary has another size.
        AdapterError: the artifact cannot be loaded, or the worker died.
        UnsupportedError: the runtime is not installed.
    """
    worker = start_worker(runtime, SERVICE, run_config=run_config)
    try:
        worker.call(
            "load",
            LoadParams(
                runtime=runtime,
                artifact=str(artifact),
                run_config=run_config,
                draft=None if draft is None else str(draft),
            ),
            Loaded,
        )
        return SmokeReport(
            runtime=worker.call("facts", runtime, RuntimeFacts),
            checks=tuple(worker.call("smoke", None, list[Check])),
            partition=worker.call("partition", None, PartitionReport),
            memory=worker.call("memory", None, MemoryReport),
        )
    finally:
        worker.close()
