"""Policies on disk: TOML or JSON, strictly read, with a published schema and a signature beside.

The signature lies in ``FILE.sig``: a line of base64, Ed25519 (RFC 8032) over the digest of the
policy's canonical form, so that a comment or another order of keys does not break it. Which keys
are trusted is said by files in the home's ``policy-keys`` folder, each a raw public key as base64.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import os
import re
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from edgewise.core import strict_json
from edgewise.core.shown import plain
from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.route.facts import PolicyTrust
from edgewise.route.policy import SCHEMA_VERSION, Policy
from edgewise.route.policy_hints import mistake_hint
from edgewise.store.regular import read_regular

__all__ = [
    "Force",
    "LoadedPolicy",
    "force_of",
    "in_force",
    "parse_policy",
    "policy_schema",
    "private_key",
    "public_key",
    "read_policy",
    "sign_policy",
]

_BYTES_MAX = 1 << 20
_KEY_BYTES = 32
_KEY_FILE_BYTES_MAX = 4096
_KEY_PARTS_MAX = 32  # a policy's own keys have two
# One that is not closed goes to the end of its line; possessive, so that reading stays linear.
_STRING_OR_COMMENT = re.compile(
    r"""#[^\n]*+|"(?:[^"\\\n]|\\.?)*+(?:"|$)|'[^'\n]*+(?:'|$)""", re.MULTILINE
)
_BETWEEN_KEYS = re.compile(r"[\[\]{}=,#\n]")
_PURPOSE = b"edgewise policy v2\n"  # what is signed is no other kind of message


class Force(StrEnum):
    """Whether a policy holds at a time. Nothing leaves under one that does not."""

    IN_FORCE = "in-force"
    NOT_YET = "not-yet"
    EXPIRED = "expired"


class LoadedPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy with how far it is to be trusted.

    Attributes:
        policy: The policy.
        trust: Whether it is signed by a key of this home.
        reason: Why it is trusted or not, in words.
        key: Name of the key that it is signed with; empty for none.
    """

    policy: Policy
    trust: PolicyTrust
    reason: str
    key: str = ""

    @property
    def lets_leave(self) -> bool:
        """Return whether it is trusted so far that something may leave under it."""
        return self.trust is PolicyTrust.SIGNED or (
            self.trust is PolicyTrust.UNSIGNED and not self.policy.require_signature
        )


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that policies are written by."""
    schema = msgspec.json.schema(Policy)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"Edgewise routing policy, version {SCHEMA_VERSION}"
    return schema


def read_policy(path: Path, keys: Path | None = None) -> LoadedPolicy:
    """Read a policy and look for its signature.

    Args:
        path: A ``.toml`` or ``.json`` file.
        keys: Folder of trusted keys; none is trusted without.

    Raises:
        InputError: it cannot be read, is no TOML or JSON, or is not of the schema.
        IntegrityError: it has a signature that is not of these keys, or not for it.
        UnsupportedError: it has one, and what checks signatures is not installed.
    """
    policy = parse_policy(path)
    beside = path.with_name(f"{path.name}.sig")
    if not os.path.lexists(beside):  # a link that leads nowhere is a damaged signature
        why = f"there is no signature {beside.name} beside it"
        return LoadedPolicy(policy=policy, trust=PolicyTrust.UNSIGNED, reason=why)
    key = _signer(path, beside, policy, keys)
    why = f"it is signed with the key {key}"
    return LoadedPolicy(policy=policy, trust=PolicyTrust.SIGNED, reason=why, key=key)


def parse_policy(path: Path) -> Policy:
    """Read a policy, whoever signed it.

    Raises:
        InputError: it cannot be read, is no TOML or JSON, or is not of the schema.
    """
    try:
        data = read_regular(path, limit_bytes=_BYTES_MAX)
    except OSError as error:
        raise InputError(
            "policy-unreadable",
            f"the policy {path} cannot be read: {error.strerror or error}",
            context={"path": str(path)},
            hint="name a .toml or .json file",
        ) from error
    return _parsed(path, data)


def force_of(policy: Policy, now: dt.datetime) -> Force:
    """Return whether a policy holds at a time: issued before it, and not expired."""
    if policy.expires is not None and policy.expires <= now:
        return Force.EXPIRED
    if policy.issued is not None and policy.issued > now:
        return Force.NOT_YET
    return Force.IN_FORCE


def in_force(policy: Policy, now: dt.datetime) -> bool:
    """Return whether a policy holds at a time."""
    return force_of(policy, now) is Force.IN_FORCE


def sign_policy(policy: Policy, private_key: bytes) -> str:
    """Return the line that belongs into ``FILE.sig``.

    Args:
        policy: The policy.
        private_key: Raw Ed25519 private key, 32 bytes.

    Raises:
        InputError: it is no such key.
        UnsupportedError: ``edgewise[signed]`` is not installed.
    """
    signature = _private(private_key).sign(_message(policy))
    return base64.b64encode(signature).decode()


def public_key(private_key: bytes) -> bytes:
    """Return the raw public key of a raw private one; errors as :func:`sign_policy`'s."""
    found: bytes = _private(private_key).public_key().public_bytes_raw()
    return found


def private_key(path: Path) -> bytes:
    """Return the raw private key of a file that ``edgewise policy keygen`` wrote.

    Raises:
        InputError: it cannot be read (``policy-key-unreadable``), or holds none
            (``policy-key-invalid``).
    """
    try:
        data = read_regular(path, limit_bytes=_KEY_FILE_BYTES_MAX)
    except OSError as error:
        raise InputError(
            "policy-key-unreadable",
            f"the private key {path} cannot be read: {error.strerror or error}",
            context={"path": str(path)},
            hint=f"name its file, or make one: edgewise policy keygen NAME --key {path}",
        ) from error
    try:
        return base64.b64decode(data.strip(), validate=True)
    except binascii.Error as error:
        raise _no_key(f"{path} holds no key: {error}") from error


def _private(key: bytes) -> Any:
    if len(key) != _KEY_BYTES:
        raise _no_key(f"the key has {len(key)} bytes; an Ed25519 key has {_KEY_BYTES}")
    return _ed25519().Ed25519PrivateKey.from_private_bytes(key)


def _no_key(why: str) -> InputError:
    return InputError("policy-key-invalid", why, hint="make one with `edgewise policy keygen`")


def _parsed(path: Path, data: bytes) -> Policy:
    try:
        if path.suffix.lower() == ".json":
            value = strict_json.parse(data.decode("utf-8"))
        else:
            text = data.decode("utf-8")
            _require_shallow(text)
            value = tomllib.loads(text)
        return msgspec.convert(value, Policy)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise InputError(
            "policy-malformed",
            f"the policy {path} is not what it should be: {plain(str(error))}",
            context={"path": str(path)},
            hint=mistake_hint(plain(str(error)), policy_schema())
            or "`edgewise policy schema` prints the form",
        ) from error


def _require_shallow(text: str) -> None:
    """Refuse dotted keys of very many parts, for which tomllib takes minutes.

    Strings and comments do not count, unless a string may go over lines: then where a line begins
    within one is not known, and everything counts.
    """
    lines = text if '"""' in text or "'''" in text else _STRING_OR_COMMENT.sub("", text)
    if any(part.count(".") >= _KEY_PARTS_MAX for part in _BETWEEN_KEYS.split(lines)):
        raise ValueError(f"a key has more than {_KEY_PARTS_MAX} parts")


def _signer(path: Path, beside: Path, policy: Policy, keys: Path | None) -> str:
    """Return the name of the trusted key that the signature beside a policy is of."""
    ed25519 = _ed25519()
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - optional

    signature = _decoded(beside, 64)
    trusted = sorted(keys.glob("*.pub")) if keys is not None else []
    for key in trusted:
        public = ed25519.Ed25519PublicKey.from_public_bytes(_decoded(key, _KEY_BYTES))
        try:
            public.verify(signature, _message(policy))
        except InvalidSignature:
            continue
        return key.stem
    names = ", ".join(key.stem for key in trusted) or "none"
    raise IntegrityError(
        "policy-signature-wrong",
        f"the signature of {path} is not of a key that this home trusts, or not for this policy; "
        f"keys that it trusts: {names}",
        context={"path": str(path), "keys": "" if keys is None else str(keys)},
        hint="sign the policy again with `edgewise policy sign`"
        + ("" if keys is None else f", or put its maker's public key into {keys} as NAME.pub"),
    )


def _message(policy: Policy) -> bytes:
    return _PURPOSE + policy.digest.encode()


def _decoded(path: Path, size: int) -> bytes:
    try:
        data = base64.b64decode(
            read_regular(path, limit_bytes=_KEY_FILE_BYTES_MAX).strip(), validate=True
        )
    except (OSError, binascii.Error) as error:
        raise _unsound(path, str(error)) from error
    if len(data) != size:
        raise _unsound(path, f"it has {len(data)} bytes, not {size}")
    return data


def _unsound(path: Path, why: str) -> IntegrityError:
    return IntegrityError(
        "policy-signature-wrong",
        f"{path} is no key or signature: {why}",
        context={"path": str(path)},
        hint="write it with `edgewise policy sign` or `edgewise policy keygen`",
    )


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import (  # noqa: PLC0415 - optional
            ed25519,
        )
    except ImportError as error:
        raise UnsupportedError(
            "signatures-unsupported",
            "signatures of policies need the package cryptography, which is not installed",
            hint="pip install 'edgewise[signed]'",
        ) from error
    return ed25519
