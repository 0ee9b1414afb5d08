"""One check of the smoke qualification; nothing heavy is imported here."""

from __future__ import annotations

import msgspec

from edgewise.core.quantity import Quantity, Unknown

__all__ = ["SERVICE", "Check"]

SERVICE = "edgewise.qualify.service:SmokeService"


class Check(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check: its name, whether it passed, what was seen, and the figure behind it."""

    name: str
    passed: bool
    detail: str
    figure: Quantity = Unknown(reason="the check has no figure")
