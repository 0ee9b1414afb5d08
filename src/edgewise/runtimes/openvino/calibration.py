"""The calibration set of an export, and what it shows about a graph.

Two things are measured on the set: channels of the float model whose largest input stands far
above the others (they decide what 8-bit activations lose), and the share of values that the
ranges of static quantisers clip.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.core.quantity import Measured
from edgewise.errors import InputError
from edgewise.runtimes.calibration import read_lines
from edgewise.runtimes.openvino import native
from edgewise.runtimes.openvino.feed import feed_for
from edgewise.runtimes.openvino.formats import STATIC
from edgewise.runtimes.reports import ActivationRange, CalibrationReport, OutlierChannel

__all__ = ["CalibrationSet", "module_of", "observe", "outliers_of", "read_calibration"]

_SAMPLES_MAX = 128
_TOKENS_MAX = 256
_TOKENS_MIN = 8
_OUTLIER_RATIO = 8.0
_OUTLIERS_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSet:
    """Token ids of the samples.

    Attributes:
        revision: SHA-256 of the file.
        ids: Ids per sample, at most 256 each.
        notes: What was left out.
    """

    revision: str
    ids: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """Return the number of tokens in all samples."""
        return sum(len(sample) for sample in self.ids)

    def inputs(self) -> list[dict[str, np.ndarray[Any, Any]]]:
        """Return the samples as a graph's inputs, each from an empty cache."""
        found: list[dict[str, np.ndarray[Any, Any]]] = []
        for sample in self.ids:
            count = len(sample)
            found.append(
                {
                    "input_ids": np.array([sample], np.int64),
                    "attention_mask": np.ones((1, count), np.int64),
                    "position_ids": np.arange(count, dtype=np.int64)[None],
                    "beam_idx": np.zeros(1, np.int32),
                }
            )
        return found

    def report(
        self, method: str, model: Any, outliers: list[OutlierChannel], threads: int
    ) -> CalibrationReport:
        """Return what the set showed; for the static method with ranges and clipped shares."""
        notes = [*self.notes]
        if len(outliers) > _OUTLIERS_KEPT:
            notes.append(
                f"{len(outliers)} outlier channels; the {_OUTLIERS_KEPT} largest are listed"
            )
        return CalibrationReport(
            method=method,
            revision=self.revision,
            samples=len(self.ids),
            tokens=self.tokens,
            ranges=tuple(_ranges(model, self, threads)) if method == STATIC else (),
            outlier_channels=tuple(outliers[:_OUTLIERS_KEPT]),
            notes=tuple(notes),
        )


def read_calibration(source: Path, path: Path | None) -> CalibrationSet:
    """Return the calibration set as the checkpoint's tokenizer sees it.

    Args:
        source: The checkpoint, for its ``tokenizer.json``.
        path: UTF-8 text, a sample per line.

    Raises:
        InputError: as :func:`~edgewise.runtimes.calibration.read_lines`, or no line is long enough.
        UnsupportedError: the tokenizer cannot be read here.
        IntegrityError: the tokenizer is damaged.
    """
    from edgewise.runtimes.hf_tokenizer import HfTokenizer  # noqa: PLC0415 - native library

    assert path is not None
    read = read_lines(path)
    tokenizer = HfTokenizer(source)
    kept: list[tuple[int, ...]] = []
    short = cut = 0
    for line in read.samples:
        if len(kept) == _SAMPLES_MAX:
            break
        ids = tokenizer.tokenize(line, add_special=True, parse_special=False)
        if len(ids) < _TOKENS_MIN:
            short += 1
            continue
        cut += len(ids) > _TOKENS_MAX
        kept.append(tuple(ids[:_TOKENS_MAX]))
    if not kept:
        raise InputError(
            "calibration-empty",
            f"no line of the calibration set has {_TOKENS_MIN} tokens or more",
            hint="give some dozens of lines of ordinary text",
        )
    unread = len(read.samples) - len(kept) - short
    counts = ((short, "too short"), (cut, f"cut to {_TOKENS_MAX} tokens"), (unread, "not used"))
    return CalibrationSet(
        revision=read.revision,
        ids=tuple(kept),
        notes=tuple(f"samples {what}: {count}" for count, what in counts if count),
    )


def observe(model: Any, samples: CalibrationSet, threads: int) -> list[OutlierChannel]:
    """Return the outlier channels among the inputs of a float graph's matrix products.

    Args:
        model: The graph before it is compressed; it is not changed.
        samples: What is run through it.
        threads: Compute threads.

    Returns:
        Channels whose largest magnitude is at least eight times the median channel's, the most
        extreme first.
    """
    watched = model.clone()
    points: dict[str, Any] = {}
    seen: set[tuple[str, int]] = set()
    for node in watched.get_ordered_ops():
        if node.get_type_name() != "MatMul" or not _reads_constant(node.input_value(1)):
            continue
        output = node.input_value(0)
        key = (output.get_node().get_friendly_name(), output.get_index())
        if key not in seen:
            seen.add(key)
            points[module_of(node.get_friendly_name())] = output
    largest: dict[str, np.ndarray[Any, Any]] = {}
    for name, values in _run(watched, points, samples, threads):
        peak = np.abs(values).reshape(-1, values.shape[-1]).max(axis=0)
        largest[name] = np.maximum(largest[name], peak) if name in largest else peak
    return outliers_of(largest)


def outliers_of(largest: dict[str, np.ndarray[Any, Any]]) -> list[OutlierChannel]:
    """Return outlier channels, most extreme first.

    Args:
        largest: ``tensor -> largest magnitude per channel``, shape ``(channels,)``.
    """
    found = []
    for name, peaks in largest.items():
        median = float(np.median(peaks))
        if median <= 0:
            continue
        found += [
            OutlierChannel(
                tensor=f"input of {name}",
                channel=int(channel),
                ratio=round(float(peaks[channel]) / median, 2),
            )
            for channel in np.flatnonzero(peaks >= _OUTLIER_RATIO * median)
        ]
    return sorted(found, key=lambda item: (-item.ratio, item.tensor, item.channel))


def module_of(operator: str) -> str:
    """Return the checkpoint's name of the module an operator of a traced graph came from."""
    return operator.removeprefix("__module.").partition("/")[0]


def _ranges(model: Any, samples: CalibrationSet, threads: int) -> list[ActivationRange]:
    """Return every activation quantiser's range, with the share of values outside of it."""
    watched = model.clone()
    points, limits = {}, {}
    for node in watched.get_ordered_ops():
        if node.get_type_name() != "FakeQuantize" or _reads_constant(node.input_value(0)):
            continue
        readers = [
            port.get_node().get_friendly_name() for port in node.output(0).get_target_inputs()
        ]
        name = "+".join(sorted({module_of(reader) for reader in readers}))
        points[name] = node.input_value(0)
        limits[name] = tuple(
            float(np.asarray(node.input_value(port).get_node().get_data()).ravel()[0])
            for port in (1, 2)
        )
    outside = dict.fromkeys(points, 0)
    total = dict.fromkeys(points, 0)
    for name, values in _run(watched, points, samples, threads):
        low, high = limits[name]
        outside[name] += int(np.count_nonzero((values < low) | (values > high)))
        total[name] += values.size
    return [
        ActivationRange(
            tensor=f"input of {name}",
            low=limits[name][0],
            high=limits[name][1],
            clipped=Measured(
                value=outside[name] / max(1, total[name]),
                source="share of the calibration set's values outside of the range",
                n=max(1, total[name]),
            ),
        )
        for name in points
    ]


def _run(model: Any, points: dict[str, Any], samples: CalibrationSet, threads: int) -> Any:
    """Yield ``(name, values)`` of every watched output for every sample."""
    first = len(model.outputs)
    model.add_outputs(list(points.values()))
    settings = {
        "INFERENCE_NUM_THREADS": str(threads),
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = (
        native.load().Core().compile_model(model, native.DEVICE, settings).create_infer_request()
    )
    feed = feed_for(model, _TOKENS_MAX)
    for sample in samples.ids:
        request.reset_state()
        request.infer(feed.inputs(list(sample), 0))
        for index, name in enumerate(points):
            yield name, request.get_output_tensor(first + index).data


def _reads_constant(output: Any) -> bool:
    """Whether a float graph's input is a weight, however it is stored."""
    node = output.get_node()
    while node.get_type_name() in {"Convert", "Reshape", "Transpose"}:
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")
