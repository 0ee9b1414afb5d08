"""OpenVINO graphs: what their constants are, and small exact changes to them.

Formats are read from the constants of the file itself, never from what an exporter was asked.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from edgewise.core.formats import TensorFormat
from edgewise.errors import UnsupportedError
from edgewise.runtimes.openvino import native

__all__ = ["Matrix", "keep_last_row", "matrices", "stable_names", "state_axis", "type_counts"]

_FLOATS = {"f32": 32, "f16": 16, "bf16": 16}
_INTEGERS = {"u4": 4, "i4": 4, "u8": 8, "i8": 8}
# On the way from the last matrix product to the logits.
_AFTER_HEAD = {"Convert", "Divide", "Multiply", "Tanh", "Add", "Reshape", "Squeeze", "Unsqueeze"}
_SEEN_THROUGH = {"Convert", "Reshape", "Transpose"}
_MATRIX_MIN = 1024  # elements; smaller constants are scales, shapes and indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight matrix as a graph holds it.

    Attributes:
        name: Name of the operator that reads it.
        role: ``embedding``, ``output`` (also a tied one) or ``weights``.
        format: Its exact format.
        shape: Rows and columns.
    """

    name: str
    role: str
    format: TensorFormat
    shape: tuple[int, ...]


def matrices(model: Any) -> Iterator[Matrix]:
    """Yield every weight matrix of a graph, by reader; a tied one is yielded for both."""
    head = _head(model)
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "MatMul":
            role = "output" if head is not None and _same(node, head) else "weights"
            ports: Iterable[int] = (1, 0)
        elif kind == "Gather":
            role, ports = "embedding", (0,)
        else:
            continue
        for port in ports:
            found = _matrix(node.input_value(port).get_node())
            if found is not None:
                exact, shape = found
                yield Matrix(name=node.get_friendly_name(), role=role, format=exact, shape=shape)
                break


def type_counts(model: Any) -> dict[str, int]:
    """Return ``element type -> constants`` of all but small ones."""
    counts: collections.Counter[str] = collections.Counter()
    for node in model.get_ops():
        if node.get_type_name() == "Constant" and math.prod(node.get_output_shape(0)) > 1:
            name = node.get_element_type().get_type_name()
            if name in _FLOATS or name in _INTEGERS:
                counts[name] += 1
    return dict(sorted(counts.items()))


def _same(left: Any, right: Any) -> bool:
    return bool(left.get_friendly_name() == right.get_friendly_name())


def _head(model: Any) -> Any:
    """Return the matrix product that makes the logits, or ``None``."""
    node = model.get_results()[0].input_value(0).get_node()
    while node.get_type_name() in _AFTER_HEAD:
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "MatMul" else None


def _matrix(node: Any) -> tuple[TensorFormat, tuple[int, ...]] | None:
    """Return format and shape of the constant a product reads through its decompression."""
    scale = zero_point = None
    while True:
        kind = node.get_type_name()
        if kind == "Constant":
            break
        if kind in _SEEN_THROUGH:
            node = node.input_value(0).get_node()
        elif kind == "Multiply":
            scale = _constant(node.input_value(1).get_node())
            node = node.input_value(0).get_node()
        elif kind == "Subtract":
            zero_point = _constant(node.input_value(1).get_node())
            node = node.input_value(0).get_node()
        else:
            return None
    shape = tuple(int(size) for size in node.get_output_shape(0))
    if math.prod(shape) < _MATRIX_MIN:
        return None
    return _format(node.get_element_type().get_type_name(), shape, scale, zero_point)


def _constant(node: Any) -> Any:
    while node.get_type_name() in _SEEN_THROUGH:
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "Constant" else None


def _format(
    element: str, shape: tuple[int, ...], scale: Any, zero_point: Any
) -> tuple[TensorFormat, tuple[int, ...]] | None:
    rows, columns = shape[0], math.prod(shape[1:])
    if element in _FLOATS:
        exact = TensorFormat(kind="float", bits=_FLOATS[element], brain=element == "bf16")
        return exact, (rows, columns)
    if element not in _INTEGERS or scale is None:
        return None
    scales = math.prod(scale.get_output_shape(0))
    group = {rows: 0, 1: -1}.get(scales, shape[-1])
    exact = TensorFormat(
        kind="int",
        bits=_INTEGERS[element],
        group_size=group,
        symmetric=zero_point is None or not _has_zero_points(zero_point),
        scale=scale.get_element_type().get_type_name(),
    )
    return exact, (rows, columns)


def _has_zero_points(node: Any) -> bool:
    """Whether zero points differ; one value in the middle is a symmetric format in disguise."""
    return bool(math.prod(node.get_output_shape(0)) > 1)


def keep_last_row(model: Any) -> bool:
    """Make the head compute the logits of the last token only; return whether that was possible.

    The values do not change: each row of a matrix product depends on its own row alone.
    """
    head = _head(model)
    if head is None or len(head.get_output_partial_shape(0)) < 2:
        return False
    target = head.input(0)
    source = target.get_source_output()
    if source.get_node().get_type_name() == "FakeQuantize":
        if len(source.get_target_inputs()) != 1:
            return False
        target = source.get_node().input(0)  # between product and quantiser it breaks the kernel
        source = target.get_source_output()
    rank = len(source.get_partial_shape())
    opset = native.load().opset13
    last = opset.slice(
        source,
        opset.constant([-1], dtype="int64"),
        opset.constant([(1 << 63) - 1], dtype="int64"),
        opset.constant([1], dtype="int64"),
        opset.constant([rank - 2], dtype="int64"),
    )
    target.replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()
    return True


def stable_names(model: Any) -> None:
    """Name operators without a name of their own by their place in the graph.

    OpenVINO names them by a counter of the process, so that equal graphs would differ in bytes.
    """
    model.set_friendly_name("model")
    for index, node in enumerate(model.get_ordered_ops()):
        kind = node.get_type_name()
        head, _, number = node.get_friendly_name().rpartition("_")
        if head == kind and number.isdigit():
            node.set_friendly_name(f"{kind}_{index}")


def state_axis(shape: Any) -> int:
    """Return the axis of a KV state that counts tokens: the dynamic one that is not the batch.

    Raises:
        UnsupportedError: there is not exactly one.
    """
    dynamic = [axis for axis, size in enumerate(shape) if size.is_dynamic and axis > 0]
    if len(dynamic) != 1:
        raise UnsupportedError(
            "architecture-unsupported",
            f"a state of shape {shape} is no key or value cache",
            hint="only models whose whole state is a KV cache can be run token by token",
        )
    return dynamic[0]
