"""Reading the small files of a checkpoint folder: regular, bounded, JSON objects."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from edgewise.errors import InputError, IntegrityError
from edgewise.store.regular import read_regular

__all__ = ["bad_json", "read_bytes", "read_json"]


def read_json(folder: Path, name: str, limit_bytes: int) -> dict[str, Any] | None:
    """Return the object in a JSON file, ``None`` when there is no such file.

    Raises:
        InputError: it cannot be read, or is no regular file (``model-unreadable``).
        IntegrityError: it is too large or no JSON object (``hf-json-invalid``).
    """
    raw = read_bytes(folder, name, limit_bytes)
    if raw is None:
        return None
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise bad_json(folder, name, str(error)) from error
    if not isinstance(value, dict):
        raise bad_json(folder, name, "it is not an object")
    return value


def read_bytes(folder: Path, name: str, limit_bytes: int) -> bytes | None:
    """Return a regular file's bytes, ``None`` when there is no such file; errors as above."""
    try:
        return read_regular(folder / name, limit_bytes=limit_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise bad_json(folder, name, f"it is larger than {limit_bytes} bytes") from error
        raise InputError(
            "model-unreadable",
            f"{folder / name} cannot be read: {error.strerror or error}",
            context={"path": str(folder / name)},
            hint="check that it is a regular file and that you may read it",
        ) from error


def bad_json(folder: Path, name: str, why: str) -> IntegrityError:
    """Return the error for a file whose content cannot be right."""
    return IntegrityError(
        "hf-json-invalid",
        f"{name} in {folder} cannot be read: {why}",
        context={"path": str(folder), "file": name, "reason": why},
        hint="the folder is damaged or incomplete: fetch the checkpoint again",
    )
