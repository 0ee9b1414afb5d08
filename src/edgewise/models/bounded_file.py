"""A regular file read forwards through one bounded buffer.

Invariants: no read and no allocation is larger than the bytes that can still be in the file, or
than the header limit of the format; a pipe, device or directory is never opened for reading;
every refusal names the path, the field and the offset. It does not know any format: the caller
gives the code prefix.
"""

from __future__ import annotations

import os
import stat
import struct
from types import TracebackType
from typing import BinaryIO, NoReturn, Self

from edgewise.errors import InputError, IntegrityError

__all__ = ["BoundedFile"]

# One read of this size takes the whole header of most models, and costs little when it does not.
_CHUNK_BYTES = 1 << 20

_U64 = struct.Struct("<Q")

_TRUNCATED_HINT = "the file is incomplete: fetch it again and compare its digest"


class BoundedFile:
    """A forward reader that cannot be made to read or allocate more than the file holds.

    Attributes:
        path: As the caller named it.
        size_bytes: Length when it was opened.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, prefix: str, header_limit_bytes: int
    ) -> None:
        self.path = os.fspath(path)
        self._prefix = prefix
        self._handle = self._open()
        self.size_bytes = os.fstat(self._handle.fileno()).st_size
        self._limit = min(self.size_bytes, header_limit_bytes)
        self._buffer = b""
        self._base = 0  # offset in the file of the first byte of the buffer
        self._pos = 0  # position in the buffer of the next byte

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handle.close()

    @property
    def offset_bytes(self) -> int:
        """Return the position of the next byte in the file."""
        return self._base + self._pos

    @property
    def remaining_bytes(self) -> int:
        """Return how many bytes the file still holds."""
        return self.size_bytes - self.offset_bytes

    def fail(
        self,
        code: str,
        message: str,
        *,
        field: str,
        offset_bytes: int | None = None,
        hint: str | None = None,
        **context: object,
    ) -> NoReturn:
        """Raise the error for a violation found in this file.

        Raises:
            IntegrityError: always; ``code`` gets the prefix of the format.
        """
        where = self.offset_bytes if offset_bytes is None else offset_bytes
        facts = {"path": self.path, "field": field, "offset_bytes": where, **context}
        raise IntegrityError(
            f"{self._prefix}-{code}",
            f"{message} ({field} at byte {where} of {self.path})",
            context=facts,
            hint=hint or "the file is damaged or was not written for this format: fetch it again",
        )

    def take(self, count: int, field: str) -> bytes:
        """Return the next ``count`` bytes.

        Raises:
            IntegrityError: fewer are left (``truncated``), or the header would grow beyond its
                limit (``header-too-large``).
        """
        end = self._pos + count
        if end > len(self._buffer):
            self._fill(count, field)
            end = count
        piece = self._buffer[self._pos : end]
        self._pos = end
        return piece

    def peek(self, count: int) -> bytes:
        """Return up to ``count`` of the next bytes without moving, fewer at the end."""
        count = min(count, self.remaining_bytes)
        piece = self.take(count, "start")
        self._pos -= count
        return piece

    def take_u32(self, field: str) -> int:
        """Return the next four bytes as a number.

        Raises:
            IntegrityError: as for :meth:`take`.
        """
        return int.from_bytes(self.take(4, field), "little")

    def take_u64(self, field: str) -> int:
        """Return the next eight bytes as a number.

        Raises:
            IntegrityError: as for :meth:`take`.
        """
        return int.from_bytes(self.take(8, field), "little")

    def take_name(self, field: str, code: str, limit_bytes: int) -> str:
        """Return a text with its length in front: not empty, not too long, UTF-8.

        Raises:
            IntegrityError: its length is not from 1 to ``limit_bytes`` (``code``), it is not
                UTF-8 (``invalid-utf8``), or as for :meth:`take`.
        """
        at = self.offset_bytes
        length = self.take_u64(field)
        if not 0 < length <= limit_bytes:
            self.fail(
                code,
                f"a name of {length} bytes; 1 to {limit_bytes} are allowed",
                field=field,
                offset_bytes=at,
                length_bytes=length,
            )
        return self.text(self.take(length, field), field, at)

    def text(self, raw: bytes, field: str, offset_bytes: int) -> str:
        """Return bytes as text.

        Raises:
            IntegrityError: they are not UTF-8 (``invalid-utf8``).
        """
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(
                "invalid-utf8", "the text is not UTF-8", field=field, offset_bytes=offset_bytes
            )

    def take_strings(self, count: int, field: str, *, limit_bytes: int) -> list[bytes]:
        """Return ``count`` byte strings, each preceded by its length in eight bytes.

        The caller has checked ``count`` against the remaining bytes. One loop over the buffer,
        since a vocabulary has hundreds of thousands of them.

        Raises:
            IntegrityError: a string is longer than ``limit_bytes`` (``string-too-long``), or as
                for :meth:`take`.
        """
        out: list[bytes] = []
        append = out.append
        length_at = _U64.unpack_from
        buffer, pos, have = self._buffer, self._pos, len(self._buffer)
        for _ in range(count):
            start = pos + 8
            if start > have:
                self._pos = pos
                self._fill(8, field)
                buffer, pos, have = self._buffer, 0, len(self._buffer)
                start = 8
            (length,) = length_at(buffer, pos)
            end = start + length
            if length > limit_bytes:
                self._pos = pos
                self.fail(
                    "string-too-long",
                    f"a string claims {length} bytes; at most {limit_bytes} are allowed",
                    field=field,
                    length_bytes=length,
                )
            if end > have:
                self._pos = start
                self._fill(length, field)
                buffer, pos, have = self._buffer, 0, len(self._buffer)
                start, end = 0, length
            append(buffer[start:end])
            pos = end
        self._pos = pos
        return out

    def _fill(self, count: int, field: str) -> None:
        """Make the next ``count`` bytes available at position 0 of the buffer."""
        if count > self.remaining_bytes:
            self.fail(
                "truncated",
                f"{count} bytes are needed and {self.remaining_bytes} are left",
                field=field,
                hint=_TRUNCATED_HINT,
                needed_bytes=count,
                file_size_bytes=self.size_bytes,
            )
        if self.offset_bytes + count > self._limit:
            self.fail(
                "header-too-large",
                f"the header would be larger than {self._limit} bytes",
                field=field,
                limit_bytes=self._limit,
            )
        kept = self._buffer[self._pos :]
        self._base += self._pos
        self._pos = 0
        wanted = min(max(count - len(kept), _CHUNK_BYTES), self._limit - self._base - len(kept))
        self._buffer = kept + self._handle.read(wanted)
        if len(self._buffer) < count:
            self.fail(
                "truncated",
                "the file became shorter while it was read",
                field=field,
                hint=_TRUNCATED_HINT,
                needed_bytes=count,
                file_size_bytes=self.size_bytes,
            )

    def _open(self) -> BinaryIO:
        try:
            # Looked at before it is opened: opening a device can have effects of its own.
            self._require_regular(os.stat(self.path).st_mode)  # noqa: PTH116
            flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
            descriptor = os.open(self.path, flags | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError as error:
            raise InputError(
                "model-not-found",
                f"there is no file {self.path}",
                context={"path": self.path},
                hint="check the path, or fetch the checkpoint first",
            ) from error
        except (OSError, ValueError) as error:
            raise InputError(
                "model-unreadable",
                f"{self.path} cannot be read: {error}",
                context={"path": self.path},
                hint="check the permissions of the file and of its folders",
            ) from error
        try:
            # Asked again of what was opened, which nobody can swap any more.
            self._require_regular(os.fstat(descriptor).st_mode)
        except InputError:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb", buffering=0)

    def _require_regular(self, mode: int) -> None:
        if stat.S_ISREG(mode):
            return
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise InputError(
            "model-not-a-file",
            f"{self.path} is {kind}, not a regular file",
            context={"path": self.path},
            hint="name the model file itself",
        )
