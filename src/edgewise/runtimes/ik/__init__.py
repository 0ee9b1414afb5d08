"""ik_llama.cpp, a relative of llama.cpp with kernels of its own for CPUs.

It shares engine, exporter and reports with :mod:`edgewise.runtimes.llamacpp`; what differs is in
:mod:`edgewise.runtimes.ik.library`. Nothing native is loaded by importing this package.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes import pages
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.reports import Capabilities

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["IkAdapter", "adapter"]


class IkAdapter:
    """The ``ik`` runtime: GGUF in, GGUF out, AVX2 kernels."""

    name = "ik"
    source_form = "gguf"
    drafts = True
    environment = EnvironmentSpec(
        name="ik",
        package="ik",
        run=("ik_llama_cpp_python==0.1.5",),
        run_bytes=211 << 20,
        note="Its wheel is for Linux x86_64 with AVX2; elsewhere pip compiles it.",
    )

    def capabilities(self) -> Capabilities:
        """Return what ik_llama.cpp can do here, after truly loading its library."""
        from edgewise.runtimes.ik import bindings  # noqa: PLC0415

        version = bindings.installed_version()
        try:
            native = bindings.load()
        except EdgewiseError as error:
            return Capabilities(
                runtime=self.name,
                version=version,
                can_export=False,
                can_run=False,
                reason=error.message,
            )
        from edgewise.runtimes.ik.exporter import FORMATS  # noqa: PLC0415
        from edgewise.runtimes.ik.library import IkLibrary  # noqa: PLC0415
        from edgewise.runtimes.llamacpp.formats import KV_TYPES  # noqa: PLC0415
        from edgewise.runtimes.llamacpp.report import system_features  # noqa: PLC0415

        return Capabilities(
            runtime=self.name,
            version=version,
            can_export=True,
            can_run=True,
            artifact_formats=("gguf",),
            formats=FORMATS,
            kv_types=tuple(KV_TYPES),
            backends=("CPU " + " ".join(system_features(native)),),
            logits=True,
            rewind=True,
            state_save=True,
            cancel_latency="in-step",
            hints=IkLibrary.hints,
        )

    def prepare(self) -> None:
        """Load the native library and the engine module.

        Raises:
            UnsupportedError: ik_llama_cpp_python is not installed.
            AdapterError: its library does not load.
        """
        from edgewise.runtimes.ik import bindings, engine  # noqa: F401, PLC0415

        bindings.load()

    def version(self) -> str:
        """Return the version, or ``not-installed``."""
        from edgewise.runtimes.ik import bindings  # noqa: PLC0415

        return bindings.installed_version() or "not-installed"

    def operators_digest(self) -> str:
        """Return the digest of the native libraries.

        Raises:
            UnsupportedError: ik_llama_cpp_python is not installed.
        """
        from edgewise.runtimes.ik import bindings  # noqa: PLC0415

        return bindings.library_digest()

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return both: ik_llama.cpp maps the file or reads it."""
        return (LoadMode.MMAP, LoadMode.MALLOC)

    def huge_pages_possible(self) -> bool:
        """Return whether the worker's allocator can ask for huge pages (glibc 2.35 or newer)."""
        return pages.possible()

    def worker_environment(self, run_config: RunConfig) -> dict[str, str]:
        """Return the variables that must stand before the worker's exec."""
        return pages.environment(run_config)

    def footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return what a model of this shape will take under this configuration."""
        from edgewise.runtimes.ik.footprint import footprint  # noqa: PLC0415

        return footprint(shape, run_config)

    def exporter(self) -> Exporter:
        """Return the GGUF exporter."""
        from edgewise.runtimes.ik.exporter import IkExporter  # noqa: PLC0415

        return IkExporter()

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:
        """Load a GGUF file.

        Raises:
            InputError: the configuration contradicts itself.
            UnsupportedError: the runtime is not installed, or does not know a setting.
            AdapterError: ik_llama.cpp refuses the file or the context.
        """
        from edgewise.runtimes.ik.engine import IkEngine  # noqa: PLC0415

        return IkEngine(artifact, run_config)


adapter = IkAdapter()
