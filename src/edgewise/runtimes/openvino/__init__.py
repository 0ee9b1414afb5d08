"""OpenVINO: IR made with Optimum and NNCF, or a GGUF file, on the CPU plugin.

Nothing native is loaded by importing this package; the adapter's methods do that. The package
bears the library's name: ``import openvino`` inside it is absolute and means the library.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import KvType, LoadMode, Recipe, RunConfig
from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.runtimes import pages
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.openvino import native
from edgewise.runtimes.openvino.formats import (
    FORMATS,
    GGUF_DIRECT,
    GGUF_FORMATS,
    GGUF_FRONTEND,
    HINTS,
    KV_ELEMENT_BYTES,
)
from edgewise.runtimes.reports import Capabilities

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["OpenVinoAdapter", "adapter"]

# Resident set of a worker with both libraries and the CPU plugin loaded, before a model.
_PROCESS_BYTES = 80 << 20
_UNVERIFIED = (
    "groups of 128 on models whose rows they divide",
    "devices other than CPU",
)

_ENVIRONMENT = EnvironmentSpec(
    name="openvino",
    package="openvino",
    run=("openvino==2026.4.0", "openvino-genai==2026.4.0.0", "openvino-tokenizers==2026.4.0.0"),
    export=("optimum-intel==2.2.0", "nncf==3.4.0", "transformers==5.5.4", "torch==2.13.0"),
    run_bytes=330_000_000,
    export_bytes=1_045_000_000,
    note="optimum-intel brings a torchvision that does not match the CPU torch; it is never loaded",
)


class OpenVinoAdapter:
    """The ``openvino`` runtime: a Hugging Face checkpoint or a GGUF file in, CPU kernels."""

    name = "openvino"
    source_form = "hf"
    environment: EnvironmentSpec | None = _ENVIRONMENT

    def source_form_of(self, recipe: Recipe) -> str:
        """Return what this recipe is made from: ``gguf`` for the direct ones, else ``hf``."""
        return "gguf" if recipe.weights in {GGUF_DIRECT, GGUF_FRONTEND} else self.source_form

    def capabilities(self) -> Capabilities:
        """Return what OpenVINO can do here, after truly loading its device plugins."""
        version = native.installed_version()
        try:
            devices = native.loaded_devices()
            if native.DEVICE not in devices:
                raise UnsupportedError("device-missing", "OpenVINO loads no CPU plugin here")
            precisions = native.offered_precisions()
        except EdgewiseError as error:
            return Capabilities(
                runtime=self.name,
                version=version,
                can_export=False,
                can_run=False,
                reason=error.message,
            )
        missing = native.missing_modules()
        return Capabilities(
            runtime=self.name,
            version=version,
            can_export=True,
            can_run=True,
            reason="without the export part only GGUF files can be taken over" if missing else "",
            artifact_formats=("openvino-ir", "gguf"),
            formats=GGUF_FORMATS if missing else FORMATS,
            kv_types=(KvType.F16, KvType.F32, KvType.BF16, KvType.U8, KvType.U4),
            backends=tuple(
                f"{device} {name}".strip() + (f" ({', '.join(precisions)})" * (device == "CPU"))
                for device, name in devices.items()
            ),
            logits=True,
            rewind=True,
            state_save=True,
            cancel_latency="in-step",
            hints=HINTS,
            unverified=_UNVERIFIED,
            missing=missing,
        )

    def prepare(self) -> None:
        """Load the native library and the engine module.

        Raises:
            UnsupportedError: OpenVINO is not installed.
            AdapterError: its library does not load.
        """
        native.load()
        from edgewise.runtimes.openvino import engine  # noqa: F401, PLC0415

    def version(self) -> str:
        """Return the versions of OpenVINO and its GenAI library, or ``not-installed``."""
        return native.installed_version() or "not-installed"

    def operators_digest(self) -> str:
        """Return the digest of the native libraries that hold the operators.

        Raises:
            UnsupportedError: OpenVINO is not installed.
        """
        return native.library_digest()

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return both: OpenVINO maps the weights or reads them."""
        return (LoadMode.MMAP, LoadMode.MALLOC)

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
            kv_element_bytes=KV_ELEMENT_BYTES.get(run_config.kv_type, 4.0),
            process_bytes=_PROCESS_BYTES,
            process_source="measured with openvino 2026.4.0 on Linux x86-64, 2026-11-30",
        )

    def exporter(self) -> Exporter:
        """Return the exporter."""
        from edgewise.runtimes.openvino.exporter import OpenVinoExporter  # noqa: PLC0415

        return OpenVinoExporter()

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:
        """Load an artifact.

        Raises:
            InputError: there is no such artifact, or a setting has an impossible value.
            UnsupportedError: a library is missing, or a setting is not offered here.
            IntegrityError: the artifact is damaged.
            AdapterError: OpenVINO cannot read or compile it.
            ResourceError: memory or disk ran out.
        """
        from edgewise.runtimes.openvino.engine import OpenVinoEngine  # noqa: PLC0415

        return OpenVinoEngine(artifact, run_config)


adapter = OpenVinoAdapter()
