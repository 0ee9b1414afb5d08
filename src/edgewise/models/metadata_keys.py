"""Typed access to GGUF metadata: a value is sensible, or a typed error says which is not."""

from __future__ import annotations

from typing import NoReturn

from edgewise.errors import IntegrityError
from edgewise.models.gguf_types import GgufFile, GgufValue

__all__ = ["MetadataKeys"]


class MetadataKeys:
    """Typed access to the metadata of one file.

    Every method that returns a value raises :class:`IntegrityError` through :meth:`missing` or
    :meth:`bad` when there is no such value.
    """

    def __init__(self, file: GgufFile) -> None:
        self.file = file

    def missing(self, key: str) -> NoReturn:
        """Raise the error for a key that the file needs and has not.

        Raises:
            IntegrityError: always (``gguf-missing-metadata``).
        """
        raise IntegrityError(
            "gguf-missing-metadata",
            f"{self.file.path} has no {key}",
            context={"path": self.file.path, "field": key},
            hint="convert the checkpoint again with a current converter",
        )

    def bad(self, key: str, why: str) -> NoReturn:
        """Raise the error for a value that cannot be right.

        Raises:
            IntegrityError: always (``gguf-bad-metadata``).
        """
        raise IntegrityError(
            "gguf-bad-metadata",
            f"{key} in {self.file.path} cannot be right: {why}",
            context={"path": self.file.path, "field": key, "reason": why},
            hint="the file is damaged or was converted wrongly: fetch or convert it again",
        )

    def get(self, key: str) -> GgufValue | None:
        """Return whatever the file has under a key."""
        return self.file.metadata.get(key)

    def text(self, key: str) -> str | None:
        """Return a text, or ``None`` when there is none."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            self.bad(key, "it is not text")
        return value

    def count(self, key: str, limit: int, *, default: int | None = None) -> int:
        """Return a number from 1 to ``limit``."""
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            self.missing(key)
        return self.in_range(key, value, limit)

    def in_range(self, key: str, value: GgufValue, limit: int) -> int:
        """Return a value already read as a number from 1 to ``limit``."""
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            shown = value if isinstance(value, int | float) else type(value).__name__
            self.bad(key, f"{shown} is not a number from 1 to {limit}")
        return value

    def per_layer(
        self, key: str, n_layers: int, limit: int, *, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Return one number per layer, from one for all or an array."""
        value = self.get(key)
        if value is None:
            if default is None:
                self.missing(key)
            return default
        if not isinstance(value, tuple):
            return (self.in_range(key, value, limit),) * n_layers
        if len(value) != n_layers:
            self.bad(key, f"{len(value)} values for {n_layers} layers")
        return tuple([self.in_range(key, item, limit) for item in value])

    def flag(self, key: str) -> bool | None:
        """Return a truth value, or ``None`` when there is none."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            self.bad(key, "it is not a truth value")
        return value
