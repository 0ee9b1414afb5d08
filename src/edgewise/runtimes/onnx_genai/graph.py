"""What an ONNX file says about its operators and weights, read without the ``onnx`` package.

Only the structure is read: nodes with their integer attributes, and initialisers with type, shape
and name. Tensor data is stepped over. The wire format is that of Protocol Buffers, the field
numbers those of ``onnx.proto`` (IR version 10, read 2026-11-30).

Invariants: every length is checked against the bytes that are there; a file that ends early or
nests wrongly is refused, never half-read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from edgewise.errors import IntegrityError

__all__ = ["Graph", "Initializer", "Node", "parse_graph", "read_graph"]

# The graph alone, without weights, is some tens of KB; a file beyond this holds data inside.
_FILE_BYTES_MAX: Final = 1 << 28

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BITS_MAX: Final = 64

_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OP, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 3, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_INT = 1, 3
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME = 1, 2, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator.

    Attributes:
        op: Operator type, e.g. ``MatMulNBits``.
        name: Name of the node.
        domain: Operator set; empty for ONNX's own.
        inputs: Names of its inputs; empty where one is left out.
        outputs: Names of its outputs.
        integers: Its integer attributes.
    """

    op: str
    name: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    integers: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Initializer:
    """A stored tensor: its ``onnx.TensorProto`` data type and its shape."""

    name: str
    data_type: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A model's nodes, in order, and its stored tensors by name."""

    nodes: tuple[Node, ...]
    initializers: dict[str, Initializer]

    def producer(self, name: str) -> Node | None:
        """Return the node that makes the value ``name``, or ``None`` for stored or given ones."""
        return next((node for node in self.nodes if name in node.outputs), None)


def read_graph(path: Path) -> Graph:
    """Return the graph of an ONNX file whose weights lie beside it.

    Raises:
        IntegrityError: the file is missing, far too large for a graph, or malformed.
    """
    try:
        size = path.stat().st_size
        if size > _FILE_BYTES_MAX:
            raise IntegrityError(
                "onnx-malformed",
                f"{path.name} has {size} bytes; its weights should lie beside it",
                context={"size_bytes": size},
            )
        data = path.read_bytes()
    except OSError as error:
        raise IntegrityError(
            "onnx-unreadable", f"{path.name} cannot be read: {error.strerror}"
        ) from error
    return parse_graph(data)


def parse_graph(data: bytes) -> Graph:
    """Return the graph of a serialised ``onnx.ModelProto``.

    Raises:
        IntegrityError: the bytes are no such message.
    """
    nodes: list[Node] = []
    initializers: dict[str, Initializer] = {}
    for number, value in _fields(memoryview(data)):
        if number != _MODEL_GRAPH or isinstance(value, int):
            continue
        for inner, part in _fields(value):
            if isinstance(part, int):
                continue
            if inner == _GRAPH_NODE:
                nodes.append(_node(part))
            elif inner == _GRAPH_INITIALIZER:
                tensor = _initializer(part)
                initializers[tensor.name] = tensor
    if not nodes:
        _malformed("it holds no operator")
    return Graph(nodes=tuple(nodes), initializers=initializers)


def _node(data: memoryview) -> Node:
    inputs: list[str] = []
    outputs: list[str] = []
    texts = {_NODE_NAME: "", _NODE_OP: "", _NODE_DOMAIN: ""}
    integers: dict[str, int] = {}
    for number, value in _fields(data):
        if isinstance(value, int):
            continue
        if number == _NODE_INPUT:
            inputs.append(_text(value))
        elif number == _NODE_OUTPUT:
            outputs.append(_text(value))
        elif number in texts:
            texts[number] = _text(value)
        elif number == _NODE_ATTRIBUTE:
            _read_integer(value, integers)
    return Node(
        op=texts[_NODE_OP],
        name=texts[_NODE_NAME],
        domain=texts[_NODE_DOMAIN],
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        integers=integers,
    )


def _read_integer(data: memoryview, into: dict[str, int]) -> None:
    name, number_value = "", None
    for number, value in _fields(data):
        if number == _ATTRIBUTE_NAME and not isinstance(value, int):
            name = _text(value)
        elif number == _ATTRIBUTE_INT and isinstance(value, int):
            number_value = value - (1 << 64) if value >> 63 else value
    if number_value is not None:
        into[name] = number_value


def _initializer(data: memoryview) -> Initializer:
    name, data_type = "", 0
    shape: list[int] = []
    for number, value in _fields(data):
        if number == _TENSOR_DIMS:
            shape += [value] if isinstance(value, int) else _packed(value)
        elif number == _TENSOR_TYPE and isinstance(value, int):
            data_type = value
        elif number == _TENSOR_NAME and not isinstance(value, int):
            name = _text(value)
    return Initializer(name=name, data_type=data_type, shape=tuple(shape))


def _packed(data: memoryview) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        values.append(value)
    return values


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in {_FIXED32, _FIXED64}:
            size = 4 if kind == _FIXED32 else 8
        else:
            _malformed(f"wire type {kind} at byte {at}")
        if size > len(data) - at:
            _malformed(f"{size} bytes are announced at byte {at}, {len(data) - at} are there")
        if kind == _BYTES:
            yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < _VARINT_BITS_MAX:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return _malformed(f"a number ends nowhere at byte {at}")


def _text(data: memoryview) -> str:
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise IntegrityError("onnx-malformed", "a name in the file is not UTF-8") from error


def _malformed(why: str) -> NoReturn:
    raise IntegrityError("onnx-malformed", f"the file is no sound ONNX model: {why}")
