"""NNCF: rounding the weights of a graph, and for static W8A8 its activations."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edgewise.core.formats import Activation, OfferedFormat
from edgewise.errors import UnsupportedError
from edgewise.runtimes.openvino import native

if TYPE_CHECKING:
    from edgewise.runtimes.openvino.calibration import CalibrationSet

__all__ = ["compress"]

_NO_PATTERN = "No matching patterns"
_SWITCHES = {"awq": "awq", "gptq": "gptq", "scale-estimation": "scale_estimation"}


def compress(model: Any, offer: OfferedFormat, method: str, samples: CalibrationSet | None) -> Any:
    """Return the graph with its weights in the offered format; floats stay as they are.

    Raises:
        UnsupportedError: the method finds nothing in this graph that it can work on.
    """
    if offer.weights.kind == "float":
        return model
    native.quiet_export_imports()
    native.load()
    nncf = native.need("nncf")
    with _log() as messages:
        if offer.activation is Activation.INT8_STATIC:
            assert samples is not None
            return _static(nncf, model, samples)
        compressed = nncf.compress_weights(model, **_settings(nncf, offer, method, samples))
    if any(_NO_PATTERN in message for message in messages):
        raise UnsupportedError(
            "method-not-applicable",
            f"NNCF's {method} finds no layers in this model that it can change",
            hint="use rtn or scale-estimation",
        )
    return compressed


def _settings(
    nncf: Any, offer: OfferedFormat, method: str, samples: CalibrationSet | None
) -> dict[str, Any]:
    modes = nncf.CompressWeightsMode
    weights, beside = offer.weights, offer.embedding
    if weights.bits == 8:
        return {"mode": modes.INT8_SYM if weights.symmetric else modes.INT8_ASYM}
    settings: dict[str, Any] = {
        "mode": modes.INT4_SYM if weights.symmetric else modes.INT4_ASYM,
        "group_size": weights.group_size,
        "ratio": 1.0,
        "all_layers": beside.bits == 4,
    }
    if beside.bits == 8:
        backup = nncf.BackupMode
        settings["backup_mode"] = backup.INT8_SYM if beside.symmetric else backup.INT8_ASYM
    if samples is not None:
        settings |= {
            _SWITCHES[method]: True,
            "dataset": nncf.Dataset(samples.inputs()),
            "subset_size": len(samples.ids),
        }
    return settings


def _static(nncf: Any, model: Any, samples: CalibrationSet) -> Any:
    # A quantiser inside attention would break up the kernel that holds the KV cache.
    attention = nncf.IgnoredScope(types=["ScaledDotProductAttention"], validate=False)
    return nncf.quantize(
        model,
        nncf.Dataset(samples.inputs()),
        subset_size=len(samples.ids),
        model_type=nncf.ModelType.TRANSFORMER,
        ignored_scope=attention,
    )


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextlib.contextmanager
def _log() -> Iterator[list[str]]:
    """Collect NNCF's log instead of printing it, and keep its progress bars off stdout."""
    logger = logging.getLogger("nncf")
    handlers, logger.handlers = logger.handlers, []
    collector = _Collector()
    logger.addHandler(collector)
    try:
        with contextlib.redirect_stdout(None):
            yield collector.messages
    finally:
        logger.handlers = handlers
