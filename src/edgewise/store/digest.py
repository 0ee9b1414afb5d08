"""The digest of a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from edgewise.store.regular import open_regular

__all__ = ["file_digest"]

_CHUNK_BYTES = 1 << 20


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as 64 hex digits.

    Raises:
        OSError: the file cannot be read, or is no regular file.
    """
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
