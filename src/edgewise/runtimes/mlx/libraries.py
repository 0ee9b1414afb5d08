"""MLX and the models of mlx-lm, without the half of mlx-lm that is not used.

Importing ``mlx_lm`` the ordinary way brings in transformers, which takes seconds, and lowers the
process's limit of open files. The model definitions need MLX alone, so the package is entered
through an empty stand-in. A process that has imported the whole package keeps what it has.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any

from edgewise.errors import AdapterError, UnsupportedError

__all__ = ["build_model", "installed_version", "libraries", "tools"]

_INSTALL_HINT = "install the runtime: edgewise runtime install mlx"
_DISTRIBUTIONS = ("mlx", "mlx-lm")

# Architectures that mlx-lm defines under another one's name.
_SAME_AS = {"mistral": "llama", "iquestcoder": "llama", "xverse": "llama"}


def installed_version() -> str | None:
    """Return the version of MLX, or ``None`` when MLX or mlx-lm is not installed."""
    try:
        versions = [version(name) for name in _DISTRIBUTIONS]
    except PackageNotFoundError:
        return None
    return versions[0]


def tools() -> dict[str, str]:
    """Return the versions of what takes part."""
    return {name: version(name) for name in _DISTRIBUTIONS}


@functools.cache
def libraries() -> SimpleNamespace:
    """Return ``mx``, ``nn``, ``utils`` (MLX) and ``cache`` (mlx-lm's KV caches).

    Raises:
        UnsupportedError: MLX or mlx-lm is not installed.
        AdapterError: MLX's library does not load.
    """
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or installed_version() is None:
        raise UnsupportedError(
            "runtime-not-installed", "mlx and mlx-lm are not installed", hint=_INSTALL_HINT
        )
    if "mlx_lm" not in sys.modules:
        sys.modules["mlx_lm"] = importlib.util.module_from_spec(spec)
    try:
        return SimpleNamespace(
            mx=importlib.import_module("mlx.core"),
            nn=importlib.import_module("mlx.nn"),
            utils=importlib.import_module("mlx.utils"),
            cache=importlib.import_module("mlx_lm.models.cache"),
        )
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise AdapterError(
            "runtime-library-broken",
            f"MLX does not load: {error}",
            hint="on Linux it is mlx[cpu]; on macOS it needs Apple silicon",
        ) from error


def build_model(config: dict[str, Any]) -> Any:
    """Return an unloaded model of the architecture that a config names.

    Raises:
        UnsupportedError: mlx-lm has no such architecture, or the config lacks what it needs.
    """
    libraries()
    kind = str(config.get("model_type", ""))
    name = f"mlx_lm.models.{_SAME_AS.get(kind, kind)}"
    if not kind.isidentifier() or importlib.util.find_spec(name) is None:
        raise UnsupportedError(
            "architecture-unsupported",
            f"mlx-lm has no architecture {kind!r}",
            hint="a newer mlx-lm may have it; llamacpp may run this model",
        )
    architecture = importlib.import_module(name)
    try:
        return architecture.Model(architecture.ModelArgs.from_dict(_with_rope(config)))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UnsupportedError(
            "architecture-unsupported",
            f"mlx-lm cannot build this {kind} model: {type(error).__name__}: {error}",
        ) from error


def _with_rope(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config whose rotary base stands where model definitions look for it.

    Newer checkpoints put it into ``rope_parameters``; a definition that does not know that key
    would quietly take its default.
    """
    found = config.get("rope_parameters")
    if not isinstance(found, dict):
        return config
    full, sliding = found.get("full_attention", found), found.get("sliding_attention", {})
    added: dict[str, Any] = {}
    if "rope_theta" in full:
        added["rope_theta"] = full["rope_theta"]
    if "rope_theta" in sliding:
        added["rope_local_base_freq"] = sliding["rope_theta"]
    if full.get("rope_type", "default") != "default":
        added["rope_scaling"] = full
    return {**added, **{key: value for key, value in config.items() if value is not None}}
