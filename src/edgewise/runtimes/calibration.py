"""Reading a calibration set: UTF-8 text, a sample per line."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edgewise.errors import InputError
from edgewise.store.regular import read_regular

__all__ = ["CalibrationLines", "read_lines"]

_BYTES_MAX: Final = 64 << 20
_LINE_CHARACTERS_MAX: Final = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationLines:
    """The samples, blank lines left out, and the SHA-256 of the file they came from."""

    revision: str
    samples: tuple[str, ...]


def read_lines(path: Path) -> CalibrationLines:
    """Return the samples of a calibration set.

    Raises:
        InputError: it cannot be read or is larger than 64 MiB (``calibration-unreadable``), has
            no sample (``calibration-empty``), or a line so long that it cannot be a sample
            (``calibration-line-too-long``).
    """
    try:
        raw = read_regular(path, limit_bytes=_BYTES_MAX)
        lines = raw.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "calibration-unreadable",
            f"the calibration set {path} cannot be read: {error}",
            hint="it takes a text file in UTF-8 with a sample per line",
        ) from error
    for number, line in enumerate(lines, start=1):
        if len(line) > _LINE_CHARACTERS_MAX:
            raise InputError(
                "calibration-line-too-long",
                f"line {number} of the calibration set has {len(line)} characters; a sample has "
                f"at most {_LINE_CHARACTERS_MAX}",
                context={"line": number, "characters": len(line)},
                hint="put a sample on each line",
            )
    samples = tuple(line for line in lines if line.strip())
    if not samples:
        raise InputError(
            "calibration-empty",
            f"the calibration set {path} holds no text",
            hint="give some dozens of lines of ordinary text",
        )
    return CalibrationLines(revision=hashlib.sha256(raw).hexdigest(), samples=samples)
