"""KV caches for MLX's models: every layer keeps every token, in the format that was asked for.

mlx-lm gives sliding layers a ring that cannot be cut back once it is full. A plain cache with the
window as a mask gives the same answer and can be cut anywhere, at the price of its memory.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from edgewise.core.recipe import KvType
from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.runtimes.mlx.libraries import libraries

__all__ = ["KV_TYPES", "cut", "dump", "make_caches", "restore"]

KV_TYPES: tuple[KvType, ...] = (KvType.F16, KvType.BF16, KvType.F32, KvType.U8, KvType.U4)

_QUANTISED = {KvType.U8: 8, KvType.U4: 4}
_FLOATS = {KvType.F16: "float16", KvType.BF16: "bfloat16", KvType.F32: "float32"}
_GROUP_SIZE = 64
_PLAIN = {"KVCache", "RotatingKVCache"}
_LENGTH = struct.Struct("<Q")


def make_caches(model: Any, kv_type: KvType) -> list[Any]:
    """Return an empty cache per layer.

    Raises:
        UnsupportedError: MLX has no such cache, or a layer keeps something else than keys and
            values.
    """
    lib = libraries()
    kinds = {type(each).__name__ for each in lib.cache.make_prompt_cache(model)}
    if kinds - _PLAIN:
        raise UnsupportedError(
            "architecture-unsupported",
            f"this model's layers keep {', '.join(sorted(kinds - _PLAIN))}, not keys and values",
        )
    count = len(model.layers)
    if kv_type in _QUANTISED:
        bits = _QUANTISED[kv_type]
        return [lib.cache.QuantizedKVCache(group_size=_GROUP_SIZE, bits=bits) for _ in range(count)]
    if kv_type not in _FLOATS:
        raise UnsupportedError(
            "kv-type-unsupported",
            f"mlx has no {kv_type} KV cache",
            hint=f"it has: {', '.join(KV_TYPES)}",
        )
    return [_typed(getattr(lib.mx, _FLOATS[kv_type])) for _ in range(count)]


def _typed(dtype: Any) -> Any:
    """Return mlx-lm's plain cache, storing in ``dtype`` whatever the model computes in."""
    plain = libraries().cache.KVCache

    def update_and_fetch(self: Any, keys: Any, values: Any) -> tuple[Any, Any]:
        computed = keys.dtype
        kept = plain.update_and_fetch(self, keys.astype(dtype), values.astype(dtype))
        return kept[0].astype(computed), kept[1].astype(computed)

    return type("TypedKVCache", (plain,), {"update_and_fetch": update_and_fetch})()


def cut(caches: list[Any], position: int) -> None:
    """Forget everything from ``position`` on."""
    for cache in caches:
        cache.trim(max(0, cache.offset - position))


def dump(caches: list[Any], position: int) -> bytes:
    """Return the first ``position`` tokens of every cache as bytes."""
    mx = libraries().mx
    parts = []
    for cache in caches:
        for array in _arrays(cache):
            data = mx.contiguous(array[..., :position, :]).view(mx.uint8)
            body = np.array(data).tobytes()
            parts += [_LENGTH.pack(len(body)), body]
    return b"".join(parts)


def restore(caches: list[Any], like: list[Any], body: memoryview, position: int) -> None:
    """Fill empty caches with what :func:`dump` gave.

    Args:
        caches: The caches to fill.
        like: Caches of the same model that hold at least one token; they give shapes and types.
        body: The bytes.
        position: Tokens that they hold.

    Raises:
        IntegrityError: the bytes have another length than the shapes need.
    """
    mx = libraries().mx
    at = 0
    for cache, pattern in zip(caches, like, strict=True):
        filled = []
        for array in _arrays(pattern):
            if at + _LENGTH.size > len(body):
                raise _misfit()
            (length,) = _LENGTH.unpack_from(body, at)
            at += _LENGTH.size
            shape = (*array.shape[:-2], position, array.shape[-1])
            if length != int(np.prod(shape)) * array.itemsize or at + length > len(body):
                raise _misfit()
            raw = np.frombuffer(body, dtype=np.uint8, count=length, offset=at)
            bytes_shape = (*shape[:-1], shape[-1] * array.itemsize)
            filled.append(mx.array(raw.reshape(bytes_shape)).view(array.dtype))
            at += length
        _fill(cache, filled, position)
    if at != len(body):
        raise _misfit()
    mx.eval([_arrays(cache) for cache in caches])


def _arrays(cache: Any) -> list[Any]:
    if cache.keys is None:
        return []
    if isinstance(cache.keys, (tuple, list)):
        return [*cache.keys, *cache.values]
    return [cache.keys, cache.values]


def _fill(cache: Any, filled: list[Any], position: int) -> None:
    half = len(filled) // 2
    if half == 1:
        cache.keys, cache.values = filled
    else:
        cache.keys, cache.values = tuple(filled[:half]), tuple(filled[half:])
    cache.offset = position


def _misfit() -> IntegrityError:
    return IntegrityError("state-refused", "the saved state does not fit this model's cache")
