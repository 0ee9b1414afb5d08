"""Huge pages for weights in ordinary memory; the allocator is told before the worker starts."""

from __future__ import annotations

import os
import platform

from edgewise.core.recipe import RunConfig

__all__ = ["environment", "possible"]

# glibc learned to ask for transparent huge pages in 2.35.
_GLIBC = (2, 35)


def possible() -> bool:
    """Return whether a worker's allocator can ask for huge pages here."""
    library, version = platform.libc_ver()
    if library != "glibc":
        return False
    return tuple(int(part) for part in version.split(".")[:2]) >= _GLIBC


def environment(run_config: RunConfig) -> dict[str, str]:
    """Return the variables that ask for them; a tunable that is set already is kept."""
    if not run_config.huge_pages:
        return {}
    mine = "glibc.malloc.hugetlb=1"
    theirs = os.environ.get("GLIBC_TUNABLES")
    return {"GLIBC_TUNABLES": f"{theirs}:{mine}" if theirs else mine}
