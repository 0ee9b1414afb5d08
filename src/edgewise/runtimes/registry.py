"""Runtimes by name: those that Edgewise brings, and those of the group ``edgewise.runtimes``.

A third party registers an adapter by an entry point; it cannot take the name of one that is here.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.runtimes.protocol import RuntimeAdapter

__all__ = ["GROUP", "adapter", "names"]

GROUP = "edgewise.runtimes"

_OWN = {
    "llamacpp": "edgewise.runtimes.llamacpp",
    "ik": "edgewise.runtimes.ik",
    "onnx-genai": "edgewise.runtimes.onnx_genai",
    "openvino": "edgewise.runtimes.openvino",
    "executorch": "edgewise.runtimes.executorch",
    "litert": "edgewise.runtimes.litert",
    "litert-lm": "edgewise.runtimes.litert_lm",
    "mlx": "edgewise.runtimes.mlx",
    "tvm": "edgewise.runtimes.tvm",
    "webllm": "edgewise.runtimes.webllm",
    "wllama": "edgewise.runtimes.wllama",
    "coreml": "edgewise.runtimes.coreml",
    "qnn": "edgewise.runtimes.qnn",
    "transformers": "edgewise.runtimes.transformers",
}


def names() -> tuple[str, ...]:
    """Return the names of all registered runtimes: Edgewise's own first, then the others."""
    return (*_OWN, *sorted(name for name in _foreign() if name not in _OWN))


def adapter(name: str) -> RuntimeAdapter:
    """Return the adapter registered under ``name``.

    Raises:
        UnsupportedError: no such runtime is registered.
        AdapterError: its entry point cannot be imported.
    """
    where = f"{_OWN[name]}:adapter" if name in _OWN else _foreign().get(name)
    if where is None:
        raise UnsupportedError(
            "runtime-unknown",
            f"no runtime is called {name!r}",
            context={"registered": list(names())},
            hint=f"registered are: {', '.join(names())}",
        )
    module, _, attribute = where.partition(":")
    try:
        return cast("RuntimeAdapter", getattr(import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise AdapterError(
            "runtime-entry-point-broken",
            f"the entry point of runtime {name!r} ({where}) cannot be loaded: {error}",
        ) from error


def _foreign() -> dict[str, str]:
    return {entry.name: entry.value for entry in entry_points(group=GROUP)}
