"""Reading a ``.tflite`` file: which format every matrix has, and what its operators are.

The file is mapped and only its tables are read, never the weights. Matrices are found by use:
the table of an embedding lookup, and the second operand of a fully connected operator.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewise.core.formats import TensorFormat
from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.runtimes.litert import native
from edgewise.runtimes.litert.artifact import StoredModel

__all__ = [
    "DECODE",
    "PREFILL",
    "Layout",
    "Matrix",
    "ModelFile",
    "damage_named",
    "open_model",
    "read_layout",
]

DECODE = "decode"
PREFILL = "prefill_"

_OFFSET = struct.Struct("<I")
_SUBGRAPHS_FIELD = 8  # offset in the root table's vtable, from the public schema
_FLOAT_BITS = {"FLOAT32": 32, "FLOAT16": 16}
_INT_BITS = {"INT2": 2, "INT4": 4, "INT8": 8, "INT16": 16}
_SCALE_NAMES = {"FLOAT32": "f32", "FLOAT16": "f16", "BFLOAT16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight matrix and where it is used.

    Attributes:
        role: ``embedding``, ``head`` or ``weights``.
        name: Name of the tensor the operator gives; the quantiser selects by it.
        rows: Output rows.
        buffer: Number of the buffer that holds the values; equal numbers share them.
        format: Its exact format.
    """

    role: str
    name: str
    rows: int
    buffer: int
    format: TensorFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What an engine needs to know of a model before it loads it.

    Attributes:
        prefill: Name of the prefill signature.
        prefill_tokens: Tokens that it takes, always all of them.
        cells: Tokens the KV cache holds.
    """

    prefill: str
    prefill_tokens: int
    cells: int


class ModelFile:
    """A mapped model."""

    def __init__(self, stored: StoredModel, schema: Any) -> None:
        data = stored.map()
        self._name = stored.file.name
        self._schema = schema
        self._data = data
        self._model = schema.Model.GetRootAs(data, 0)
        self._types = _names(schema.TensorType)
        self._operators = _names(schema.BuiltinOperator)

    def signatures(self) -> list[str]:
        """Return the names of the signatures."""
        return [
            found.SignatureKey().decode("utf-8", "replace")
            for found in _each(self._model.SignatureDefs, self._model.SignatureDefsLength())
        ]

    def subgraph_of(self, signature: str) -> int:
        """Return the number of the subgraph a signature runs.

        Raises:
            IntegrityError: there is no such signature.
        """
        number: int = self._signature(signature).SubgraphIndex()
        return number

    def input_shape(self, signature: str, name: str) -> tuple[int, ...]:
        """Return the shape of a signature's input.

        Raises:
            IntegrityError: there is no such signature or input.
        """
        found = self._signature(signature)
        graph = self._model.Subgraphs(found.SubgraphIndex())
        for entry in _each(found.Inputs, found.InputsLength()):
            if entry.Name() == name.encode():
                return tuple(int(n) for n in graph.Tensors(entry.TensorIndex()).ShapeAsNumpy())
        raise self._missing(f"input {name!r}")

    def _signature(self, name: str) -> Any:
        for found in _each(self._model.SignatureDefs, self._model.SignatureDefsLength()):
            if found.SignatureKey() == name.encode():
                return found
        raise self._missing(f"signature {name!r}")

    def _missing(self, what: str) -> IntegrityError:
        return IntegrityError(
            "model-signature-missing",
            f"{self._name} has no {what}",
            context={"file": self._name},
            hint="build the artifact again",
        )

    def operator_names(self, subgraph: int) -> list[str]:
        """Return the operators of a subgraph in order; a composite by its own name."""
        graph = self._model.Subgraphs(subgraph)
        return [self._operator(graph.Operators(index)) for index in range(graph.OperatorsLength())]

    def matrices(self) -> list[Matrix]:
        """Return every matrix of the decode graph, the head last.

        Raises:
            IntegrityError: there is no decode signature.
        """
        graph = self._model.Subgraphs(self.subgraph_of(DECODE))
        outputs = {int(index) for index in graph.OutputsAsNumpy()}
        found = list(self._uses(graph, outputs))
        return sorted(found, key=lambda matrix: matrix.role == "head")

    def with_first(self, subgraph: int) -> list[tuple[int, bytes]]:
        """Return the edits ``(offset, bytes)`` that put a subgraph first.

        The runtime's node list covers the first subgraph only. Only the two offsets in the
        table of subgraphs change places; the signatures then name the wrong graphs, so the
        result serves to look at, not to run.
        """
        table = self._model._tab  # noqa: SLF001 - the generated reader has no other way
        vector = table.Vector(table.Offset(_SUBGRAPHS_FIELD))
        first, other = vector, vector + 4 * subgraph
        targets = {at: at + _OFFSET.unpack_from(self._data, at)[0] for at in (first, other)}
        return [
            (first, _OFFSET.pack(targets[other] - first)),
            (other, _OFFSET.pack(targets[first] - other)),
        ]

    def _uses(self, graph: Any, outputs: set[int]) -> Iterator[Matrix]:
        # A weight-only matrix reaches its operator through a DEQUANTIZE.
        widened = {
            int(operator.Outputs(0)): int(operator.Inputs(0))
            for operator in _each(graph.Operators, graph.OperatorsLength())
            if self._operator(operator) == "DEQUANTIZE"
        }
        heads = _reaching(graph, outputs)
        for operator in _each(graph.Operators, graph.OperatorsLength()):
            kind = self._operator(operator)
            if kind not in {"FULLY_CONNECTED", "EMBEDDING_LOOKUP"}:
                continue
            stored = int(operator.Inputs(1))
            tensor = graph.Tensors(widened.get(stored, stored))
            result = int(operator.Outputs(0))
            role = "embedding" if kind == "EMBEDDING_LOOKUP" else "weights"
            yield Matrix(
                role="head" if role == "weights" and result in heads else role,
                name=graph.Tensors(result).Name().decode("utf-8", "replace"),
                rows=int(tensor.Shape(0)),
                buffer=int(tensor.Buffer()),
                format=self._format(graph, tensor),
            )

    def _format(self, graph: Any, tensor: Any) -> TensorFormat:
        name = self._types[tensor.Type()]
        if name in _FLOAT_BITS or name == "BFLOAT16":
            return TensorFormat(
                kind="float", bits=_FLOAT_BITS.get(name, 16), brain=name == "BFLOAT16"
            )
        quantization = tensor.Quantization()
        bits = _INT_BITS.get(name, 0)
        if quantization.DetailsType() == self._schema.QuantizationDetails.BlockwiseQuantization:
            block = self._schema.BlockwiseQuantization()
            details = quantization.Details()
            block.Init(details.Bytes, details.Pos)
            return TensorFormat(
                kind="int",
                bits=bits,
                group_size=int(block.BlockSize()),
                symmetric=block.ZeroPoints() < 0,
                scale=_SCALE_NAMES.get(self._types[graph.Tensors(block.Scales()).Type()], ""),
            )
        zero_points = quantization.ZeroPointAsNumpy()
        return TensorFormat(
            kind="int",
            bits=bits,
            group_size=0 if quantization.ScaleLength() > 1 else -1,
            symmetric=not np.any(zero_points),
            scale="f32",
        )

    def _operator(self, operator: Any) -> str:
        code = self._model.OperatorCodes(operator.OpcodeIndex())
        name = self._operators[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
        if name == "CUSTOM":
            return (code.CustomCode() or b"CUSTOM").decode("utf-8", "replace")
        if name == "STABLEHLO_COMPOSITE":
            options = self._schema.StableHLOCompositeOptions()
            table = operator.BuiltinOptions2()
            options.Init(table.Bytes, table.Pos)
            return (options.Name() or b"STABLEHLO_COMPOSITE").decode("utf-8", "replace")
        return name


def open_model(stored: StoredModel) -> ModelFile:
    """Return a mapped model.

    Raises:
        UnsupportedError: ai-edge-litert is not installed.
        IntegrityError: the bytes are no LiteRT model.
    """
    (schema,) = native.load(native.RUNTIME_PACKAGE, "schema_py_generated")
    with damage_named(stored):
        return ModelFile(stored, schema)


@contextlib.contextmanager
def damage_named(stored: StoredModel) -> Iterator[None]:
    """Turn what the reader of tables makes of damaged bytes into a typed error.

    Raises:
        IntegrityError: a table lies outside the file, or holds what it cannot.
    """
    try:
        yield
    except (struct.error, LookupError, ValueError, TypeError, AttributeError) as error:
        raise IntegrityError(
            "artifact-damaged",
            f"{stored.file.name} cannot be read: {error}",
            context={"file": stored.file.name},
            hint="build the artifact again",
        ) from error


def read_layout(stored: StoredModel) -> Layout:
    """Return how a model takes its tokens.

    Raises:
        UnsupportedError: ai-edge-litert is not installed, or the model takes its tokens in
            another way than this project exports.
        IntegrityError: the bytes are no LiteRT model.
    """
    model = open_model(stored)
    with damage_named(stored):
        prefill = [name for name in model.signatures() if name.startswith(PREFILL)]
        cells = model.input_shape(DECODE, "mask")[-1]
    if len(prefill) != 1 or not prefill[0].removeprefix(PREFILL).isdigit():
        raise UnsupportedError(
            "model-signature-unknown",
            f"the artifact's prefill signatures are {prefill}; one of fixed length is needed",
            hint="build the artifact with this version of Edgewise",
        )
    return Layout(
        prefill=prefill[0],
        prefill_tokens=int(prefill[0].removeprefix(PREFILL)),
        cells=cells,
    )


def _reaching(graph: Any, outputs: set[int]) -> set[int]:
    """Return the tensors between the last matrix product and the graph's outputs."""
    producers: dict[int, Any] = {}
    for operator in _each(graph.Operators, graph.OperatorsLength()):
        for index in range(operator.OutputsLength()):
            producers[int(operator.Outputs(index))] = operator
    # The logits are the only output with three axes; the rest is the KV cache.
    start = [index for index in outputs if graph.Tensors(index).ShapeLength() <= 3]
    seen = set(start)
    while start:
        operator = producers.get(start.pop())
        if operator is None or operator.InputsLength() != 1:
            continue  # element-wise shaping has one input; a product has more
        source = int(operator.Inputs(0))
        if source not in seen:
            seen.add(source)
            start.append(source)
    return seen


def _each(get: Any, count: int) -> Iterator[Any]:
    return (get(index) for index in range(count))


def _names(enumeration: Any) -> dict[int, str]:
    return {value: name for name, value in vars(enumeration).items() if isinstance(value, int)}
