"""Finding the model in an artifact: a ``.tflite`` file, or the model inside a bundle.

A bundle starts each of its parts at a multiple of 16 KiB, and this project's exporter writes the
model last, so it reaches from its own identifier to the end of the file.
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edgewise.errors import IntegrityError
from edgewise.store.home import storage_error

__all__ = ["BUNDLE_FILE", "MODEL_FILE", "StoredModel", "find_bundle", "find_model"]

MODEL_FILE = "model.tflite"
BUNDLE_FILE = "model.litertlm"

_MODEL_IDENTIFIER = b"TFL3"
_BUNDLE_IDENTIFIER = b"LITERTLM"
_BLOCK = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """Where a model's bytes lie.

    Attributes:
        file: The file that holds them.
        offset: First byte.
        size: Bytes.
    """

    file: Path
    offset: int
    size: int

    def map(self) -> memoryview:
        """Return the bytes, mapped, not read."""
        with self.file.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(mapped)[self.offset : self.offset + self.size]

    def read(self) -> bytes:
        """Return the bytes, read into memory."""
        with self.file.open("rb") as stream:
            stream.seek(self.offset)
            return stream.read(self.size)

    def copy_to(self, destination: Path, edits: Iterable[tuple[int, bytes]]) -> None:
        """Write the bytes to a file of their own, some of them replaced.

        Raises:
            ResourceError: the file cannot be written, or the disk is full.
        """
        try:
            with self.file.open("rb") as stream, destination.open("wb") as copy:
                stream.seek(self.offset)
                shutil.copyfileobj(stream, copy, 1 << 20)
                for offset, data in edits:
                    copy.seek(offset)
                    copy.write(data)
        except OSError as error:
            raise storage_error(error, destination, "copying the model") from error


def find_bundle(artifact: Path) -> Path:
    """Return the ``.litertlm`` file of an artifact.

    Raises:
        IntegrityError: there is none, or it is no bundle.
    """
    file = artifact if artifact.is_file() else artifact / BUNDLE_FILE
    if not _starts(file, _BUNDLE_IDENTIFIER, at=0):
        raise _damaged(file, "no LiteRT-LM bundle")
    return file


def find_model(artifact: Path) -> StoredModel:
    """Return where the model of an artifact lies.

    Args:
        artifact: The artifact's folder, or its ``.tflite`` or ``.litertlm`` file.

    Raises:
        IntegrityError: there is no model in it.
    """
    file = artifact
    if not artifact.is_file():
        bundle, file = artifact / BUNDLE_FILE, artifact / MODEL_FILE
        file = bundle if bundle.is_file() and not file.is_file() else file
    if _starts(file, _BUNDLE_IDENTIFIER, at=0):
        size = file.stat().st_size
        for offset in range(_BLOCK, size, _BLOCK):
            if _starts(file, _MODEL_IDENTIFIER, at=offset + 4):
                return StoredModel(file=file, offset=offset, size=size - offset)
        raise _damaged(file, "a bundle without a model")
    if not _starts(file, _MODEL_IDENTIFIER, at=4):
        raise _damaged(file, "no LiteRT model")
    return StoredModel(file=file, offset=0, size=file.stat().st_size)


def _starts(file: Path, identifier: bytes, *, at: int) -> bool:
    try:
        with file.open("rb") as stream:
            stream.seek(at)
            return stream.read(len(identifier)) == identifier
    except FileNotFoundError:
        return False


def _damaged(file: Path, what: str) -> IntegrityError:
    return IntegrityError(
        "artifact-damaged",
        f"{file.name} is {what}" if file.is_file() else f"the artifact has no {file.name}",
        context={"file": file.name},
        hint="build the artifact again",
    )
