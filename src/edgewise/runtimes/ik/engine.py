"""The engine of the runtime ``ik``: the family's, over ik_llama.cpp."""

from __future__ import annotations

from pathlib import Path

from edgewise.core.recipe import RunConfig
from edgewise.runtimes.ik.library import IkLibrary
from edgewise.runtimes.llamacpp.engine import FamilyEngine

__all__ = ["IkEngine"]


class IkEngine(FamilyEngine):
    """One model and one context of ik_llama.cpp."""

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Load the model and reserve the context; see :class:`FamilyEngine`."""
        super().__init__(IkLibrary(), artifact, run_config)

    @property
    def verify_tokens(self) -> int:
        """Return how many tokens ``verify`` takes; none with flash attention.

        Its kernel takes other sums for several tokens than for one at some lengths of the cache
        and not at others, which no trial can rule out. Without it passes were equal at each of
        135 lengths up to 1,230 tokens (ADR 0021).
        """
        return 0 if self._config.flash_attention else super().verify_tokens

    def _identity(self) -> tuple[object, ...]:
        return (*super()._identity(), self._config.hints)
