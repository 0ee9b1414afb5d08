"""Core ML through ExecuTorch: programs are lowered wherever coremltools works, and never run here.

The exporter, the environment and the artifact are ExecuTorch's; only the backend is fixed. What
comes out has not been run by anyone who wrote this: every report says so.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.executorch import ENVIRONMENT, native
from edgewise.runtimes.executorch.formats import COREML_FORMATS, TARGETS
from edgewise.runtimes.executorch.native import INSTALL_HINT
from edgewise.runtimes.footprint import plain_footprint
from edgewise.runtimes.reports import Capabilities

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["CoreMlAdapter", "adapter"]

_NOT_HERE = (
    "Core ML programs run in an app on an Apple device, through ExecuTorch's Core ML delegate; "
    "Edgewise has no such engine"
)
_UNVERIFIED = ("f16: exported, never run; its speed, memory and numbers are unknown",)
_MISSING: tuple[str, ...] = (
    "an Apple device with iOS 18 or macOS 15",
    "ExecuTorch's Core ML delegate in an app",
)
# Declared, not measured: an app's own runtime is not this process.
_PROCESS_BYTES = 64 << 20


class CoreMlAdapter:
    """The ``coreml`` runtime: a ``.pte`` for Apple's Core ML, exported only."""

    name = "coreml"
    source_form = "hf"
    environment: EnvironmentSpec | None = ENVIRONMENT

    def capabilities(self) -> Capabilities:
        """Return what can be exported here; running is declared unavailable."""
        reason, missing = _NOT_HERE, _MISSING
        can_export = True
        try:
            native.load()
            _require_coremltools()
        except EdgewiseError as error:
            can_export, reason, missing = False, f"{error.message}; {reason}", ("coremltools",)
        return Capabilities(
            runtime=self.name,
            version=_version(),
            can_export=can_export,
            can_run=False,
            reason=reason,
            artifact_formats=("pte",),
            formats=COREML_FORMATS if can_export else (),
            kv_types=(KvType.F32,),
            unverified=_UNVERIFIED,
            missing=missing,
        )

    def prepare(self) -> None:
        """Refuse: nothing runs here.

        Raises:
            UnsupportedError: always.
        """
        raise _cannot_run()

    def version(self) -> str:
        """Return coremltools' version, or ``not-installed``."""
        return _version() or "not-installed"

    def operators_digest(self) -> str:
        """Refuse: the operators are Apple's, on the device.

        Raises:
            UnsupportedError: always.
        """
        raise _cannot_run()

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return none: nothing is loaded here."""
        return ()

    def huge_pages_possible(self) -> bool:
        """Return ``False``."""
        return False

    def worker_environment(self, run_config: RunConfig) -> dict[str, str]:  # noqa: ARG002
        """Return the variables an exporting worker needs before exec."""
        return {"QNN_SDK_ROOT": "", "HF_HUB_OFFLINE": "1"}

    def footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return what a model will take, as far as its shape says."""
        return plain_footprint(
            shape,
            run_config,
            kv_element_bytes=4,
            process_bytes=_PROCESS_BYTES,
            process_source="a guess: nothing has been measured on an Apple device",
        )

    def exporter(self) -> Exporter:
        """Return the exporter.

        Raises:
            UnsupportedError: coremltools is not installed, as on Windows.
        """
        _require_coremltools()
        from edgewise.runtimes.executorch.exporter import PteExporter  # noqa: PLC0415

        return PteExporter(runtime=self.name, formats=COREML_FORMATS, target=TARGETS["coreml"])

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:  # noqa: ARG002
        """Refuse: nothing runs here.

        Raises:
            UnsupportedError: always.
        """
        raise _cannot_run()


def _version() -> str | None:
    try:
        return version("coremltools")
    except PackageNotFoundError:
        return None


def _require_coremltools() -> None:
    if importlib.util.find_spec("coremltools") is None:
        raise UnsupportedError(
            "runtime-not-installed",
            "coremltools is not installed; it exists for macOS and Linux on x86_64",
            hint=INSTALL_HINT,
        )


def _cannot_run() -> UnsupportedError:
    return UnsupportedError(
        "runtime-cannot-run",
        _NOT_HERE,
        context={"missing": list(_MISSING)},
        hint="put the .pte into an app that links ExecuTorch's Core ML delegate",
    )


adapter = CoreMlAdapter()
