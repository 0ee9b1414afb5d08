"""Small files of ``/proc`` and ``/sys`` below a chosen root, so tests can bring their own tree.

Invariant: an absent, unreadable or garbled file is ``None``, never an exception and never zero.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["cpu_list", "entries", "key_values", "read_int", "read_text"]

_LIMIT_BYTES = 4 << 20


def read_text(root: Path, path: str) -> str | None:
    """Return the file's text without surrounding space and NUL bytes, or ``None``."""
    try:
        with (root / path.lstrip("/")).open("rb") as stream:
            raw = stream.read(_LIMIT_BYTES)
    except (OSError, ValueError):
        return None
    return raw.decode("utf-8", errors="replace").strip("\0 \t\r\n")


def read_int(root: Path, path: str) -> int | None:
    """Return the file's whole text as an integer, or ``None``."""
    text = read_text(root, path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def entries(root: Path, path: str, pattern: str = "*") -> list[Path] | None:
    """Return what the folder holds, sorted by name, or ``None`` when there is no such folder."""
    folder = root / path.lstrip("/")
    try:
        return sorted(folder.glob(pattern)) if folder.is_dir() else None
    except OSError:
        return None


def key_values(text: str | None, separator: str | None = None) -> dict[str, str]:
    """Return ``key value`` or ``key: value`` lines as a mapping; other lines are skipped.

    Args:
        text: The file's text, or ``None``.
        separator: What parts key from value; white space when ``None``.
    """
    pairs = (line.split(separator, 1) for line in (text or "").splitlines())
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}


def cpu_list(text: str | None) -> set[int]:
    """Return the CPU numbers of a kernel list such as ``0-3,7``; empty when garbled."""
    cpus: set[int] = set()
    for part in (text or "").replace("\n", "").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus
