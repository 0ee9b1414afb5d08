"""The libraries that check numbers. Where one is missing, nothing is minimised at all."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from edgewise.errors import UnsupportedError

__all__ = ["load", "passes"]


def load(module: str) -> Any:
    """Return a module of a library of the extra ``minimise``.

    Raises:
        UnsupportedError: it is not installed (``minimise-library-missing``). A detector that is
            silently absent would let through what it was asked to find.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise UnsupportedError(
            "minimise-library-missing",
            f"identifiers cannot be detected: {library} is not installed here",
            context={"library": library},
            hint="pip install 'edgewise[minimise]'",
        ) from error


def passes(check: Callable[[str], bool], number: str) -> bool:
    """Return whether a number passes a library's check.

    A check that breaks on a number has not said that it is none: it passes, and is replaced.
    (python-stdnum 2.2 raises ``KeyError`` for Chinese numbers of places that it has no name for.)
    """
    try:
        return bool(check(number))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return True
