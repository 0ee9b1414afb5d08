"""The digest of a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["file_digest"]

_CHUNK_BYTES = 1 << 20


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as 64 hex digits.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
