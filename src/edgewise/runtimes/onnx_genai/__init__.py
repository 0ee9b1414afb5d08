"""ONNX Runtime GenAI: ONNX graphs with a generator, on the CPU execution provider.

Nothing native is loaded by importing this package; the adapter's methods do that.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.runtimes import pages
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.onnx_genai import native
from edgewise.runtimes.reports import Capabilities

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["OnnxGenAiAdapter", "adapter"]

_F32_BYTES = 4.0
# Resident set of a worker after loading both libraries, before a model.
_PROCESS_BYTES = 80 << 20

_ENVIRONMENT = EnvironmentSpec(
    name="onnx-genai",
    package="onnx_genai",
    run=("onnxruntime-genai==0.18.0", "onnxruntime==1.32.0"),
    export=(
        "torch==2.13.0",
        "transformers==5.24.0",
        "onnx==1.23.2",
        "onnx-ir==1.1.0",
        "onnxscript==0.7.2",
    ),
    run_bytes=220_000_000,
    export_bytes=830_000_000,
    note="the wheels offer the CPU only",
)


class OnnxGenAiAdapter:
    """The ``onnx-genai`` runtime: a Hugging Face checkpoint in, an ONNX folder out."""

    name = "onnx-genai"
    source_form = "hf"
    environment: EnvironmentSpec | None = _ENVIRONMENT

    def capabilities(self) -> Capabilities:
        """Return what ONNX Runtime GenAI can do here, after truly loading its libraries."""
        version = native.installed_version()
        try:
            native.load()
            providers = native.loaded_providers()
        except EdgewiseError as error:
            return Capabilities(
                runtime=self.name,
                version=version,
                can_export=False,
                can_run=False,
                reason=error.message,
            )
        from edgewise.runtimes.onnx_genai.engine import HINTS  # noqa: PLC0415
        from edgewise.runtimes.onnx_genai.formats import FORMATS  # noqa: PLC0415

        missing = native.missing_modules(native.EXPORT_MODULES)
        return Capabilities(
            runtime=self.name,
            version=version,
            can_export=not missing,
            can_run=True,
            reason="what exporting takes is not installed" if missing else "",
            artifact_formats=("onnx",),
            formats=FORMATS,
            kv_types=(KvType.F32,),
            backends=providers,
            logits=True,
            rewind=True,
            state_save=False,
            cancel_latency="per-step",
            hints=HINTS,
            missing=missing,
        )

    def prepare(self) -> None:
        """Load the native libraries and the engine module.

        Raises:
            UnsupportedError: the runtime is not installed.
            AdapterError: a library does not load.
        """
        native.load()
        from edgewise.runtimes.onnx_genai import engine  # noqa: F401, PLC0415

    def version(self) -> str:
        """Return the versions of generator and runtime, or ``not-installed``."""
        return native.installed_version() or "not-installed"

    def operators_digest(self) -> str:
        """Return the digest of the native libraries of both packages.

        Raises:
            UnsupportedError: the runtime is not installed.
        """
        return native.library_digest()

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return one: ONNX Runtime maps the weights and repacks them."""
        return (LoadMode.MMAP,)

    def huge_pages_possible(self) -> bool:
        """Return whether the worker's allocator can ask for huge pages (glibc 2.35 or newer).

        Repacked weights and the KV cache lie in allocated memory, so they profit.
        """
        return pages.possible()

    def worker_environment(self, run_config: RunConfig) -> dict[str, str]:
        """Return the variables that must stand before the worker's exec."""
        return pages.environment(run_config)

    def footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return what a model of this shape will take under this configuration."""
        from edgewise.runtimes.footprint import plain_footprint  # noqa: PLC0415

        return plain_footprint(
            shape,
            run_config,
            kv_element_bytes=_F32_BYTES,
            process_bytes=_PROCESS_BYTES,
            process_source="measured with onnxruntime-genai 0.18.0 on Linux x86-64, 2026-11-30",
        )

    def exporter(self) -> Exporter:
        """Return the exporter.

        Raises:
            UnsupportedError: what exporting takes is not installed.
        """
        missing = native.missing_modules(native.EXPORT_MODULES)
        if missing:
            raise UnsupportedError(
                "exporter-not-installed",
                f"what exporting takes is not installed: {', '.join(missing)}",
                context={"missing": list(missing)},
                hint="edgewise runtime install onnx-genai",
            )
        from edgewise.runtimes.onnx_genai.exporter import OnnxExporter  # noqa: PLC0415

        return OnnxExporter()

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:
        """Load an exported folder.

        Raises:
            UnsupportedError: the runtime is not installed, or cannot run as configured.
            IntegrityError: the artifact is incomplete or malformed.
            AdapterError: ONNX Runtime refuses the model.
            ResourceError: memory ran out.
        """
        from edgewise.runtimes.onnx_genai.engine import OnnxGenAiEngine  # noqa: PLC0415

        return OnnxGenAiEngine(artifact, run_config)


adapter = OnnxGenAiAdapter()
