"""The formats the exporter offers, the builder's settings for each, and what a graph really holds.

The builder's option names say little about the result: which matrices it quantises, whether the
embedding shares the head's weights, how activations enter. So a finished graph is read again and
stated by its own operators; an export that is not what was promised is an error.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from edgewise.core.formats import Activation, OfferedFormat, TensorFormat
from edgewise.errors import IntegrityError
from edgewise.runtimes.onnx_genai.graph import Graph, Node

__all__ = ["FORMATS", "Weight", "activation_of", "builder_options", "offered", "weights_of"]

EMBEDDING: Final = "embedding"
HEAD: Final = "head"
BODY: Final = "body"

_F32 = TensorFormat(kind="float", bits=32)
# ``onnx.TensorProto.DataType``.
_FLOAT_TYPES: Final = {
    1: _F32,
    10: TensorFormat(kind="float", bits=16),
    16: TensorFormat(kind="float", bits=16, brain=True),
}
# ``MatMulNBits.accuracy_level`` 4: inputs are rounded to int8, a range for each block.
_ACCURACY_INT8: Final = 4

_SLOW = (
    "ONNX Runtime has no fast CPU kernel for 8-bit weights with float activations: about a "
    "hundredth of the speed with int8 activations"
)


def _int(bits: int, *, group: int = 32, symmetric: bool = True) -> TensorFormat:
    return TensorFormat(kind="int", bits=bits, group_size=group, symmetric=symmetric, scale="f32")


_I4, _I4A, _I8, _I8A = _int(4), _int(4, symmetric=False), _int(8), _int(8, symmetric=False)
_DYNAMIC = Activation.INT8_DYNAMIC
_TIED = "embedding and head are one matrix, so only for models that tie them"
_K = ("k-quant",)


def _offer(
    name: str,
    weights: TensorFormat,
    embedding: TensorFormat,
    output: TensorFormat,
    activation: Activation = _DYNAMIC,
    methods: tuple[str, ...] = ("rtn",),
    note: str = "",
) -> OfferedFormat:
    return OfferedFormat(
        name=name,
        weights=weights,
        embedding=embedding,
        output=output,
        activation=activation,
        methods=methods,
        note=note,
    )


# Within each kind by mean KL against the float source, measured 2026-11-30: an 8-bit embedding and
# head outweigh everything else, and only beside them does k-quant beat plain rounding.
FORMATS: Final = (
    _offer("fp32", _F32, _F32, _F32, Activation.FLOAT),
    _offer("kquant-int4-head8", _I4A, _I8A, _I8A, methods=_K, note=_TIED),
    _offer("rtn-int4-head8", _I4, _I8, _I8, note=_TIED),
    _offer("rtn-int4", _I4, _I4, _I4),
    _offer("rtn-int4-float", _I4, _I4, _I4, Activation.FLOAT),
    _offer("kquant-int4", _I4A, _I4A, _I4A, methods=_K),
    _offer("kquant-int4-float", _I4A, _I4A, _I4A, Activation.FLOAT, methods=_K),
    _offer("rtn-int4-asym", _I4A, _I4A, _I4A),
    _offer("rtn-int4-embed32", _I4, _F32, _I4),
    _offer("rtn-int4-g128", _int(4, group=128), _int(4, group=128), _int(4, group=128)),
    _offer("rtn-int8", _I8, _F32, _I8),
    _offer("rtn-int8-float", _I8, _F32, _I8, Activation.FLOAT, note=_SLOW),
)


def offered(*, tied: bool) -> tuple[OfferedFormat, ...]:
    """Return what can be exported of a model that ties embedding and head, or does not."""
    return tuple(offer for offer in FORMATS if tied or offer.note != _TIED)


def builder_options(offer: OfferedFormat, *, tied: bool) -> tuple[str, list[str]]:
    """Return the builder's precision and its ``KEY=VALUE`` options for an offered format."""
    options = [
        # Logits of a step's last token only: a third less work in a prefill of a small model.
        "prune_lm_head=true",
        # Every layer keeps the whole context, so that a rewind is exact.
        "windowed_kv_cache=false",
        "hf_token=false",
    ]
    shared = tied and offer.embedding == offer.output
    options.append(f"shared_embeddings={'true' if shared else 'false'}")
    if offer.weights.kind == "float":
        return "fp32", options
    level = _ACCURACY_INT8 if offer.activation is Activation.INT8_DYNAMIC else 0
    quantised_embedding = offer.embedding.kind == "int"
    options += [
        f"block_size={offer.weights.group_size}",
        f"accuracy_level={level}",
        f"is_symmetric={'true' if offer.weights.symmetric else 'false'}",
        f"op_types_to_quantize={'MatMul/Gather' if quantised_embedding else 'MatMul'}",
    ]
    if offer.methods == _K:
        options.append("algo_config=k_quant")
    elif offer.output.bits != offer.weights.bits or not offer.weights.symmetric:
        # The builder's own default method names these tensors otherwise than its embedding
        # expects, which leaves a graph that does not load.
        options.append("algo_config=rtn")
    if offer.output.bits != offer.weights.bits:
        options.append(f"matmul_mixed_precision=last_matmul:int{offer.output.bits}")
    return f"int{offer.weights.bits}", options


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A weight as an operator reads it: the tensor's name, its part and its exact format."""

    tensor: str
    part: str
    format: TensorFormat


def weights_of(graph: Graph) -> tuple[Weight, ...]:
    """Return the weights that matrix products and the embedding read, in graph order.

    Raises:
        IntegrityError: the graph has no embedding or no head.
    """
    found = tuple(_weights(graph))
    parts = {weight.part for weight in found}
    if not {EMBEDDING, HEAD} <= parts:
        raise IntegrityError(
            "onnx-malformed",
            "the graph has no embedding or no head that can be read",
            context={"parts": sorted(parts)},
        )
    return found


def activation_of(graph: Graph) -> dict[str, int]:
    """Return ``activation format -> number of quantised matrix products`` of a graph."""
    counts = collections.Counter(
        str(
            Activation.INT8_DYNAMIC
            if node.integers.get("accuracy_level") == _ACCURACY_INT8
            else Activation.FLOAT
        )
        for node in graph.nodes
        if node.op in {"MatMulNBits", "MatMul"}
    )
    return dict(counts)


def _weights(graph: Graph) -> Iterator[Weight]:
    for node in graph.nodes:
        if node.op == "MatMulNBits":
            tensor, zero = node.inputs[1], _input(node, 3)
        elif node.op == "GatherBlockQuantized":
            tensor, zero = _stored(graph, node.inputs[0]), _input(node, 3)
        elif node.op == "MatMul" and node.inputs[1] in graph.initializers:
            tensor, zero = node.inputs[1], ""
        elif node.op == "Gather" and "input_ids" in node.inputs[1:]:
            tensor, zero = _stored(graph, node.inputs[0]), ""
        else:
            continue
        yield Weight(tensor=tensor, part=_part(node), format=_format(graph, node, tensor, zero))


def _format(graph: Graph, node: Node, tensor: str, zero: str) -> TensorFormat:
    stored = graph.initializers.get(tensor)
    if node.op in {"MatMul", "Gather"}:
        known = _FLOAT_TYPES.get(stored.data_type) if stored else None
        if known is None:
            raise IntegrityError("onnx-malformed", f"{tensor} of {node.name} is no float tensor")
        return known
    scale = graph.initializers.get(_input(node, 2))
    scale_format = _FLOAT_TYPES.get(scale.data_type) if scale else None
    if scale_format is None:
        raise IntegrityError("onnx-malformed", f"{node.name} has no scales of a known type")
    return TensorFormat(
        kind="int",
        bits=node.integers.get("bits", 4),
        group_size=node.integers.get("block_size"),
        symmetric=not zero,
        scale=str(scale_format),
    )


def _input(node: Node, index: int) -> str:
    return node.inputs[index] if index < len(node.inputs) else ""


def _stored(graph: Graph, name: str) -> str:
    """Return the stored tensor behind a reshaped or transposed one."""
    while name not in graph.initializers:
        node = graph.producer(name)
        if node is None or node.op not in {"Reshape", "Transpose"}:
            raise IntegrityError("onnx-malformed", f"{name} is made of no stored tensor")
        name = node.inputs[0]
    return name


def _part(node: Node) -> str:
    if node.op in {"Gather", "GatherBlockQuantized"}:
        return EMBEDDING
    return HEAD if node.name.startswith("/lm_head/") else BODY
