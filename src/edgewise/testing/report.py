"""What the contract checks say."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from edgewise.core.quantity import Quantity, Unknown
from edgewise.core.recipe import RunConfig

__all__ = ["SERVICE", "ContractCheck", "ContractParams", "ContractReport", "Verdict"]

SERVICE = "edgewise.testing.service:ContractService"


class Verdict(StrEnum):
    """``REFUSED`` is good too: the engine declares that it cannot, and it refused when asked."""

    PASS = "pass"  # noqa: S105 - a verdict
    REFUSED = "refused-as-declared"
    FAIL = "fail"


class ContractParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runtime's declarations count, and the tokens that end an answer."""

    runtime: str
    end_token_ids: tuple[int, ...] = ()


class ContractCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check: what was looked at, the verdict, what was seen, and the figure behind it."""

    name: str
    verdict: Verdict
    detail: str
    figure: Quantity = Unknown(reason="the check has no figure")


class ContractReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All checks of one artifact on one runtime under one configuration."""

    runtime: str
    version: str
    artifact: str
    run_config: RunConfig
    checks: tuple[ContractCheck, ...]

    @property
    def passed(self) -> bool:
        """Return whether no check failed."""
        return all(check.verdict is not Verdict.FAIL for check in self.checks)

    @property
    def failures(self) -> tuple[str, ...]:
        """Return what failed, in words."""
        return tuple(
            f"{check.name}: {check.detail}"
            for check in self.checks
            if check.verdict is Verdict.FAIL
        )
