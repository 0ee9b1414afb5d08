"""Importance of a weight's columns, measured on a calibration text with the runtime itself.

The quantiser minimises the error of ``x W`` better when it knows how large each input column is on
average. So the mean square of every column is collected over real text: the evaluation callback
gives each matrix product's input once the product is computed, as float32 in memory, and one pass
of numpy sums it. The head is left out: its input is only computed for a chunk's last token.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.errors import AdapterError
from edgewise.runtimes.calibration import read_lines
from edgewise.runtimes.llamacpp.library import ContextSettings, Library
from edgewise.runtimes.llamacpp.observer import GraphReader
from edgewise.runtimes.reports import CalibrationReport, OutlierChannel

__all__ = ["Importance", "collect"]

_CHUNK_TOKENS = 512
_STEP_TOKENS = 128
_F32 = 0
_EMBEDDING = "token_embd.weight"
_OUTPUT = "output.weight"
_OUTLIER_RATIO = 20.0
_OUTLIERS_NAMED = 16

_Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """What a calibration found.

    Attributes:
        columns: ``tensor -> mean square of its input, per column``, float32, ``(columns,)``.
        report: What it saw.
        metadata: What the artifact's metadata says about it.
    """

    columns: dict[str, _Floats]
    report: CalibrationReport
    metadata: dict[str, str]


@dataclass(slots=True)
class _Sums:
    squares: np.ndarray[Any, np.dtype[np.float64]]
    largest: _Floats
    rows: int = 0

    def add(self, rows: _Floats) -> None:
        self.squares += np.einsum("ij,ij->j", rows, rows, dtype=np.float64)
        np.maximum(self.largest, np.abs(rows).max(axis=0), out=self.largest)
        self.rows += len(rows)


@dataclass(slots=True)
class _Collector:
    reader: GraphReader
    sums: dict[str, _Sums] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    callback: Any = None

    def __post_init__(self) -> None:
        self.callback = self.reader.bindings.ggml_backend_sched_eval_callback(self._take)

    def _take(self, address: int, ask: bool, _data: Any) -> bool:
        operator = self.reader.operator(address)
        if not operator.startswith("MUL_MAT"):
            return not ask  # an answer to "is the result there" must be true to go on
        node = self.reader.tensor(address)
        matrix, inputs = (self.reader.tensor(node.src[slot]) for slot in (0, 1))
        name = matrix.name.decode("utf-8", "replace")
        if not name.endswith(".weight") or name in {_EMBEDDING, _OUTPUT}:
            return not ask
        if operator != "MUL_MAT" or inputs.type != _F32:
            self.skipped.add(name)
            return not ask
        if not ask:
            self._add(name, inputs)
        return True

    def _add(self, name: str, inputs: Any) -> None:
        columns, count = inputs.ne[0], inputs.ne[1] * inputs.ne[2] * inputs.ne[3]
        if inputs.nb[0] != ctypes.sizeof(ctypes.c_float) or inputs.nb[1] != 4 * columns:
            self.skipped.add(name)
            return
        block = (ctypes.c_float * (columns * count)).from_address(inputs.data)
        if name not in self.sums:
            self.sums[name] = _Sums(np.zeros(columns), np.zeros(columns, dtype=np.float32))
        self.sums[name].add(np.frombuffer(block, dtype=np.float32).reshape(count, columns))


def collect(library: Library, source: Path, calibration: Path, *, threads: int) -> Importance:
    """Run a model over a calibration text and return the importance of its columns.

    Args:
        library: The member of the family that runs it.
        source: The model, a GGUF file.
        calibration: UTF-8 text, a sample per line.
        threads: Compute threads.

    Raises:
        InputError: the text cannot be read, or holds no token.
        AdapterError: the model cannot be loaded or run.
    """
    lines = read_lines(calibration)
    library.bindings().llama_backend_init()
    library.log().clear()
    model = library.load_model(source, None)
    if not model:
        raise _failed(library, "cannot load the model to calibrate")
    try:
        collector = _Collector(GraphReader(library))
        tokens, chunks = _run(library, model, collector, lines.samples, threads)
    finally:
        library.free_model(model)
    columns = {
        name: (sums.squares / sums.rows).astype(np.float32)
        for name, sums in sorted(collector.sums.items())
    }
    notes = ["the embedding and the head are quantised without importances"]
    if collector.skipped:
        notes.append(f"no importances for: {', '.join(sorted(collector.skipped))}")
    return Importance(
        columns=columns,
        report=CalibrationReport(
            method="imatrix",
            revision=lines.revision,
            samples=len(lines.samples),
            tokens=tokens,
            outlier_channels=_outliers(collector.sums),
            notes=tuple(notes),
        ),
        metadata={
            "quantize.imatrix.dataset": f"sha256:{lines.revision}",
            "quantize.imatrix.entries": str(len(columns)),
            "quantize.imatrix.chunks": str(chunks),
        },
    )


def _run(
    library: Library, model: Any, collector: _Collector, samples: Sequence[str], threads: int
) -> tuple[int, int]:
    context = library.make_context(
        model,
        ContextSettings(
            tokens=_CHUNK_TOKENS,
            batch_tokens=_STEP_TOKENS,
            threads=threads,
            flash_attention=False,
            observer=collector.callback,
        ),
    )
    if not context:
        raise _failed(library, "made no context to calibrate in")
    tokens = chunks = 0
    try:
        for sample in samples:
            ids = _tokenize(library, model, sample)
            for start in range(0, len(ids), _CHUNK_TOKENS):
                _evaluate(library, context, ids[start : start + _CHUNK_TOKENS])
                chunks += 1
            tokens += len(ids)
    finally:
        library.bindings().llama_free(context)
    return tokens, chunks


def _tokenize(library: Library, model: Any, sample: str) -> list[int]:
    data = sample.encode("utf-8")
    room = (ctypes.c_int32 * (len(data) + 8))()
    count = library.tokenize(model, data, room, add_special=True, parse_special=False)
    if count < 0:
        raise _failed(library, "cannot tokenise the calibration set")
    return room[:count]


def _evaluate(library: Library, context: Any, ids: list[int]) -> None:
    library.clear(context)
    decode = library.bindings().llama_decode
    for start in range(0, len(ids), _STEP_TOKENS):
        step = ids[start : start + _STEP_TOKENS]
        array = (ctypes.c_int32 * len(step))(*step)
        if decode(context, library.batch(array, len(step), start)):
            raise _failed(library, "cannot evaluate the calibration set")


def _outliers(sums: dict[str, _Sums]) -> tuple[OutlierChannel, ...]:
    found = []
    for name, each in sums.items():
        ratios = each.largest / max(float(np.median(each.largest)), 1e-12)
        found += [
            OutlierChannel(tensor=name, channel=int(channel), ratio=round(float(ratio), 1))
            for channel, ratio in enumerate(ratios)
            if ratio >= _OUTLIER_RATIO
        ]
    found.sort(key=lambda outlier: -outlier.ratio)
    return tuple(found[:_OUTLIERS_NAMED])


def _failed(library: Library, what: str) -> AdapterError:
    return AdapterError(
        "calibration-failed",
        f"{library.title} {what}",
        context={"native_log": library.log().complaints},
    )
