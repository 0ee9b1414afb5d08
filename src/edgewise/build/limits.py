"""What a failure under a memory limit means: native code seldom says that memory ran out."""

from __future__ import annotations

import re

from edgewise.errors import AdapterError, EdgewiseError, ResourceError

__all__ = ["explain"]

_SAID = re.compile(
    r"bad_alloc|MemoryError|out of memory|memory allocation|allocate memory|"
    r"failed to map segment|alloc\w* failed|failed to alloc",
    re.IGNORECASE,
)
_CRASHED = "worker-crashed"


def explain(error: EdgewiseError, limit_bytes: int | None) -> EdgewiseError:
    """Return the error that a worker's failure is, seen with the limit it ran under.

    One whose native lines say that memory ran out is a :class:`ResourceError`. A crash that says
    nothing may have been one: its hint says so.

    Args:
        error: What the call raised.
        limit_bytes: Most anonymous memory the worker could allocate, if there was a limit.
    """
    limit = "" if limit_bytes is None else f", with a limit of {limit_bytes >> 20} MiB"
    hint = "allow more with --memory-limit, or free memory"
    if isinstance(error, ResourceError) and error.code == "worker-out-of-memory":
        error.hint = error.hint or hint
        return error
    if not isinstance(error, AdapterError):
        return error
    lines = [str(line) for line in error.context.get("native_log", [])]
    if any(_SAID.search(line) for line in (error.message, *lines)):
        return ResourceError(
            "worker-out-of-memory",
            f"the worker ran out of memory{limit}: {error.message}",
            context=error.context,
            hint=hint,
            retryable=True,
        )
    if error.code == _CRASHED and limit_bytes is not None:
        error.hint = f"it may have met its limit of {limit_bytes >> 20} MiB: {hint}"
    return error
