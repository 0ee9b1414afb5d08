"""Reading lock files."""

from __future__ import annotations

import re
from collections.abc import Iterable


def pinned(lock: str) -> dict[str, str]:
    """Return ``name -> version``; anything but an exact pin is an error."""
    found = {}
    for line in lock.splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        name, separator, version = text.partition("==")
        assert separator, f"not an exact pin: {line!r}"
        assert re.fullmatch(r"[A-Za-z0-9._+!-]+", version), f"not a plain version: {line!r}"
        found[_normal(name)] = version
    return found


def requirement_names(requirements: Iterable[str]) -> set[str]:
    """Return the normalised names of pip requirements."""
    return {_normal(re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]) for text in requirements}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
