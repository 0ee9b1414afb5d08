"""A checkpoint's tensors under the names and in the form that the relax model takes.

Query, key and value matrices are joined, and so are gate and up. Tensors are read one at a time
through a memory map, so the peak is one joined matrix, not the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.models.safetensors import SafetensorInfo, read_safetensors
from edgewise.runtimes.webllm.config import LlamaConfig
from edgewise.runtimes.webllm.formats import GROUP_SIZE, Numbers
from edgewise.runtimes.webllm.quantise import pack_groups

__all__ = ["Checkpoint", "parameters"]

Array = np.ndarray[Any, np.dtype[Any]]

_INDEX = "model.safetensors.index.json"
_BF16_SHIFT = 16
_STORED: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


class Checkpoint:
    """The tensors of an HF checkpoint folder, by name."""

    def __init__(self, source: Path) -> None:
        """Read the headers of all its safetensors files.

        Raises:
            IntegrityError: a header is unsound, or there is no safetensors file.
        """
        self._where: dict[str, tuple[Path, SafetensorInfo]] = {}
        files = sorted(source.glob("*.safetensors"))
        index = source / _INDEX
        if index.exists():
            files = [source / name for name in _indexed(index)]
        if not files:
            raise IntegrityError("weights-missing", "the checkpoint has no safetensors file")
        for path in files:
            for tensor in read_safetensors(path).tensors:
                self._where[tensor.name] = (path, tensor)

    def format(self) -> str:
        """Return the widest float type among its matrices: ``f32``, ``bf16`` or ``f16``.

        Raises:
            UnsupportedError: a matrix is no plain floats.
        """
        found = {tensor.dtype for _, tensor in self._where.values() if len(tensor.shape) > 1}
        for dtype in ("F32", "BF16", "F16"):
            if dtype in found and found <= _STORED.keys():
                return dtype.lower()
        raise UnsupportedError(
            "weights-type-unsupported",
            f"the checkpoint's matrices are stored as {', '.join(sorted(found)) or 'nothing'}",
            hint="give a checkpoint in F32, F16 or BF16",
        )

    def matrix(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return a tensor as float32.

        Raises:
            IntegrityError: it is missing, or has another shape.
            UnsupportedError: its numbers are no plain floats.
        """
        found = self._where.get(name)
        if found is None:
            raise IntegrityError("weights-missing", f"the checkpoint has no tensor {name}")
        path, tensor = found
        if tuple(tensor.shape) != shape:
            raise IntegrityError(
                "weights-shape-mismatch",
                f"{name} has the shape {tuple(tensor.shape)}; its config.json means {shape}",
            )
        return _floats(path, tensor)


def parameters(
    checkpoint: Checkpoint, config: LlamaConfig, numbers: Numbers
) -> Iterator[tuple[str, Array]]:
    """Yield the model's parameters, in the model's own order.

    Raises:
        IntegrityError: a tensor is missing or has the wrong shape.
        UnsupportedError: a tensor's numbers are no plain floats, or rows do not divide into groups.
    """
    wide, inner, heads = config.hidden, config.intermediate, config.head_dim
    queries, keys = config.heads * heads, config.kv_heads * heads

    def matrix(name: str, *parts: tuple[str, int], columns: int) -> Iterator[tuple[str, Array]]:
        joined = np.concatenate(
            [checkpoint.matrix(f"{part}.weight", (rows, columns)) for part, rows in parts]
        )
        yield from _stored(name, joined, numbers)

    def vector(name: str) -> tuple[str, Array]:
        read = checkpoint.matrix(f"model.{name}.weight", (wide,))
        return f"{name}.weight", read.astype(numbers.dtype)

    yield from matrix("embed_tokens", ("model.embed_tokens", config.vocab), columns=wide)
    for index in range(config.layers):
        layer = f"layers.{index}."
        attention, forward = f"model.{layer}self_attn.", f"model.{layer}mlp."
        yield from matrix(
            f"{layer}self_attn.qkv_proj",
            (f"{attention}q_proj", queries),
            (f"{attention}k_proj", keys),
            (f"{attention}v_proj", keys),
            columns=wide,
        )
        yield from matrix(f"{layer}self_attn.o_proj", (f"{attention}o_proj", wide), columns=queries)
        yield from matrix(
            f"{layer}mlp.gate_up_proj",
            (f"{forward}gate_proj", inner),
            (f"{forward}up_proj", inner),
            columns=wide,
        )
        yield from matrix(f"{layer}mlp.down_proj", (f"{forward}down_proj", wide), columns=inner)
        yield vector(f"{layer}input_layernorm")
        yield vector(f"{layer}post_attention_layernorm")
    yield vector("norm")
    if not config.tied:
        yield from matrix("lm_head", ("lm_head", config.vocab), columns=wide)


def _stored(name: str, matrix: Array, numbers: Numbers) -> Iterator[tuple[str, Array]]:
    if not numbers.quantised:
        yield f"{name}.weight", matrix.astype(numbers.dtype)
        return
    if matrix.shape[1] % GROUP_SIZE:
        raise UnsupportedError(
            "rows-not-groupable",
            f"{name} has rows of {matrix.shape[1]} values, which groups of {GROUP_SIZE} do not "
            "divide",
            hint="use q0f32 or q0f16",
        )
    packed, scale = pack_groups(matrix, numbers.dtype)
    yield f"{name}.q_weight", packed
    yield f"{name}.q_scale", scale


def _floats(path: Path, tensor: SafetensorInfo) -> Array:
    stored = _STORED.get(tensor.dtype)
    if stored is None:
        raise UnsupportedError(
            "weights-type-unsupported",
            f"{tensor.name} is stored as {tensor.dtype}",
            hint="give a checkpoint in F32, F16 or BF16",
        )
    raw = np.memmap(
        path, dtype=stored, mode="r", offset=tensor.offset_bytes, shape=tuple(tensor.shape)
    )
    if tensor.dtype == "BF16":
        return (raw.astype(np.uint32) << _BF16_SHIFT).view(np.float32)
    return np.asarray(raw, dtype=np.float32)


def _indexed(index: Path) -> list[str]:
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            "weights-index-damaged", f"{_INDEX} cannot be read: {error}"
        ) from error
    if any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise IntegrityError("weights-index-damaged", f"{_INDEX} names a file outside its folder")
    return sorted(names)
