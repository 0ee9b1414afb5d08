"""Files that queued operations are about: what they hold, their version, and their place."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

from edgewise.errors import InputError
from edgewise.route.offline import Operation
from edgewise.store.regular import read_regular

__all__ = [
    "DOCUMENT_BYTES_MAX",
    "changed_since",
    "document_version",
    "read_document",
    "real_place",
    "require_free",
    "taken",
]

DOCUMENT_BYTES_MAX = 1 << 20


def document_version(path: Path) -> str | None:
    """Return the SHA-256 of a file, which is its version; ``None`` when it is gone.

    Raises:
        InputError: it cannot be read (``document-unreadable``).
    """
    try:
        data = read_regular(path, limit_bytes=DOCUMENT_BYTES_MAX, follow=False)
        return hashlib.sha256(data).hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EFBIG:  # none that was asked about is as large
            return "larger than any that was asked about"
        if error.errno == errno.ELOOP:  # nor was one a link
            return "a symbolic link"
        raise _unreadable(path, error.strerror or str(error)) from error


def read_document(path: Path) -> tuple[str, str]:
    """Return the text of a document and its version.

    Raises:
        InputError: it cannot be read, is no text in UTF-8, or has more than
            :data:`DOCUMENT_BYTES_MAX` (``document-unreadable``); it is a symbolic link
            (``document-is-link``).
    """
    try:
        data = read_regular(path, limit_bytes=DOCUMENT_BYTES_MAX, follow=False)
        return data.decode("utf-8"), hashlib.sha256(data).hexdigest()
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"it is not UTF-8 at byte {error.start}") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _is_link(path) from error
        raise _unreadable(path, error.strerror or str(error)) from error


def real_place(path: Path) -> Path:
    """Return the place of a file that its name stands for, and which no link leads elsewhere.

    Links among its folders are followed now, so that none is later.

    Raises:
        InputError: the name itself is a symbolic link (``document-is-link``).
    """
    place = path.parent.resolve() / path.name
    if place.is_symlink():
        raise _is_link(place)
    return place


def changed_since(operation: Operation) -> str | None:
    """Return why the file that an operation is about is not what it was, ``None`` where it is.

    Raises:
        InputError: it cannot be read (``document-unreadable``), or is gone (``document-gone``).
    """
    asked = operation.document
    if asked is None or operation.apply_to is None:  # the document's name is the application's own
        return None
    path = Path(asked.document_id)
    now = document_version(path)
    if now is None:
        raise InputError(
            "document-gone",
            f"{path} is not there, and the operation is about it",
            context={"path": str(path)},
            hint="put it back, or cancel the operation",
        )
    if now == asked.version:
        return None
    return f"{path} changed since it was queued; nothing was sent: queue the request anew"


def require_free(target: Path, document: Path | None) -> None:
    """Return when an answer could go there: nothing is there, or the document itself.

    Raises:
        InputError: another file is there (``apply-target-exists``).
    """
    if target != document and os.path.lexists(target):
        raise taken(target)


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(
        "document-unreadable",
        f"{path} cannot be read: {why}",
        context={"path": str(path)},
        hint="name a text file in UTF-8 of at most 1 MiB",
    )


def _is_link(path: Path) -> InputError:
    return InputError(
        "document-is-link",
        f"{path} is a symbolic link to {path.resolve()}, and may lead to another file later",
        context={"path": str(path), "target": str(path.resolve())},
        hint="name the file itself",
    )


def taken(target: Path) -> InputError:
    """Return the error of an answer whose place another file has."""
    return InputError(
        "apply-target-exists",
        f"{target} is there already, and is not the document that was asked about",
        context={"path": str(target)},
        hint="move it away; an answer that came is shown by "
        "`edgewise queue show OPERATION --answer`",
    )
