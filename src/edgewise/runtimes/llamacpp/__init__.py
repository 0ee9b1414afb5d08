"""llama.cpp through llama-cpp-python's low-level interface.

Nothing native is loaded by importing this package; :func:`adapter` and its methods do that.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes import pages
from edgewise.runtimes.llamacpp import native
from edgewise.runtimes.reports import Capabilities

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["LlamaCppAdapter", "adapter"]


class LlamaCppAdapter:
    """The ``llamacpp`` runtime: GGUF in, GGUF out, CPU kernels."""

    name = "llamacpp"
    source_form = "gguf"
    environment = None
    parallel_max = 64
    drafts = True

    def capabilities(self) -> Capabilities:
        """Return what llama.cpp can do here, after truly loading its library."""
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
            )
        from edgewise.runtimes.llamacpp.formats import FORMATS, KV_TYPES  # noqa: PLC0415
        from edgewise.runtimes.llamacpp.report import system_features  # noqa: PLC0415

        return Capabilities(
            runtime=self.name,
            version=version,
            can_export=True,
            can_run=True,
            artifact_formats=("gguf",),
            formats=FORMATS,
            kv_types=tuple(KV_TYPES),
            backends=("CPU " + " ".join(system_features(bindings)),),
            logits=True,
            rewind=True,
            state_save=True,
            cancel_latency="in-step",
        )

    def prepare(self) -> None:
        """Load the native library and the engine module.

        Raises:
            UnsupportedError: llama-cpp-python is not installed.
            AdapterError: its library does not load.
        """
        native.load()
        from edgewise.runtimes.llamacpp import engine  # noqa: F401, PLC0415

    def version(self) -> str:
        """Return the version, or ``not-installed``."""
        return native.installed_version() or "not-installed"

    def operators_digest(self) -> str:
        """Return the digest of the native libraries.

        Raises:
            UnsupportedError: llama-cpp-python is not installed.
        """
        return native.library_digest()

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return both: llama.cpp maps the file or reads it."""
        return (LoadMode.MMAP, LoadMode.MALLOC)

    def huge_pages_possible(self) -> bool:
        """Return whether the worker's allocator can ask for huge pages (glibc 2.35 or newer)."""
        return pages.possible()

    def worker_environment(self, run_config: RunConfig) -> dict[str, str]:
        """Return the variables that must stand before the worker's exec."""
        return pages.environment(run_config)

    def footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return what a model of this shape will take under this configuration."""
        from edgewise.runtimes.llamacpp.footprint import footprint  # noqa: PLC0415

        return footprint(shape, run_config)

    def exporter(self) -> Exporter:
        """Return the GGUF exporter."""
        from edgewise.runtimes.llamacpp.exporter import GgufExporter  # noqa: PLC0415

        return GgufExporter()

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:
        """Load a GGUF file.

        Raises:
            UnsupportedError: the runtime is not installed.
            AdapterError: llama.cpp refuses the file or the context.
        """
        from edgewise.runtimes.llamacpp.engine import LlamaCppEngine  # noqa: PLC0415

        if run_config.parallel > 1:
            from edgewise.runtimes.llamacpp.sequences import open_sequences  # noqa: PLC0415
            from edgewise.runtimes.llamacpp.upstream import LlamaCppLibrary  # noqa: PLC0415

            return open_sequences(LlamaCppLibrary(), artifact, run_config)
        return LlamaCppEngine(artifact, run_config)


adapter = LlamaCppAdapter()
