"""Which failures in a worker are told as a want of memory."""

from __future__ import annotations

import errno

import pytest

from edgewise.runtimes.host import _for_want_of_memory


def below(cause: BaseException) -> Exception:
    error = ImportError("numpy could not be imported")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libx.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        below(MemoryError()),
        below(OSError("libx.so: cannot allocate memory in static TLS block")),
    ],
    ids=repr,
)
def test_it_is(error: Exception) -> None:
    assert _for_want_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [ValueError("cannot allocate memory"), OSError(errno.ENOSPC, "full"), below(KeyError("x"))],
    ids=repr,
)
def test_it_is_not(error: Exception) -> None:
    assert not _for_want_of_memory(error)
