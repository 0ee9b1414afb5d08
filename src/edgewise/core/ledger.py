"""The memory ledger: what a candidate will take, line by line, and what there is.

A core value, because the planner writes it and admission reads it without either importing the
other.
"""

from __future__ import annotations

import msgspec

from edgewise.core.quantity import Estimated, Known, Quantity, Unknown

__all__ = ["DraftMemory", "MemoryLedger"]


class DraftMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a draft model takes beside the model whose tokens it guesses, in bytes."""

    weights_bytes: Quantity
    kv_cache_bytes: Quantity
    workspace_bytes: Quantity

    @property
    def lines(self) -> dict[str, Quantity]:
        """Return the lines by name."""
        return {
            "draft_weights_bytes": self.weights_bytes,
            "draft_kv_cache_bytes": self.kv_cache_bytes,
            "draft_workspace_bytes": self.workspace_bytes,
        }


class MemoryLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak resident memory of one candidate at one context length, in bytes.

    Attributes:
        weights_bytes: Weights as the runtime holds them.
        kv_cache_bytes: The KV cache at the reserved context.
        workspace_bytes: Compute and logits buffers.
        runtime_bytes: The worker process before a model is loaded.
        app_bytes: The process that hosts the session.
        budget_bytes: What the tier or this device gives the feature.
        draft: What a draft model takes besides, where there is one.
    """

    weights_bytes: Quantity
    kv_cache_bytes: Quantity
    workspace_bytes: Quantity
    runtime_bytes: Quantity
    app_bytes: Quantity
    budget_bytes: Quantity
    draft: DraftMemory | None = None

    @property
    def lines(self) -> dict[str, Quantity]:
        """Return the lines that add up to the peak, by name."""
        return {
            "weights_bytes": self.weights_bytes,
            "kv_cache_bytes": self.kv_cache_bytes,
            "workspace_bytes": self.workspace_bytes,
            "runtime_bytes": self.runtime_bytes,
            "app_bytes": self.app_bytes,
            **({} if self.draft is None else self.draft.lines),
        }

    @property
    def peak_bytes(self) -> Quantity:
        """Return the sum of the lines, or :class:`Unknown` naming each line that is not known."""
        missing = [name for name, line in self.lines.items() if isinstance(line, Unknown)]
        if missing:
            return Unknown(reason="not known: " + ", ".join(missing))
        known: list[Known] = [q for q in self.lines.values() if not isinstance(q, Unknown)]
        return Estimated(
            value=sum(int(line.number) for line in known),
            source=" + ".join(name.removesuffix("_bytes") for name in self.lines),
        )

    @property
    def worker_bytes(self) -> Quantity:
        """Return the peak less the application's own share: what the worker process will take."""
        peak = self.peak_bytes
        if isinstance(peak, Unknown) or isinstance(self.app_bytes, Unknown):
            return peak if isinstance(peak, Unknown) else Unknown(reason="not known: app_bytes")
        return Estimated(
            value=int(peak.number) - int(self.app_bytes.number), source="peak less app_bytes"
        )
