"""The contract's worker: the checks run beside the engine, in the runtime's own environment."""

from __future__ import annotations

from edgewise.run.service import EngineService
from edgewise.runtimes import registry
from edgewise.runtimes.host import Emit, Method
from edgewise.runtimes.protocol import TextEngine
from edgewise.testing.contract import check_engine, check_text_engine
from edgewise.testing.report import ContractCheck, ContractParams

__all__ = ["ContractService"]


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
