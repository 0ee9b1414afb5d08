"""Qualcomm's NPU through ExecuTorch: declared, and refused with what is missing.

Lowering compiles for one chip with Qualcomm's AI Engine Direct SDK (QAIRT), which no package
registry carries and whose licence a person has to accept. Without it ExecuTorch would fetch it
while lowering, and its ``is_available("QnnBackend")`` is true all the same; neither is used here.
Nothing of this path has been built or run by anyone who wrote it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.errors import UnsupportedError
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.executorch import ENVIRONMENT
from edgewise.runtimes.footprint import plain_footprint
from edgewise.runtimes.reports import Capabilities

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["QnnAdapter", "adapter"]

_SDK_VARIABLE = "QAIRT_SDK_ROOT"
_SDK = "the QAIRT SDK (Qualcomm AI Engine Direct)"
_LIBRARY = "libQnnHtp.so"
_DEVICE = "a Snapdragon device with a Hexagon NPU"
_EXPORT = "export through the QAIRT SDK: not written, since it could not be tried"
_RUN = "run on a Hexagon NPU"


class QnnAdapter:
    """The ``qnn`` runtime: declared, neither exported nor run."""

    name = "qnn"
    source_form = "hf"
    environment: EnvironmentSpec | None = ENVIRONMENT

    def capabilities(self) -> Capabilities:
        """Return that nothing is possible here, and what is missing."""
        missing = missing_pieces()
        return Capabilities(
            runtime=self.name,
            version=None,
            can_export=False,
            can_run=False,
            reason=f"missing: {', '.join(missing)}" if missing else _EXPORT,
            unverified=(_EXPORT, _RUN),
            missing=missing,
        )

    def prepare(self) -> None:
        """Refuse.

        Raises:
            UnsupportedError: always.
        """
        raise _refusal("run")

    def version(self) -> str:
        """Return ``not-installed``."""
        return "not-installed"

    def operators_digest(self) -> str:
        """Refuse.

        Raises:
            UnsupportedError: always.
        """
        raise _refusal("run")

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return none: nothing is loaded here."""
        return ()

    def huge_pages_possible(self) -> bool:
        """Return ``False``."""
        return False

    def worker_environment(self, run_config: RunConfig) -> dict[str, str]:  # noqa: ARG002
        """Return the variable that keeps ExecuTorch from fetching the SDK."""
        return {"QNN_SDK_ROOT": ""}

    def footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return what a model will take, as far as its shape says."""
        return plain_footprint(
            shape,
            run_config,
            kv_element_bytes=2,
            process_bytes=64 << 20,
            process_source="a guess: nothing has been measured on such a device",
        )

    def exporter(self) -> Exporter:
        """Refuse.

        Raises:
            UnsupportedError: always; the context names what is missing.
        """
        raise _refusal("export")

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:  # noqa: ARG002
        """Refuse.

        Raises:
            UnsupportedError: always; the context names what is missing.
        """
        raise _refusal("run")


def missing_pieces() -> tuple[str, ...]:
    """Return what would have to be there, by looking for the files themselves."""
    root = os.environ.get(_SDK_VARIABLE)
    folder = Path(root) if root else None
    missing = []
    if folder is None or not folder.is_dir():
        missing.append(f"{_SDK}, named by {_SDK_VARIABLE}")
    if folder is None or not any(folder.glob(f"lib/*/{_LIBRARY}")):
        missing.append(_LIBRARY)
    return (*missing, _DEVICE)


def _refusal(what: str) -> UnsupportedError:
    missing = missing_pieces()
    return UnsupportedError(
        "runtime-cannot-run" if what == "run" else "runtime-cannot-export",
        f"qnn cannot {what} here; missing: {', '.join(missing)}",
        context={"missing": list(missing)},
        hint="export with Qualcomm's own tools, or build for executorch and run on the CPU",
    )


adapter = QnnAdapter()
