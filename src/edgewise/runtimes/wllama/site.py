"""What wllama's page is served with and what it is told to load."""

from __future__ import annotations

from pathlib import Path

from edgewise.core.recipe import KvType, RunConfig
from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.runtimes.browser.packages import PLAYWRIGHT, WLLAMA
from edgewise.runtimes.browser.server import LoopbackServer
from edgewise.runtimes.browser.site import MODEL_PREFIX, Site, find_package, open_site
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.stepped import refuse_hints

__all__ = [
    "ENVIRONMENT",
    "FILE_BYTES_MAX",
    "KV_TYPES",
    "PACKAGE_NAMES",
    "gguf_of",
    "load_params",
    "serve_page",
    "wllama_site",
]

ENVIRONMENT = EnvironmentSpec(
    name="wllama",
    package="wllama",
    run=(PLAYWRIGHT,),
    run_bytes=280 << 20,
    npm=(WLLAMA,),
    note="a Chromium-class browser and, to install, npm must be on this machine",
)

# wllama's own limit for one file: the size of an ArrayBuffer.
FILE_BYTES_MAX = (1 << 31) - 1
KV_TYPES = (KvType.F16, KvType.Q8_0, KvType.F32)
PACKAGE_NAMES = ("esm/index.js", "esm/wasm/wllama.wasm")

_PAGE = Path(__file__).with_name("page")
_THREADS_MAX = 32


def wllama_site() -> Site:
    """Return the parts of wllama's site.

    Raises:
        UnsupportedError: its npm package is not installed here.
    """
    return Site(
        runtime="wllama",
        page=_PAGE,
        package=WLLAMA,
        package_folder=find_package(WLLAMA, ENVIRONMENT),
        package_names=PACKAGE_NAMES,
    )


def gguf_of(artifact: Path) -> Path:
    """Return the GGUF file of an artifact, which is that file or a folder that holds it.

    Raises:
        IntegrityError: the folder does not hold exactly one.
        UnsupportedError: it is larger than a browser takes in one piece.
    """
    found = [artifact] if artifact.is_file() else sorted(artifact.glob("*.gguf"))
    if len(found) != 1:
        raise IntegrityError(
            "artifact-incomplete",
            f"{artifact} holds {len(found)} GGUF files where wllama runs one",
            hint="build the artifact again",
        )
    refuse_too_large(found[0])
    return found[0]


def refuse_too_large(path: Path) -> None:
    """Refuse a file that does not fit into an ArrayBuffer.

    Raises:
        UnsupportedError: it does not.
    """
    size = path.stat().st_size
    if size > FILE_BYTES_MAX:
        raise UnsupportedError(
            "wllama-file-too-large",
            f"{path.name} has {size} bytes; a browser takes {FILE_BYTES_MAX} in one file",
            context={"size_bytes": size, "limit_bytes": FILE_BYTES_MAX},
            hint="choose a format of fewer bits, or a smaller model; split files are not made here",
        )


def load_params(model: Path, run_config: RunConfig) -> dict[str, object]:
    """Return what the page's ``load`` takes.

    Raises:
        UnsupportedError: the run configuration asks for what wllama has not.
    """
    refuse_hints("wllama", run_config, ())
    if run_config.kv_type not in KV_TYPES:
        raise UnsupportedError(
            "kv-type-unsupported",
            f"wllama has no KV cache of the type {run_config.kv_type}",
            hint=f"it has: {', '.join(KV_TYPES)}",
        )
    if run_config.threads > _THREADS_MAX:
        raise UnsupportedError(
            "threads-unsupported", f"wllama is run with at most {_THREADS_MAX} threads"
        )
    return {
        "model": MODEL_PREFIX + model.name,
        "context_length": run_config.context_length,
        "batch_tokens": run_config.batch_tokens,
        "threads": run_config.threads,
        "kv_type": str(run_config.kv_type),
        "flash_attention": run_config.flash_attention,
    }


def serve_page(artifact: Path, run_config: RunConfig, *, port: int = 0) -> LoopbackServer:
    """Return a running server whose page a person can open and talk to the model on.

    Raises:
        UnsupportedError: wllama is not installed, or cannot run this artifact so.
        IntegrityError: the artifact is no single GGUF file.
        ResourceError: the port is taken.
    """
    model = gguf_of(artifact)
    return open_site(wllama_site(), model, load=load_params(model, run_config), port=port)
