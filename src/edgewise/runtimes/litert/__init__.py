"""LiteRT through its compiled model: tokens in, logits out in every step.

The exporter and the environment are shared with :mod:`edgewise.runtimes.litert_lm`, LiteRT's own
language engine. Nothing native is loaded by importing this package; the adapter's methods do that.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes import pages
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.footprint import plain_footprint
from edgewise.runtimes.litert import native
from edgewise.runtimes.reports import Capabilities

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["LiteRtAdapter", "LiteRtFamily", "adapter"]

_MODULES = ("compiled_model", "options", "hardware_accelerator", "interpreter")


class LiteRtFamily:
    """What the two runtimes share."""

    name: str
    source_form: str = "hf"
    environment: EnvironmentSpec | None = native.ENVIRONMENT

    _package: str
    _bundle: bool
    _process_bytes: int

    def version(self) -> str:
        """Return the version, or ``not-installed``."""
        return native.installed_version(self._package) or "not-installed"

    def operators_digest(self) -> str:
        """Return the digest of the native libraries.

        Raises:
            UnsupportedError: the runtime is not installed.
        """
        return native.library_digest(self._package)

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return both: the model is mapped or handed over as bytes."""
        return (LoadMode.MMAP, LoadMode.MALLOC)

    def huge_pages_possible(self) -> bool:
        """Return whether the worker's allocator can ask for huge pages (glibc 2.35 or newer)."""
        return pages.possible()

    def worker_environment(self, run_config: RunConfig) -> dict[str, str]:
        """Return the variables that must stand before the worker's exec."""
        return pages.environment(run_config)

    def footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return what a model of this shape will take under this configuration."""
        return plain_footprint(
            shape,
            run_config,
            kv_element_bytes=4.0,
            process_bytes=self._process_bytes,
            process_source="library and tokenizer loaded, measured on Linux x86_64 (2026-11-30)",
        )

    def exporter(self) -> Exporter:
        """Return the exporter."""
        from edgewise.runtimes.litert.exporter import LiteRtExporter  # noqa: PLC0415

        return LiteRtExporter(self.name, bundle=self._bundle)

    def unavailable(self, error: EdgewiseError) -> Capabilities:
        """Return capabilities that name what is missing."""
        return Capabilities(
            runtime=self.name,
            version=native.installed_version(self._package),
            can_export=False,
            can_run=False,
            reason=error.message,
            missing=(self._package,),
        )

    def declared(self, *, artifact: str, logits: bool, backend: str) -> Capabilities:
        """Return the capabilities of a library that has loaded.

        Args:
            artifact: Format it runs.
            logits: Whether its engine takes tokens and gives logits; else messages and text.
            backend: What computes.
        """
        from edgewise.runtimes.litert.conversion import UNVERIFIED  # noqa: PLC0415
        from edgewise.runtimes.litert.formats import FORMATS  # noqa: PLC0415

        missing = native.missing_for_export(bundle=self._bundle)
        return Capabilities(
            runtime=self.name,
            version=native.installed_version(self._package),
            can_export=not missing,
            can_run=True,
            reason=f"exporting takes {', '.join(missing)}" if missing else "",
            artifact_formats=(artifact,),
            formats=FORMATS,
            kv_types=(KvType.F32,),
            backends=(backend,),
            logits=logits,
            rewind=logits,
            state_save=logits,
            cancel_latency="per-step",
            text_only=not logits,
            unverified=tuple(f"architecture {name}" for name in UNVERIFIED),
            missing=missing,
        )


class LiteRtAdapter(LiteRtFamily):
    """The ``litert`` runtime: ``.tflite`` through the compiled model, XNNPACK on the CPU."""

    name = "litert"
    _package = native.RUNTIME_PACKAGE
    _bundle = False
    _process_bytes = 89 << 20

    def capabilities(self) -> Capabilities:
        """Return what LiteRT can do here, after truly loading its library."""
        try:
            self.prepare()
        except EdgewiseError as error:
            return self.unavailable(error)
        return self.declared(artifact="tflite", logits=True, backend="XNNPACK")

    def prepare(self) -> None:
        """Load the native library and the engine module.

        Raises:
            UnsupportedError: ai-edge-litert is not installed.
            AdapterError: its library does not load.
        """
        native.load(self._package, *_MODULES)
        from edgewise.runtimes.litert import engine  # noqa: F401, PLC0415

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:
        """Load an artifact: a folder with ``model.tflite``, or a bundle, and ``tokenizer.json``.

        Raises:
            UnsupportedError: the runtime is not installed, or cannot run this configuration.
            IntegrityError: the artifact is damaged.
            AdapterError: LiteRT refuses the model.
        """
        from edgewise.runtimes.litert.engine import LiteRtEngine  # noqa: PLC0415

        return LiteRtEngine(artifact, run_config)


adapter = LiteRtAdapter()
