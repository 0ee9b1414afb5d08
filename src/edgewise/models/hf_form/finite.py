"""Whether all of a checkpoint's numbers are finite, without turning blocks into floats.

A damaged scale makes a block of weights NaN, a model that has one answers nothing, and exporters
pass it on. Plain floats are looked at one by one; of block formats their half-precision scales and
minima, whose places are those of ggml's block structures (`ggml-common.h`).
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Final

from edgewise.errors import IntegrityError
from edgewise.models.gguf import read_gguf
from edgewise.models.gguf_types import GgmlType, TensorInfo
from edgewise.models.hf_form.dequantize import PLAIN_TYPES, dequantize
from edgewise.models.hf_form.folder import read_hf
from edgewise.models.hf_form.streams import hf_rows, read_exactly
from edgewise.store.regular import open_regular

__all__ = ["check_finite"]

_CHUNK_BYTES: Final = 16 << 20
_INTEGERS: Final = (GgmlType.I8, GgmlType.I16, GgmlType.I32, GgmlType.I64)
_SCALES: Final[dict[str, tuple[int, ...]]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ1_S": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}


def check_finite(checkpoint: Path) -> tuple[str, ...]:
    """Read all weights once; return the tensor types that could not be looked into.

    Args:
        checkpoint: A GGUF file, or a folder in the Hugging Face form.

    Raises:
        IntegrityError: a number is not finite (``tensor-not-finite``), or the file is not sound.
        InputError: there is no such checkpoint.
    """
    if checkpoint.is_dir():
        read = read_hf(checkpoint)
        for place in read.places():
            found = read.tensors[place.hf]
            with open_regular(found.shard) as stream:
                for _ in hf_rows(stream, found.info):
                    pass
        return ()
    unread = set()
    with open_regular(checkpoint) as stream:
        for tensor in read_gguf(checkpoint).tensors:
            if not _searched(stream, tensor):
                unread.add(tensor.type.name.lower())
    return tuple(sorted(unread))


def _searched(stream: IO[bytes], tensor: TensorInfo) -> bool:
    kind = tensor.type
    places = _SCALES.get(kind.name)
    if places is None and kind not in PLAIN_TYPES:
        return kind in _INTEGERS
    step = max(1, _CHUNK_BYTES // kind.type_size) * kind.type_size
    stream.seek(tensor.offset_bytes)
    for start in range(0, tensor.size_bytes, step):
        raw = read_exactly(stream, min(step, tensor.size_bytes - start), tensor.name)
        if places is None:
            dequantize(raw, kind, tensor=tensor.name)
        else:
            _check_scales(raw, kind, places, tensor.name)
    return True


def _check_scales(raw: bytes, kind: GgmlType, places: tuple[int, ...], tensor: str) -> None:
    import numpy as np  # noqa: PLC0415 - only workers have it

    blocks = np.frombuffer(raw, dtype=np.uint8).reshape(-1, kind.type_size)
    for place in places:
        scales = np.ascontiguousarray(blocks[:, place : place + 2]).view("<f2")
        if not np.isfinite(scales).all():
            raise IntegrityError(
                "tensor-not-finite",
                f"the tensor {tensor} holds a scale that is not finite",
                context={"tensor": tensor, "type": kind.name},
                hint="the checkpoint is damaged: fetch it again and compare its digest",
            )
