"""Memory lines for runtimes whose allocation rules are not modelled in detail.

Weights and KV cache follow from the model's shape. The workspace is unknown until it has been
measured, and is said to be: a plan with an unknown line never claims to fit.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgewise.core.quantity import Estimated, Unknown
from edgewise.core.recipe import KvType, RunConfig
from edgewise.errors import UnsupportedError
from edgewise.models.architecture import ModelShape
from edgewise.runtimes.reports import Footprint

__all__ = ["kv_element_bytes", "plain_footprint"]


def kv_element_bytes(runtime: str, kv_type: KvType, known: Mapping[KvType, float]) -> float:
    """Return the bytes of one element of a KV cache.

    Raises:
        UnsupportedError: the runtime has no such cache.
    """
    if kv_type not in known:
        raise UnsupportedError(
            "kv-type-unsupported",
            f"{runtime} has no {kv_type} KV cache",
            hint=f"it has: {', '.join(known)}",
        )
    return known[kv_type]


def plain_footprint(
    shape: ModelShape,
    run_config: RunConfig,
    *,
    kv_element_bytes: float,
    process_bytes: int,
    process_source: str,
) -> Footprint:
    """Return the memory lines of a model.

    Args:
        shape: The model; ``weights_bytes`` as its artifact stores them.
        run_config: Its context length counts.
        kv_element_bytes: Bytes of one element of the KV cache, scales included.
        process_bytes: The worker with the runtime's libraries, before a model.
        process_source: Where that figure comes from.
    """
    width = sum(heads * (shape.head_dim_k + shape.head_dim_v) for heads in shape.n_kv_heads)
    return Footprint(
        weights_bytes=Estimated(value=shape.weights_bytes, source="tensor index of the source"),
        kv_cache_bytes=Estimated(
            value=int(run_config.context_length * width * kv_element_bytes),
            source="context x (keys + values) per layer; no layer keeps only a window",
        ),
        workspace_bytes=Unknown(reason="this runtime's workspace is only known once measured"),
        runtime_bytes=Estimated(value=process_bytes, source=process_source),
    )
