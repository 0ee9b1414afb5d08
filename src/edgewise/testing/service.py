"""The contract's worker: the checks run beside the engine, in the runtime's own environment."""

from __future__ import annotations

import msgspec

from edgewise.run.service import EngineService
from edgewise.runtimes import registry
from edgewise.runtimes.host import Emit, Method
from edgewise.runtimes.protocol import TextEngine
from edgewise.testing.contract import check_engine, check_text_engine
from edgewise.testing.report import ContractCheck

__all__ = ["SERVICE", "ContractParams", "ContractService"]

SERVICE = "edgewise.testing.service:ContractService"


class ContractParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runtime's declarations count, and the tokens that end an answer."""

    runtime: str
    end_token_ids: tuple[int, ...] = ()


class ContractService(EngineService):
    """Runs all checks on the loaded engine."""

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {**super().methods(), "contract": Method(ContractParams, self._contract)}

    def _contract(self, params: ContractParams, _emit: Emit) -> list[ContractCheck]:
        engine = self.any_engine
        if isinstance(engine, TextEngine):
            return check_text_engine(engine)
        capabilities = registry.adapter(params.runtime).capabilities()
        return check_engine(engine, capabilities, end_token_ids=params.end_token_ids)
