"""Canonical JSON (RFC 8785) and digests: the one way a value becomes an identity."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from edgewise.errors import InputError

__all__ = ["canonical_json", "digest_of", "is_digest"]


def canonical_json(value: Any) -> bytes:
    """Return ``value`` as RFC 8785 canonical JSON, UTF-8 encoded.

    Args:
        value: A msgspec Struct, a dataclass, or plain JSON data.

    Raises:
        InputError: the value holds something JSON cannot carry (NaN, an integer beyond 2**53,
            a lone surrogate).
    """
    import rfc8785  # noqa: PLC0415 - keeps `import edgewise` light

    try:
        data: bytes = rfc8785.dumps(msgspec.to_builtins(value, str_keys=True))
    except (rfc8785.CanonicalizationError, TypeError, UnicodeError, RecursionError) as error:
        raise InputError(
            "not-canonical", f"the value has no canonical JSON form: {error}"
        ) from error
    return data


def digest_of(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of ``value``, as 64 hex digits.

    Raises:
        InputError: the value has no canonical form.
    """
    return hashlib.sha256(canonical_json(value)).hexdigest()


def is_digest(text: str) -> bool:
    """Return whether ``text`` is a full SHA-256 in lower-case hex."""
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)
