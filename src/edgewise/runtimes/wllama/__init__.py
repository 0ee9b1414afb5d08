"""wllama: llama.cpp in WebAssembly, run by a page in a headless browser.

Nothing of a browser is loaded by importing this package.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.runtimes.browser.packages import PLAYWRIGHT, WLLAMA
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.reports import Capabilities
from edgewise.runtimes.wllama.site import ENVIRONMENT, KV_TYPES, PACKAGE_NAMES, wllama_site

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape
    from edgewise.runtimes.browser.server import LoopbackServer
    from edgewise.runtimes.protocol import Engine, Exporter
    from edgewise.runtimes.reports import Footprint

__all__ = ["WllamaAdapter", "adapter"]

# The browser's and the worker's processes with the page, before a model; measured 2026-11-30 on
# Linux x86_64, Chromium 156.
_PROCESSES_BYTES = 430 << 20
_KV_BYTES = {"f16": 2.0, "q8_0": 34 / 32, "f32": 4.0}
_VERSION_TIMEOUT_S = 30.0


class WllamaAdapter:
    """The ``wllama`` runtime: GGUF taken over, run in a browser on the CPU."""

    name = "wllama"
    source_form = "gguf"
    environment: EnvironmentSpec | None = ENVIRONMENT

    def capabilities(self) -> Capabilities:
        """Return what wllama can do here: a browser, Playwright and the npm package are needed."""
        missing, reasons, browser = [], [], ""
        for find in (_browser_name, _playwright_version, wllama_site):
            try:
                found = find()
            except EdgewiseError as error:
                missing.append(error.hint or error.code)
                reasons.append(error.message)
            else:
                browser = browser or str(found)
        return Capabilities(
            runtime=self.name,
            version=WLLAMA.version if _installed() else None,
            can_export=True,
            can_run=not reasons,
            reason="; ".join(reasons),
            artifact_formats=("gguf",),
            kv_types=KV_TYPES,
            backends=() if reasons else (f"CPU WebAssembly in {browser}",),
            logits=True,
            rewind=True,
            state_save=False,
            cancel_latency="per-step",
            missing=tuple(missing),
        )

    def prepare(self) -> None:
        """Look for all that a run takes, and load the engine module.

        Raises:
            UnsupportedError: something is missing.
        """
        from edgewise.runtimes.browser.chromium import require_browser  # noqa: PLC0415

        require_browser()
        _playwright_version()
        wllama_site()
        from edgewise.runtimes.wllama import engine  # noqa: F401, PLC0415

    def version(self) -> str:
        """Return the version of the npm package, or ``not-installed``."""
        return WLLAMA.version if _installed() else "not-installed"

    def operators_digest(self) -> str:
        """Return the digest of the WebAssembly module and the script around it.

        Raises:
            UnsupportedError: the npm package is not installed.
        """
        folder = wllama_site().package_folder
        digest = hashlib.sha256()
        for name in PACKAGE_NAMES:
            digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
        return digest.hexdigest()

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return one: the page reads the model into its own memory."""
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
            process_bytes=_PROCESSES_BYTES + shape.weights_bytes,
            process_source="browser and worker, measured on Linux x86_64 (2026-11-30), and the "
            "copy of the file that the browser keeps beside the WebAssembly memory",
        )

    def exporter(self) -> Exporter:
        """Return the exporter, which takes GGUF files over."""
        from edgewise.runtimes.wllama.exporter import WllamaExporter  # noqa: PLC0415

        return WllamaExporter()

    def serve(self, artifact: Path, run_config: RunConfig, *, port: int = 0) -> LoopbackServer:
        """Return a running server, on loopback, whose page a person can open.

        Raises:
            UnsupportedError: the runtime is not installed, or not this artifact.
            IntegrityError: the artifact is damaged.
            ResourceError: the port is taken.
        """
        from edgewise.runtimes.wllama.site import serve_page  # noqa: PLC0415

        return serve_page(artifact, run_config, port=port)

    def engine(self, artifact: Path, run_config: RunConfig) -> Engine:
        """Load a GGUF file into a page.

        Raises:
            UnsupportedError: something that a run takes is missing, or the configuration asks
                for what wllama has not.
            IntegrityError: the artifact is no sound GGUF file.
            AdapterError: the browser or wllama failed.
        """
        from edgewise.runtimes.wllama.engine import WllamaEngine  # noqa: PLC0415

        return WllamaEngine(artifact, run_config)


def _installed() -> bool:
    try:
        wllama_site()
    except UnsupportedError:
        return False
    return True


def _browser_name() -> str:
    """Return the browser's name and version, asked of itself.

    Raises:
        UnsupportedError: there is none, or it does not start.
    """
    from edgewise.runtimes.browser.chromium import require_browser  # noqa: PLC0415

    path = require_browser()
    try:
        done = subprocess.run(
            [str(path), "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnsupportedError(
            "browser-broken", f"{path} does not start: {error}", hint="install it again"
        ) from error
    found = re.search(r"\S.*?[\d.]{5,}", done.stdout)
    return found[0] if found else path.name


def _playwright_version() -> str:
    """Return Playwright's version.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        return version("playwright")
    except PackageNotFoundError as error:
        raise UnsupportedError(
            "runtime-not-installed",
            "the Python package playwright is not installed here",
            hint=PLAYWRIGHT,
        ) from error


adapter = WllamaAdapter()
