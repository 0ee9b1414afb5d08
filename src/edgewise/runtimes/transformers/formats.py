"""What the reference runs: 32-bit floats, nothing else."""

from __future__ import annotations

from edgewise.core.formats import OfferedFormat, TensorFormat

__all__ = ["FORMATS"]

_F32 = TensorFormat(kind="float", bits=32)

FORMATS = (OfferedFormat(name="f32", weights=_F32, embedding=_F32, output=_F32, methods=("none",)),)
