"""What grants are for, beside their scope: the terms of the destination, as the user was told.

They lie apart from the audit like a scope's texts, under its salt, and are erased with them.
"""

from __future__ import annotations

import sqlite3

import msgspec

from edgewise.route.consent.audit import OpenDecision, damaged, salted_digest
from edgewise.route.destinations import Terms

__all__ = ["NOT_KEPT", "TermsKept", "all_terms"]

NOT_KEPT = (
    "the consent was recorded by an earlier version, which did not keep what the user was told of "
    "the destination; it covers nothing"
)


class TermsKept:
    """The terms that the ledger holds for one scope, within a transaction.

    Args:
        connection: With an open transaction; one that writes, for :meth:`keep`.
        scope: Digest of the scope.
        salt: Its salt.
    """

    def __init__(self, connection: sqlite3.Connection, scope: str, salt: bytes) -> None:
        self._connection = connection
        self._scope = scope
        self._salt = salt

    def keep(self, terms: Terms) -> str:
        """Keep some terms; return what the audit names them by."""
        digest = salted_digest(terms, self._salt)
        self._connection.execute(
            "INSERT OR IGNORE INTO consent_terms VALUES(?, ?, ?)",
            (digest, self._scope, msgspec.json.encode(terms).decode()),
        )
        return digest

    def why_not(self, grant: OpenDecision, terms: Terms) -> str:
        """Return why a grant is not for some terms; empty where it is.

        Raises:
            IntegrityError: what it is for is gone, or is not what the audit names.
        """
        if not grant.terms:
            return NOT_KEPT
        if grant.terms == salted_digest(terms, self._salt):
            return ""
        told = self._read(grant.terms).differences(terms)
        return f"the user agreed to another destination of this name: {told}"

    def _read(self, digest: str) -> Terms:
        row = self._connection.execute(
            "SELECT scope, terms FROM consent_terms WHERE digest = ?", (digest,)
        ).fetchone()
        if row is None:
            raise damaged("what a consent is for is gone")
        terms = _typed(row["terms"])
        if row["scope"] != self._scope or salted_digest(terms, self._salt) != digest:
            raise damaged("what a consent is for is not what its digest names")
        return terms


def all_terms(connection: sqlite3.Connection) -> dict[str, tuple[str, Terms]]:
    """Return all terms that were not erased, with the digest of their scope, by their digests.

    Raises:
        IntegrityError: some cannot be read.
    """
    rows = connection.execute("SELECT digest, scope, terms FROM consent_terms").fetchall()
    return {str(row["digest"]): (str(row["scope"]), _typed(row["terms"])) for row in rows}


def _typed(text: object) -> Terms:
    try:
        return msgspec.json.decode(str(text), type=Terms)
    except msgspec.MsgspecError as error:
        raise damaged(f"what a consent is for cannot be read: {error}") from error
