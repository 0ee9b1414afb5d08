"""Runtimes by name, found through the entry-point group ``edgewise.runtimes``."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import cast

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.runtimes.protocol import RuntimeAdapter

__all__ = ["GROUP", "adapter", "names"]

GROUP = "edgewise.runtimes"


def names() -> tuple[str, ...]:
    """Return the names of all registered runtimes, sorted."""
    return tuple(sorted(_entries()))


def adapter(name: str) -> RuntimeAdapter:
    """Return the adapter registered under ``name``.

    Raises:
        UnsupportedError: no such runtime is registered.
        AdapterError: its entry point cannot be imported.
    """
    entry = _entries().get(name)
    if entry is None:
        raise UnsupportedError(
            "runtime-unknown",
            f"no runtime is called {name!r}",
            context={"registered": list(names())},
            hint=f"registered are: {', '.join(names()) or 'none'}",
        )
    try:
        return cast("RuntimeAdapter", entry.load())
    except (ImportError, AttributeError) as error:
        raise AdapterError(
            "runtime-entry-point-broken",
            f"the entry point of runtime {name!r} ({entry.value}) cannot be loaded: {error}",
        ) from error


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
