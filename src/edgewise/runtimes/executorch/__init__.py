"""ExecuTorch: one ``.pte`` program per model, run by XNNPACK and ExecuTorch's own kernels.

Nothing native is loaded by importing this package; :data:`adapter` and its methods do that.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes import pages
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.executorch import native
from edgewise.runtimes.executorch.formats import FORMATS, TARGETS, target_of
from edgewise.runtimes.footprint import plain_footprint
from edgewise.runtimes.reports import Capabilities

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["ENVIRONMENT", "ExecutorchAdapter", "adapter"]

ENVIRONMENT = EnvironmentSpec(
    name="executorch",
    package="executorch",
    run=("torch==2.13.0", "executorch==1.5.1"),
    export=("safetensors==0.8.0",),
    run_bytes=1_250_000_000,
    export_bytes=2_000_000,
    note="running needs torch as well: ExecuTorch's Python interface passes its tensors",
)
# The worker with torch, the extension module and the operator libraries, on Linux x86_64,
# measured 2026-11-30.
_PROCESS_BYTES = 240 << 20
_KV_ELEMENT_BYTES = 4


class ExecutorchAdapter:
    """The ``executorch`` runtime: a Hugging Face folder in, a ``.pte`` out, CPU kernels."""

    name = "executorch"
    source_form = "hf"
    environment: EnvironmentSpec | None = ENVIRONMENT

    def capabilities(self) -> Capabilities:
        """Return what ExecuTorch can do here, after truly loading its libraries."""
        version = native.installed_version()
        try:
            bindings = native.load()
        except EdgewiseError as error:
            return Capabilities(
                runtime=self.name,
                version=version,
                can_export=False,
                can_run=False,
                reason=error.message,
                missing=("executorch",),
            )
        # The list of registered backends, not ``_is_available``: that one is True for Qualcomm's
        # without its libraries.
        registered = bindings._get_registered_backend_names()  # noqa: SLF001
        here = [t.delegate for t in TARGETS.values() if t.runs_here and t.delegate in registered]
        away = [offer.name for offer in FORMATS if not target_of(offer.name).runs_here]
        return Capabilities(
            runtime=self.name,
            version=version,
            can_export=True,
            can_run=True,
            artifact_formats=("pte",),
            formats=FORMATS,
            kv_types=(KvType.F32,),
            backends=(*here, "portable"),
            logits=True,
            rewind=True,
            state_save=False,
            cancel_latency="per-step",
            unverified=tuple(f"{name}: exported, never run" for name in away),
            missing=tuple(
                f"{t.delegate}, to run programs for {t.name}"
                for t in TARGETS.values()
                if t.delegate and t.delegate not in registered
            ),
        )

    def prepare(self) -> None:
        """Load the native libraries and the engine module.

        Raises:
            UnsupportedError: ExecuTorch is not installed.
            AdapterError: its libraries do not load.
        """
        native.load()
        from edgewise.runtimes.executorch import engine  # noqa: F401, PLC0415

    def version(self) -> str:
        """Return the version, or ``not-installed``."""
        return native.installed_version() or "not-installed"

    def operators_digest(self) -> str:
        """Return the digest of the native libraries.

        Raises:
            UnsupportedError: ExecuTorch is not installed.
        """
        return native.library_digest()

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return one: ExecuTorch maps its programs."""
        return (LoadMode.MMAP,)

    def huge_pages_possible(self) -> bool:
        """Return whether the allocator can ask for huge pages.

        XNNPACK repacks the weights it takes into allocated memory, which they then back.
        """
        return pages.possible()

    def worker_environment(self, run_config: RunConfig) -> dict[str, str]:
        """Return the variables that must stand before the worker's exec."""
        variables = {
            "OMP_NUM_THREADS": str(run_config.threads),
            "QNN_SDK_ROOT": "",
            "HF_HUB_OFFLINE": "1",
        }
        return variables | pages.environment(run_config)

    def footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return what a model of this shape will take under this configuration."""
        return plain_footprint(
            shape,
            run_config,
            kv_element_bytes=_KV_ELEMENT_BYTES,
            process_bytes=_PROCESS_BYTES,
            process_source="process with torch and ExecuTorch, Linux x86_64 (2026-11-30)",
        )

    def exporter(self) -> Exporter:
        """Return the ``.pte`` exporter."""
        from edgewise.runtimes.executorch.exporter import PteExporter  # noqa: PLC0415

        return PteExporter()

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:
        """Load an artifact.

        Raises:
            UnsupportedError: the runtime is not installed, or lacks what the program needs.
            IntegrityError: the artifact is damaged.
            AdapterError: ExecuTorch refuses the program.
        """
        from edgewise.runtimes.executorch.engine import ExecutorchEngine  # noqa: PLC0415

        return ExecutorchEngine(artifact, run_config)


adapter = ExecutorchAdapter()
