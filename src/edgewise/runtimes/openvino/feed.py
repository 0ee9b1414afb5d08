"""What a graph is fed with for a step: the two input conventions this engine knows."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from edgewise.errors import UnsupportedError

__all__ = ["Feed", "FrontendFeed", "IrFeed", "feed_for"]

_IR_INPUTS = {"input_ids", "attention_mask", "position_ids", "beam_idx"}
_FRONTEND_INPUTS = {
    "inp_tokens",
    "inp_pos",
    "inp_kv_idx",
    "inp_out_ids",
    "self_kq_mask",
    "token_len_per_seq",
}


class Feed(Protocol):
    """Turns tokens at a position into a graph's inputs."""

    def inputs(self, tokens: list[int], position: int) -> dict[str, np.ndarray[Any, Any]]:
        """Return the inputs that append ``tokens`` to a cache of ``position`` tokens."""
        ...


class IrFeed:
    """Inputs of graphs that Optimum and OpenVINO GenAI make: one sequence, no beams."""

    def __init__(self, names: set[str], context_length: int) -> None:
        """Take the graph's input names; arrays for a whole context are made once and cut."""
        self._names = names
        self._ones = np.ones((1, context_length), np.int64)
        self._positions = np.arange(context_length, dtype=np.int64)[None]
        self._beam = np.zeros(1, np.int32)

    def inputs(self, tokens: list[int], position: int) -> dict[str, np.ndarray[Any, Any]]:
        """Return ids, mask, positions and beam index, as far as the graph has them."""
        end = position + len(tokens)
        offered: dict[str, np.ndarray[Any, Any]] = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": self._ones[:, :end],
            "position_ids": self._positions[:, position:end],
            "beam_idx": self._beam,
        }
        return {name: offered[name] for name in self._names}


class FrontendFeed:
    """Inputs of graphs that OpenVINO's GGUF frontend makes, with ggml's four axes."""

    def __init__(self, names: set[str], context_length: int) -> None:
        """Take the graph's input names."""
        self._names = names
        self._positions = np.arange(context_length, dtype=np.int32)[None, None, None]

    def inputs(self, tokens: list[int], position: int) -> dict[str, np.ndarray[Any, Any]]:
        """Return tokens, positions, the additive mask, and the index of the wanted output."""
        count = len(tokens)
        end = position + count
        mask = np.zeros((count, end), np.float32)
        mask[:, position:] = np.triu(np.full((count, count), -np.inf, np.float32), 1)
        here = self._positions[..., position:end]
        offered: dict[str, np.ndarray[Any, Any]] = {
            "inp_tokens": np.array(tokens, np.int32)[None, None, None],
            "inp_pos": here,
            "inp_kv_idx": here,
            "inp_out_ids": np.array([[[[count - 1]]]], np.int32),
            "self_kq_mask": mask[None, None],
            "token_len_per_seq": np.array([count], np.int64),
        }
        return {name: offered[name] for name in self._names}


def feed_for(model: Any, context_length: int) -> Feed:
    """Return what feeds this graph.

    Raises:
        UnsupportedError: it has an input that neither convention knows.
    """
    names = {port.get_any_name() for port in model.inputs}
    if "input_ids" in names and names <= _IR_INPUTS:
        return IrFeed(names, context_length)
    if "inp_tokens" in names and names <= _FRONTEND_INPUTS:
        return FrontendFeed(names, context_length)
    raise UnsupportedError(
        "architecture-unsupported",
        f"the graph wants inputs this engine cannot give: {', '.join(sorted(names))}",
        hint="text models with one sequence of token ids are supported",
    )
