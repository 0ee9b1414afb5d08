"""The error tree: every exception Edgewise raises on purpose.

    EdgewiseError
    ├── InputError         the question was asked wrongly            exit 2
    ├── UnsupportedError   understood, but not possible here         exit 3
    ├── IntegrityError     bytes are not what they claim to be       exit 4
    ├── ResourceError      memory, disk, time or a lock ran out      exit 5
    ├── RemoteError        another machine failed or was unreachable exit 6
    └── AdapterError       a native runtime failed                   exit 7

A foreseen "no" (does not fit, declined, gate failed) is a result with reasons, never an
exception. An exception means that the question could not be answered. Codes are kebab-case,
stable, and listed in ``docs/reference/errors.md``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar

__all__ = [
    "AdapterError",
    "EdgewiseError",
    "ExitCode",
    "InputError",
    "IntegrityError",
    "RemoteError",
    "ResourceError",
    "UnsupportedError",
]


class ExitCode(IntEnum):
    """Process exit codes of the command line."""

    OK = 0
    BUG = 1
    INPUT = 2
    UNSUPPORTED = 3
    INTEGRITY = 4
    RESOURCE = 5
    REMOTE = 6
    ADAPTER = 7
    NEGATIVE = 10
    INTERRUPT = 130


class EdgewiseError(Exception):
    """Base of every deliberate error.

    Attributes:
        code: Stable kebab-case identifier, documented.
        message: One sentence saying what happened.
        context: JSON-able facts (paths, sizes in bytes, offsets) for a machine reader.
        hint: What to do next, or ``None`` when nothing useful can be said.
        retryable: Whether the same call may succeed later without any change.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.BUG

    def __init__(
        self,
        code: str,
        message: str,
        *,
        context: dict[str, Any] | None = None,
        hint: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.context = context or {}
        self.hint = hint
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the error as JSON-able data: type, code, message, context, hint, retryable."""
        return {
            "type": type(self).__name__,
            "code": self.code,
            "message": self.message,
            "context": self.context,
            "hint": self.hint,
            "retryable": self.retryable,
        }


class InputError(EdgewiseError):
    """The caller's input is wrong: a missing file, an unknown tier, text that is not UTF-8."""

    exit_code = ExitCode.INPUT


class UnsupportedError(EdgewiseError):
    """The request is well formed but cannot be done by this runtime, model or platform."""

    exit_code = ExitCode.UNSUPPORTED


class IntegrityError(EdgewiseError):
    """Bytes fail verification: wrong digest, malformed or hostile file, corrupt store."""

    exit_code = ExitCode.INTEGRITY


class ResourceError(EdgewiseError):
    """Memory, storage, time or a lock ran out."""

    exit_code = ExitCode.RESOURCE


class RemoteError(EdgewiseError):
    """A server could not be reached, refused, or answered with something unusable."""

    exit_code = ExitCode.REMOTE


class AdapterError(EdgewiseError):
    """A native runtime crashed, hung, was killed or reported a failure of its own."""

    exit_code = ExitCode.ADAPTER


_TYPES: dict[str, type[EdgewiseError]] = {
    cls.__name__: cls
    for cls in (
        InputError,
        UnsupportedError,
        IntegrityError,
        ResourceError,
        RemoteError,
        AdapterError,
    )
}


def error_from_dict(data: dict[str, Any]) -> EdgewiseError:
    """Return the error that :meth:`EdgewiseError.to_dict` described, with its own type.

    An unknown type name becomes an :class:`AdapterError`, since it came from a worker.
    """
    return _rebuild(_TYPES.get(str(data.get("type")), AdapterError), data)


def _rebuild(cls: type[EdgewiseError], data: dict[str, Any]) -> EdgewiseError:
    context = data.get("context") or {}
    return cls(
        str(data.get("code", "unknown")),
        str(data.get("message", "")),
        context=context if isinstance(context, dict) else {"context": context},
        hint=data.get("hint"),
        retryable=bool(data.get("retryable", False)),
    )
