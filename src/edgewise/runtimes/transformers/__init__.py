"""The reference: transformers in 32-bit floats on the CPU, from which others' parity is measured.

Slow on purpose: eager kernels, no quantisation, nothing fused unless asked. Importing this
package loads neither torch nor transformers; the adapter's methods do that.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes import pages
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.reports import Capabilities
from edgewise.runtimes.transformers import native
from edgewise.runtimes.transformers.formats import FORMATS

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["TransformersAdapter", "adapter"]

_F32_BYTES = 4.0
# Resident set of a worker with torch and transformers, before a model.
_PROCESS_BYTES = 300 << 20

_ENVIRONMENT = EnvironmentSpec(
    name="transformers",
    package="transformers",
    run=("torch==2.13.0", "transformers==5.24.0", "safetensors==0.8.0"),
    run_bytes=907_000_000,
    note="the reference for parity; runs on the CPU in 32-bit floats",
)


class TransformersAdapter:
    """The ``transformers`` runtime: a Hugging Face checkpoint, run as it is."""

    name = "transformers"
    source_form = "hf"
    environment: EnvironmentSpec | None = _ENVIRONMENT

    def capabilities(self) -> Capabilities:
        """Return what the reference can do here, after truly loading torch and transformers."""
        version = native.installed_version()
        try:
            torch, _ = native.load()
        except EdgewiseError as error:
            return Capabilities(
                runtime=self.name,
                version=version,
                can_export=False,
                can_run=False,
                reason=error.message,
            )
        return Capabilities(
            runtime=self.name,
            version=version,
            can_export=True,
            can_run=True,
            artifact_formats=("hf",),
            formats=FORMATS,
            kv_types=(KvType.F32,),
            backends=(f"torch CPU {torch.backends.cpu.get_cpu_capability()}",),
            logits=True,
            rewind=True,
            state_save=True,
            cancel_latency="per-step",
        )

    def prepare(self) -> None:
        """Load torch, transformers and the engine module.

        Raises:
            UnsupportedError: the runtime is not installed.
            AdapterError: a library does not load.
        """
        native.load()
        from edgewise.runtimes.transformers import engine  # noqa: F401, PLC0415

    def version(self) -> str:
        """Return the versions of transformers and torch, or ``not-installed``."""
        return native.installed_version() or "not-installed"

    def operators_digest(self) -> str:
        """Return the digest of torch's native libraries.

        Raises:
            UnsupportedError: the runtime is not installed.
        """
        return native.library_digest()

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return one: safetensors maps the files."""
        return (LoadMode.MMAP,)

    def huge_pages_possible(self) -> bool:
        """Return whether the worker's allocator can ask for huge pages (glibc 2.35 or newer)."""
        return pages.possible()

    def worker_environment(self, run_config: RunConfig) -> dict[str, str]:
        """Return the variables that keep the libraries offline, and those of the allocator."""
        found = {
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TRANSFORMERS_OFFLINE": "1",
        }
        return found | pages.environment(run_config)

    def footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return what a model of this shape will take under this configuration."""
        from edgewise.runtimes.footprint import plain_footprint  # noqa: PLC0415

        return plain_footprint(
            shape,
            run_config,
            kv_element_bytes=_F32_BYTES,
            process_bytes=_PROCESS_BYTES,
            process_source="measured with torch 2.13.0 on Linux x86-64, 2026-11-30",
        )

    def exporter(self) -> Exporter:
        """Return the exporter, which takes a checkpoint over in 32-bit floats."""
        from edgewise.runtimes.transformers.exporter import FloatExporter  # noqa: PLC0415

        return FloatExporter()

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:
        """Load a folder.

        Raises:
            UnsupportedError: the runtime is not installed, or cannot run as configured.
            AdapterError: transformers refuses the folder.
            ResourceError: memory ran out.
        """
        from edgewise.runtimes.transformers.engine import TransformersEngine  # noqa: PLC0415

        return TransformersEngine(artifact, run_config)


adapter = TransformersAdapter()
