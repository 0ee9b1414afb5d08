"""TVM on this processor: the CPU twin of ``webllm``, with the same model definition.

It checks the path that a page takes, where no GPU is at hand. The code is WebLLM's; only the
target differs. Nothing of TVM is loaded by importing this package.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.reports import Capabilities
from edgewise.runtimes.webllm import native
from edgewise.runtimes.webllm.formats import FORMATS
from edgewise.runtimes.webllm.site import APACHE_TVM

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["ENVIRONMENT", "TvmAdapter", "adapter"]

ENVIRONMENT: Final = EnvironmentSpec(
    name="tvm",
    package="tvm",
    run=(APACHE_TVM,),
    run_bytes=430 << 20,
    note="to export, a C++ compiler must be on this machine",
)

# The worker with TVM loaded, before a model; measured 2026-11-30 on Linux x86_64.
_PROCESS_BYTES = 250 << 20
_KV_BYTES = {"f16": 2.0, "f32": 4.0}


class TvmAdapter:
    """The ``tvm`` runtime: a checkpoint compiled for this processor through LLVM."""

    name = "tvm"
    source_form = "hf"
    environment = ENVIRONMENT

    def capabilities(self) -> Capabilities:
        """Return what TVM can do here, after truly loading its libraries."""
        try:
            tvm = native.load_tvm()
        except EdgewiseError as error:
            return Capabilities(
                runtime=self.name,
                version=native.installed_version(),
                can_export=False,
                can_run=False,
                reason=error.message,
                formats=FORMATS,
                missing=(error.hint or APACHE_TVM,),
            )
        linker = native.compiler() is not None
        return Capabilities(
            runtime=self.name,
            version=tvm.__version__,
            can_export=linker,
            can_run=True,
            reason="" if linker else "there is no C++ compiler to link the model's library",
            artifact_formats=("tvm",),
            formats=FORMATS,
            kv_types=(KvType.F32, KvType.F16),
            backends=("CPU (LLVM)",),
            logits=True,
            rewind=True,
            state_save=True,
            cancel_latency="per-step",
            missing=() if linker else ("a C++ compiler, e.g. g++",),
        )

    def prepare(self) -> None:
        """Load TVM and the engine module.

        Raises:
            UnsupportedError: TVM is not installed.
            AdapterError: its libraries do not load.
        """
        native.load_tvm()
        from edgewise.runtimes.webllm import engine  # noqa: F401, PLC0415

    def version(self) -> str:
        """Return the version, or ``not-installed``."""
        return native.installed_version() or "not-installed"

    def operators_digest(self) -> str:
        """Return the digest of TVM's libraries; the operators are in the artifact's library.

        Raises:
            UnsupportedError: TVM is not installed.
        """
        return native.library_digest()

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return one: TVM reads the weights into memory of its own."""
        return (LoadMode.MALLOC,)

    def huge_pages_possible(self) -> bool:
        """Return ``False``: TVM aligns its own buffers and asks for no huge pages."""
        return False

    def worker_environment(self, run_config: RunConfig) -> dict[str, str]:
        """Return the variable that sizes TVM's thread pool."""
        return {"TVM_NUM_THREADS": str(run_config.threads)}

    def footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return what a model of this shape will take under this configuration."""
        from edgewise.runtimes.footprint import plain_footprint  # noqa: PLC0415

        return plain_footprint(
            shape,
            run_config,
            kv_element_bytes=_KV_BYTES.get(str(run_config.kv_type), 4.0),
            process_bytes=_PROCESS_BYTES,
            process_source="worker with TVM, measured on Linux x86_64 (2026-11-30)",
        )

    def exporter(self) -> Exporter:
        """Return the exporter."""
        from edgewise.runtimes.webllm.exporter import TvmExporter  # noqa: PLC0415

        return TvmExporter()

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:
        """Load an artifact.

        Raises:
            UnsupportedError: TVM is not installed, or the artifact or configuration does not fit.
            IntegrityError: the artifact is damaged.
            AdapterError: the library does not load.
        """
        from edgewise.runtimes.webllm.engine import TvmEngine  # noqa: PLC0415

        return TvmEngine(artifact, run_config)


adapter = TvmAdapter()
