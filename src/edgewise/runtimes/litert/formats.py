"""The formats the exporter offers, and how the quantiser is told to make each.

Scales of per-channel formats are float32 and of blockwise ones float16, as read back from the
produced files. One matrix serves as embedding and head where the checkpoint ties them, and is
then stored once, so both always have the same format here.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.core.formats import Activation, OfferedFormat, TensorFormat

__all__ = ["FORMATS", "PLANS", "QuantPlan"]

_F32 = TensorFormat(kind="float", bits=32)
_INT8_CHANNEL = TensorFormat(kind="int", bits=8, group_size=0, symmetric=True, scale="f32")
_INT4_G32 = TensorFormat(kind="int", bits=4, group_size=32, symmetric=True, scale="f16")

FORMATS: tuple[OfferedFormat, ...] = (
    OfferedFormat(
        name="dynamic_wi8c",
        weights=_INT8_CHANNEL,
        embedding=_INT8_CHANNEL,
        output=_INT8_CHANNEL,
        activation=Activation.INT8_DYNAMIC,
    ),
    OfferedFormat(
        name="dynamic_wi4b32_e8",
        weights=_INT4_G32,
        embedding=_INT8_CHANNEL,
        output=_INT8_CHANNEL,
        activation=Activation.INT8_DYNAMIC,
    ),
    OfferedFormat(
        name="dynamic_wi4b32",
        weights=_INT4_G32,
        embedding=_INT4_G32,
        output=_INT4_G32,
        activation=Activation.INT8_DYNAMIC,
        note="the smallest; its int4 embedding and head cost much quality on small models",
    ),
    OfferedFormat(
        name="weight_only_wi8c",
        weights=_INT8_CHANNEL,
        embedding=_INT8_CHANNEL,
        output=_INT8_CHANNEL,
        activation=Activation.FLOAT,
        note="small on disk only: the weights are widened to float32 in memory",
    ),
    OfferedFormat(name="f32", weights=_F32, embedding=_F32, output=_F32),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantPlan:
    """What the quantiser does to the matrices of a model.

    Attributes:
        body_bits: Bits of the matrices between embedding and head.
        block: Values that share a scale there; 0 for one scale per output row.
        ends_bits: Bits of embedding and head, one scale per row; 0 for the body's format.
        integer: Whether products are computed on 8-bit activations, with ranges found at run
            time, instead of on widened weights.
    """

    body_bits: int
    block: int
    ends_bits: int = 0
    integer: bool = True


PLANS: dict[str, QuantPlan] = {
    "dynamic_wi8c": QuantPlan(body_bits=8, block=0),
    "dynamic_wi4b32_e8": QuantPlan(body_bits=4, block=32, ends_bits=8),
    "dynamic_wi4b32": QuantPlan(body_bits=4, block=32),
    "weight_only_wi8c": QuantPlan(body_bits=8, block=0, integer=False),
}
