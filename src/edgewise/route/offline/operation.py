"""What may wait in the offline queue, and what can become of it.

Invariants: a payload never appears in a representation, an error or a listing; a final state is
left only by a person's ``retry`` or by proof that the server acted.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final

import msgspec

from edgewise.core import strict_json
from edgewise.core.canonical import canonical_json
from edgewise.core.request import DataClass
from edgewise.errors import EdgewiseError, InputError

__all__ = [
    "FINAL",
    "PRIORITY_MAX",
    "RETRYABLE",
    "DocumentVersion",
    "Draft",
    "Entry",
    "Operation",
    "Outgoing",
    "State",
]

PRIORITY_MAX: Final = 9
_NAME_MAX: Final = 200
_PATH_MAX: Final = 4096  # a document may be named by its path
_KEY_MAX: Final = 255  # what servers take in an Idempotency-Key header


class State(StrEnum):
    """Where an operation stands; every change is on disk before anybody acts on it.

    ``QUEUED``: it waits. ``LEASED``: one process prepares to send it; nothing has left.
    ``SENDING``: the intent to send is on disk; from here on bytes may be out. ``ANSWERED``: the
    receipt and the answer are on disk. ``APPLYING``: the intent to apply the answer is on disk.

    Final: ``APPLIED``; ``STALE``, the document changed and the answer is only offered;
    ``EXPIRED``, ``FAILED``, ``INCOMPATIBLE``, ``DECLINED`` and ``CANCELLED``, which all mean that
    nothing happened at the server; ``UNKNOWN``, it may have happened and is not sent again.
    """

    QUEUED = "queued"
    LEASED = "leased"
    SENDING = "sending"
    ANSWERED = "answered"
    APPLYING = "applying"
    APPLIED = "applied"
    STALE = "stale"
    EXPIRED = "expired"
    FAILED = "failed"
    UNKNOWN = "unknown"
    INCOMPATIBLE = "incompatible"
    DECLINED = "declined"
    CANCELLED = "cancelled"


FINAL: Final = frozenset(
    {State.APPLIED, State.STALE, State.EXPIRED, State.FAILED, State.UNKNOWN,
     State.INCOMPATIBLE, State.DECLINED, State.CANCELLED}
)  # fmt: skip
# What a person may put back; the payloads of all other final states are gone.
RETRYABLE: Final = frozenset({State.FAILED, State.UNKNOWN, State.DECLINED})


class DocumentVersion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The document an answer is to be applied to, as it was when the question was asked.

    Attributes:
        document_id: The application's name for it.
        version: Digest, or another text that changes whenever the document does.
    """

    document_id: str
    version: str

    def __post_init__(self) -> None:
        _require_name("document_id", self.document_id, most=_PATH_MAX)
        _require_name("version", self.version)


class Draft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operation as an application asks for it.

    Attributes:
        kind: What it is, e.g. ``summarise``; the policy says which kinds may wait.
        payload: The very bytes that would leave, already minimised: canonical JSON (RFC 8785).
        destination: Name in the policy's allow-list.
        deduplicates: Whether that server acts once per idempotency key, however often it is sent.
        feature: On whose behalf.
        purpose: Why, as the consent says it.
        data_class: Of the payload.
        lifetime_s: How long it may wait, seconds; afterwards it is never sent.
        priority: 0 to 9; higher goes first, and what waits rises.
        idempotency_key: The same at every attempt; made when ``None``.
        document: What the answer is to be applied to; ``None`` when it is not a document.
        prompt_version: Version of the prompt it was made from; ``None`` when it depends on none.
        schema_version: Version of the answer's schema; ``None`` when it depends on none.
        destination_sha256: Digest of what was declared of the destination when it was queued.
        apply_to: Path of the file that the answer goes to; ``None`` where there is none.
    """

    kind: str
    payload: bytes
    destination: str
    deduplicates: bool
    feature: str
    purpose: str
    data_class: str
    lifetime_s: float
    priority: int = 4
    idempotency_key: str | None = None
    document: DocumentVersion | None = None
    prompt_version: str | None = None
    schema_version: str | None = None
    destination_sha256: str | None = None
    apply_to: str | None = None

    def __post_init__(self) -> None:
        for name in ("kind", "destination", "feature", "purpose", "data_class"):
            _require_name(name, getattr(self, name))
        for name in ("prompt_version", "schema_version", "destination_sha256"):
            if getattr(self, name) is not None:
                _require_name(name, getattr(self, name))
        if self.apply_to is not None:
            _require_name("apply_to", self.apply_to, most=_PATH_MAX)
        if not isinstance(self.deduplicates, bool):
            raise _invalid("deduplicates", "it is true or false")
        if isinstance(self.priority, bool) or self.priority not in range(PRIORITY_MAX + 1):
            raise _invalid("priority", f"it is a whole number from 0 to {PRIORITY_MAX}")
        if not 0 < self.lifetime_s < 1e9:
            raise _invalid("lifetime_s", "it is a number of seconds above 0 and below 1e9")
        if self.idempotency_key is not None:
            _require_key(self.idempotency_key)
        _require_canonical(self.payload)

    def __repr__(self) -> str:
        return f"Draft(kind={self.kind!r}, payload=<{len(self.payload)} bytes>)"

    @property
    def payload_sha256(self) -> str:
        """Return the digest of the bytes that would leave."""
        return hashlib.sha256(self.payload).hexdigest()


class Operation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A queued operation without its payload: everything that may be listed.

    Times are seconds since 1970 on the queue's clock, which never goes back. See :class:`Draft`.
    """

    operation_id: str
    kind: str
    idempotency_key: str
    destination: str
    deduplicates: bool
    feature: str
    purpose: str
    data_class: str
    priority: int
    created_s: float
    expires_s: float
    document: DocumentVersion | None
    prompt_version: str | None
    schema_version: str | None
    payload_sha256: str
    payload_bytes: int
    destination_sha256: str | None = None
    apply_to: str | None = None


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """An operation with the bytes that may leave, in the hands of the process that leased it."""

    operation: Operation
    payload: bytes

    def __repr__(self) -> str:
        return f"Outgoing({self.operation!r}, payload=<{len(self.payload)} bytes>)"


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operation and how it stands.

    Attributes:
        operation: What was asked.
        state: Where it stands.
        code: Why it stands there, as a stable word; empty where the state says it all.
        reason: The same in a sentence.
        hold: What a queued operation waits for: ``consent``, ``declined``, ``link``, ``server``,
            ``spending``, or nothing but its turn.
        not_before_s: It is not tried before this time.
        attempts: How often the intent to send was recorded.
        tries: Those of them that count against the bound.
        may_have_happened: Whether an attempt may have reached the server without an answer.
        answer_sha256: Digest of the answer, once there is one.
        answer_kept: Whether the answer is still stored.
        changed_s: When it came to stand there.
    """

    operation: Operation
    state: State
    code: str
    reason: str
    hold: str
    not_before_s: float
    attempts: int
    tries: int
    may_have_happened: bool
    answer_sha256: str | None
    answer_kept: bool
    changed_s: float

    @property
    def final(self) -> bool:
        """Return whether nothing more becomes of it by itself."""
        return self.state in FINAL


def _require_name(field: str, text: object, *, most: int = _NAME_MAX) -> None:
    if not isinstance(text, str) or not text.isprintable() or not 0 < len(text) <= most:
        raise _invalid(field, f"it is a printable text of 1 to {most} characters")


def _require_key(key: object) -> None:
    fits = isinstance(key, str) and key.isascii() and key.isprintable() and " " not in key
    if not fits or not 0 < len(str(key)) <= _KEY_MAX:
        raise _invalid("idempotency_key", f"it is 1 to {_KEY_MAX} visible ASCII characters")


def _require_canonical(payload: object) -> None:
    if not isinstance(payload, bytes):
        raise _invalid("payload", "it is bytes")
    try:
        canonical = canonical_json(strict_json.parse(payload.decode("utf-8")))
    except (UnicodeDecodeError, strict_json.StrictJsonError, EdgewiseError):
        # The cause may quote the payload, and an error may end in a log.
        raise _invalid("payload", "it is not strict JSON in UTF-8") from None
    if canonical != payload:
        raise _invalid("payload", "it is not canonical JSON (RFC 8785)")


def _invalid(field: str, allowed: str) -> InputError:
    return InputError(
        "operation-invalid",
        f"{field} of an operation cannot be used: {allowed}",
        context={"field": field},
        hint="see the page on the offline queue; payloads are made with canonical_json",
    )


def is_local_only(data_class: str) -> bool:
    """Return whether data of this class may wait nowhere: it never leaves."""
    return data_class == DataClass.LOCAL_ONLY
