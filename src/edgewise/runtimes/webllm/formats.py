"""The number formats that the TVM and WebLLM exporters offer, and what they mean for the model."""

from __future__ import annotations

from typing import Final

from edgewise.core.formats import OfferedFormat, parse_format

__all__ = ["FORMATS", "GROUP_SIZE", "VALUES_PER_WORD", "Numbers", "numbers"]

# Values that share a scale, and 4-bit values in one 32-bit word: the layout that the field calls
# q4f32_1 and q4f16_1.
GROUP_SIZE: Final = 32
VALUES_PER_WORD: Final = 8


def _offer(name: str, text: str, note: str) -> OfferedFormat:
    exact = parse_format(text)
    return OfferedFormat(name=name, weights=exact, embedding=exact, output=exact, note=note)


FORMATS: Final = (
    _offer("q0f32", "f32", "arithmetic and KV cache in f32"),
    _offer("q0f16", "f16", "arithmetic and KV cache in f16"),
    _offer("q4f32_1", "int4-g32-sym-f32", "arithmetic and KV cache in f32"),
    _offer("q4f16_1", "int4-g32-sym-f16", "arithmetic and KV cache in f16"),
)


class Numbers:
    """How one offered format is computed with."""

    def __init__(self, name: str) -> None:
        """Take the offer's own name apart."""
        self.name = name
        self.quantised = name.startswith("q4")
        self.kv_type = "f16" if "f16" in name else "f32"
        self.dtype = "float16" if "f16" in name else "float32"


def numbers(name: str) -> Numbers:
    """Return how the format of that name, one of :data:`FORMATS`, is computed with."""
    return Numbers(name)
