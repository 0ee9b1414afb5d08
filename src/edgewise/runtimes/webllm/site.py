"""What WebLLM's page is served with and what it is told to load; and what it takes to have both."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edgewise.core.recipe import RunConfig
from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.runtimes.browser.packages import PLAYWRIGHT, WEB_LLM
from edgewise.runtimes.browser.server import LoopbackServer
from edgewise.runtimes.browser.site import MODEL_PREFIX, Site, find_package, open_site
from edgewise.runtimes.environment import EnvironmentSpec
from edgewise.runtimes.stepped import refuse_hints
from edgewise.runtimes.webllm.artifact import WEB_LIBRARY, About, read_about
from edgewise.runtimes.webllm.formats import numbers

__all__ = [
    "APACHE_TVM",
    "ENVIRONMENT",
    "PACKAGE_NAMES",
    "load_params",
    "serve_page",
    "web_about",
    "webllm_site",
]

APACHE_TVM: Final = "apache-tvm==0.27.0.post1"

ENVIRONMENT: Final = EnvironmentSpec(
    name="webllm",
    package="webllm",
    run=(PLAYWRIGHT,),
    export=(APACHE_TVM,),
    run_bytes=360 << 20,
    export_bytes=320 << 20,
    npm=(WEB_LLM,),
    note="to export, emscripten (emcc) must be on this machine; to run, a Chromium-class browser "
    "and, to install, npm",
)

PACKAGE_NAMES: Final = ("lib/index.js",)
_PAGE = Path(__file__).with_name("page")


def webllm_site() -> Site:
    """Return the parts of WebLLM's site.

    Raises:
        UnsupportedError: its npm package is not installed here.
    """
    return Site(
        runtime="webllm",
        page=_PAGE,
        package=WEB_LLM,
        package_folder=find_package(WEB_LLM, ENVIRONMENT),
        package_names=PACKAGE_NAMES,
    )


def web_about(artifact: Path) -> About:
    """Return what a page's artifact says of itself.

    Raises:
        IntegrityError: it is damaged, or was compiled for a processor.
    """
    about = read_about(artifact)
    if about.target != "webgpu" or not (artifact / WEB_LIBRARY).is_file():
        raise IntegrityError(
            "artifact-incomplete",
            f"the artifact holds no {WEB_LIBRARY} for a page: it was compiled for {about.target}",
            hint="build it for webllm",
        )
    return about


def load_params(about: About, run_config: RunConfig) -> dict[str, object]:
    """Return what the page's ``load`` takes.

    Raises:
        UnsupportedError: the run configuration asks for what the artifact or WebLLM has not.
    """
    refuse_hints("webllm", run_config, ())
    kept = numbers(about.format.name).kv_type
    if run_config.kv_type.value != kept:
        raise UnsupportedError(
            "kv-type-unsupported",
            f"this artifact keeps its KV cache in {kept}, not in {run_config.kv_type}",
            hint=f"run it with --kv {kept}",
        )
    if run_config.context_length > about.config.context_length:
        raise UnsupportedError(
            "context-too-long",
            f"the model was trained with {about.config.context_length} tokens; "
            f"{run_config.context_length} were asked for",
            hint=f"choose a context of at most {about.config.context_length}",
        )
    return {"model": MODEL_PREFIX, "context_length": run_config.context_length}


def serve_page(artifact: Path, run_config: RunConfig, *, port: int = 0) -> LoopbackServer:
    """Return a running server whose page a person can open and talk to the model on.

    Raises:
        UnsupportedError: WebLLM is not installed, or cannot run this artifact so.
        IntegrityError: the artifact is damaged.
        ResourceError: the port is taken.
    """
    load = load_params(web_about(artifact), run_config)
    return open_site(webllm_site(), artifact, load=load, port=port)
