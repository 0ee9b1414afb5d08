"""WebLLM: a model library that TVM compiles for WebGPU, run by a page in a headless browser.

Its twin for parity is the runtime ``tvm``: the same model definition on this processor. Nothing
of TVM or a browser is loaded by importing this package.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.runtimes.browser.packages import PLAYWRIGHT, WEB_LLM
from edgewise.runtimes.reports import Capabilities
from edgewise.runtimes.webllm.formats import FORMATS
from edgewise.runtimes.webllm.site import ENVIRONMENT, PACKAGE_NAMES, webllm_site

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.browser.server import LoopbackServer
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["WebllmAdapter", "adapter"]

# The browser's and the worker's processes with the page, before a model; measured 2026-11-30 on
# Linux x86_64, Chromium 156 with its software adapter.
_PROCESSES_BYTES = 700 << 20
_KV_BYTES = {"f16": 2.0, "f32": 4.0}


class WebllmAdapter:
    """The ``webllm`` runtime: a checkpoint compiled for WebGPU."""

    name = "webllm"
    source_form = "hf"
    environment = ENVIRONMENT

    def capabilities(self) -> Capabilities:
        """Return what can be done here; exporting and running take different pieces."""
        from edgewise.runtimes.webllm import native, webruntime  # noqa: PLC0415

        cannot_export = list(webruntime.missing_pieces())
        cannot_run, browser = _run_pieces()
        if not cannot_export:
            try:
                native.load_tvm()
            except EdgewiseError as error:
                cannot_export.append(f"{error.message}: {error.hint}")
        missing = (*cannot_export, *cannot_run)
        return Capabilities(
            runtime=self.name,
            version=self.version(),
            can_export=not cannot_export,
            can_run=not cannot_run,
            reason="; ".join(missing),
            artifact_formats=("mlc",),
            formats=FORMATS,
            kv_types=(KvType.F32, KvType.F16),
            backends=(f"WebGPU in {browser}",) if browser and not cannot_run else (),
            logits=True,
            rewind=True,
            state_save=False,
            cancel_latency="per-step",
            unverified=(
                "q0f16 and q4f16_1 in a browser: they need an adapter with shader-f16",
                "any hardware WebGPU adapter: run on Chromium's software adapter only",
            ),
            missing=missing,
        )

    def prepare(self) -> None:
        """Look for all that a run takes, and load the engine module.

        Raises:
            UnsupportedError: something is missing.
        """
        from edgewise.runtimes.browser.chromium import require_browser  # noqa: PLC0415

        require_browser()
        webllm_site()
        from edgewise.runtimes.webllm import web_engine  # noqa: F401, PLC0415

    def version(self) -> str:
        """Return the version of the npm package, or ``not-installed``."""
        try:
            webllm_site()
        except UnsupportedError:
            return "not-installed"
        return WEB_LLM.version

    def operators_digest(self) -> str:
        """Return the digest of WebLLM's script; the operators are in the artifact's library.

        Raises:
            UnsupportedError: the npm package is not installed.
        """
        import hashlib  # noqa: PLC0415

        folder = webllm_site().package_folder
        digest = hashlib.sha256()
        for name in PACKAGE_NAMES:
            digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
        return digest.hexdigest()

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return one: the page reads the weights and copies them to the GPU."""
        return (LoadMode.MALLOC,)

    def huge_pages_possible(self) -> bool:
        """Return ``False``: the browser's allocator is its own."""
        return False

    def worker_environment(self, run_config: RunConfig) -> dict[str, str]:  # noqa: ARG002
        """Return no variable: nothing has to stand before exec."""
        return {}

    def footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        """Return what a model of this shape will take under this configuration."""
        from edgewise.runtimes.footprint import plain_footprint  # noqa: PLC0415

        return plain_footprint(
            shape,
            run_config,
            kv_element_bytes=_KV_BYTES.get(str(run_config.kv_type), 4.0),
            process_bytes=_PROCESSES_BYTES,
            process_source="browser and worker, measured on Linux x86_64 (2026-11-30)",
        )

    def exporter(self) -> Exporter:
        """Return the exporter."""
        from edgewise.runtimes.webllm.exporter import WebllmExporter  # noqa: PLC0415

        return WebllmExporter()

    def serve(self, artifact: Path, run_config: RunConfig, *, port: int = 0) -> LoopbackServer:
        """Return a running server, on loopback, whose page a person can open.

        Raises:
            UnsupportedError: the runtime is not installed, or not this artifact.
            IntegrityError: the artifact is damaged.
            ResourceError: the port is taken.
        """
        from edgewise.runtimes.webllm.site import serve_page  # noqa: PLC0415

        return serve_page(artifact, run_config, port=port)

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:
        """Load an artifact into a page.

        Raises:
            UnsupportedError: something that a run takes is missing, or the configuration asks
                for what the artifact has not.
            IntegrityError: the artifact is damaged.
            AdapterError: the browser or WebLLM failed.
        """
        from edgewise.runtimes.webllm.web_engine import WebllmEngine  # noqa: PLC0415

        return WebllmEngine(artifact, run_config)


def _run_pieces() -> tuple[list[str], str]:
    """Return what a run lacks, each with how to get it, and the browser's name."""
    from edgewise.runtimes.browser.chromium import require_browser  # noqa: PLC0415

    missing, browser = [], ""
    try:
        browser = require_browser().name
    except EdgewiseError as error:
        missing.append(f"{error.message}: {error.hint}")
    try:
        version("playwright")
    except PackageNotFoundError:
        missing.append(f"the Python package playwright: {PLAYWRIGHT}")
    try:
        webllm_site()
    except EdgewiseError as error:
        missing.append(f"{error.message}: {error.hint}")
    return missing, browser


adapter = WebllmAdapter()
