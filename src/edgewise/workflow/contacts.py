"""Names of the user's contacts, which are replaced in all that leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edgewise.errors import InputError
from edgewise.store.regular import read_regular
from edgewise.workflow.context import Context

__all__ = ["CONTACTS_FILE", "read_contacts"]

CONTACTS_FILE: Final = "contacts.txt"
_BYTES_MAX: Final = 64 << 20


def read_contacts(context: Context, path: Path | None = None) -> tuple[str, ...]:
    """Return the names of a file, one a line; by default those of the home's, where it has one.

    Raises:
        InputError: the file cannot be read, or is not UTF-8 (``minimise-unreadable``). A link in
            the home that leads nowhere cannot be read.
    """
    try:
        if path is None:
            path = context.home.root / CONTACTS_FILE
            try:
                path.lstat()
            except FileNotFoundError:
                return ()
        text = read_regular(path, limit_bytes=_BYTES_MAX).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(
            "minimise-unreadable",
            f"the contacts {path} cannot be read: {error}",
            context={"path": str(path)},
            hint="name a UTF-8 text file of at most 64 MiB with one name a line",
        ) from error
    return tuple(name for line in text.splitlines() if (name := line.strip()))
