"""MLX through mlx-lm's model definitions.

It is made for Apple silicon. On Linux its CPU backend runs the same graph, slowly: enough to
export there and to compare with other runtimes, not to use. Nothing native is loaded by importing
this package.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.footprint import plain_footprint
from edgewise.runtimes.reports import Capabilities
from edgewise.store.digest import file_digest

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["MlxAdapter", "adapter"]

# Of one element, scales and minima in the model's type (16 bits) per 64 included.
_KV_BYTES = {
    KvType.F16: 2.0,
    KvType.BF16: 2.0,
    KvType.F32: 4.0,
    KvType.U8: 1.0 + 4 / 64,
    KvType.U4: 0.5 + 4 / 64,
}
_PROCESS_BYTES = 90 << 20
_ON_CPU = "CPU, for parity and export tests, not for use"
_UNVERIFIED = ("running on Apple silicon (Metal)",)


class MlxAdapter:
    """The ``mlx`` runtime: HF folders in, MLX folders out."""

    name = "mlx"
    source_form = "hf"
    environment = EnvironmentSpec(
        name="mlx",
        package="mlx",
        run=(
            "mlx[cpu]==0.32.4; sys_platform == 'linux'",
            "mlx==0.32.4; sys_platform == 'darwin'",
            "mlx-lm==0.32.2",
        ),
        run_bytes=246 << 20,
        note="For Apple silicon; on Linux it runs on the CPU, slowly.",
    )

    def capabilities(self) -> Capabilities:
        """Return what MLX can do here, after truly loading its library."""
        from edgewise.runtimes.mlx.libraries import installed_version, libraries  # noqa: PLC0415

        version = installed_version()
        try:
            mx = libraries().mx
        except EdgewiseError as error:
            return Capabilities(
                runtime=self.name,
                version=version,
                can_export=False,
                can_run=False,
                reason=error.message,
            )
        from edgewise.runtimes.mlx.caches import KV_TYPES  # noqa: PLC0415
        from edgewise.runtimes.mlx.formats import FORMATS  # noqa: PLC0415

        metal = mx.default_device().type == mx.DeviceType.gpu
        return Capabilities(
            runtime=self.name,
            version=version,
            can_export=True,
            can_run=True,
            artifact_formats=("mlx",),
            formats=FORMATS,
            kv_types=tuple(KV_TYPES),
            backends=("Metal",) if metal else (_ON_CPU,),
            logits=True,
            rewind=True,
            state_save=True,
            cancel_latency="per-step",
            unverified=_UNVERIFIED,
        )

    def prepare(self) -> None:
        """Load MLX and the engine module.

        Raises:
            UnsupportedError: MLX or mlx-lm is not installed.
            AdapterError: MLX's library does not load.
        """
        from edgewise.runtimes.mlx import engine, libraries  # noqa: F401, PLC0415

        libraries.libraries()

    def version(self) -> str:
        """Return MLX's version, or ``not-installed``."""
        from edgewise.runtimes.mlx.libraries import installed_version  # noqa: PLC0415

        return installed_version() or "not-installed"

    def operators_digest(self) -> str:
        """Return the digest of MLX's native libraries.

        Raises:
            UnsupportedError: MLX is not installed, or without its libraries.
        """
        from importlib.util import find_spec  # noqa: PLC0415

        spec = find_spec("mlx")
        folders = [Path(each) for each in (spec and spec.submodule_search_locations) or ()]
        patterns = ("lib/*", "core*")
        files = {p for folder in folders for pattern in patterns for p in folder.glob(pattern)}
        digests = sorted(file_digest(path) for path in files if path.is_file())
        if not digests:
            raise UnsupportedError(
                "runtime-not-installed",
                "mlx is not installed",
                hint="install the runtime: edgewise runtime install mlx",
            )
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return one: MLX reads the weights into memory of its own."""
        return (LoadMode.MALLOC,)

    def huge_pages_possible(self) -> bool:
        """Return false: MLX allocates by itself."""
        return False

    def worker_environment(self, run_config: RunConfig) -> dict[str, str]:  # noqa: ARG002
        """Return nothing: MLX has no setting that must stand before exec."""
        return {}

    def footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return what a model of this shape will take under this configuration."""
        return plain_footprint(
            shape,
            run_config,
            kv_element_bytes=_KV_BYTES.get(run_config.kv_type, 4.0),
            process_bytes=_PROCESS_BYTES,
            process_source="process with MLX, measured on Linux x86_64 (2026-11-30)",
        )

    def exporter(self) -> Exporter:
        """Return the exporter."""
        from edgewise.runtimes.mlx.exporter import MlxExporter  # noqa: PLC0415

        return MlxExporter()

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:
        """Load an artifact's folder.

        Raises:
            InputError: the context is longer than the model's positions.
            UnsupportedError: MLX is not installed, or lacks the architecture or a setting.
            AdapterError: the artifact is damaged.
        """
        from edgewise.runtimes.mlx.engine import MlxEngine  # noqa: PLC0415

        return MlxEngine(artifact, run_config)


adapter = MlxAdapter()
