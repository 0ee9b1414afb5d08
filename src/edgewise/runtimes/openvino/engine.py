"""The OpenVINO engine: a stateful graph on the CPU plugin, one sequence, logits at every step.

Every precision setting is given explicitly, so that a default that differs between processors
never decides; those in force are read back and reported.
"""

from __future__ import annotations

import collections
import struct
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.core.recipe import KvType, RunConfig
from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.runtimes.openvino import native
from edgewise.runtimes.openvino.feed import feed_for
from edgewise.runtimes.openvino.formats import HINTS, KV_ELEMENT_BYTES, KV_PROPERTY
from edgewise.runtimes.openvino.graph import keep_last_row, state_axis
from edgewise.runtimes.openvino.load import Loaded, load_artifact, native_error
from edgewise.runtimes.openvino.report import (
    cache_precision,
    features_in_force,
    memory_report,
    partition_of,
    precision_in_force,
)
from edgewise.runtimes.protocol import CancelledError
from edgewise.runtimes.reports import MemoryReport, PartitionReport
from edgewise.runtimes.stepped import SteppedEngine, refuse_hints

__all__ = ["OpenVinoEngine"]

_EXACT_KV = (KvType.F16, KvType.BF16, KvType.F32)
_STATE_ENTRY = struct.Struct("<II")  # tokens, bytes
_DEFAULT_PRECISION = "f32"
_ARTIFACT_GROUP = ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"]


class OpenVinoEngine(SteppedEngine):
    """One compiled graph and one infer request."""

    runtime = "openvino"

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Load and compile the artifact.

        Raises:
            InputError: there is no such artifact, or a setting has an impossible value.
            UnsupportedError: a hint, a precision or a KV format that is not offered here, or a
                graph that is no text decoder.
            IntegrityError: the tokenizer or the GGUF file is damaged.
            AdapterError: OpenVINO cannot read or compile it.
            ResourceError: memory or disk ran out.
        """
        refuse_hints(self.runtime, run_config, HINTS)
        _refuse(run_config)
        self._config = run_config
        self._artifact: Loaded | None = load_artifact(artifact, run_config)
        try:
            self._start(self._artifact)
        except BaseException:
            self._artifact.close()
            raise

    def _start(self, artifact: Loaded) -> None:
        model = artifact.read()
        feed = feed_for(model, self._config.context_length)
        self._state_shapes = _state_shapes(model)
        self._axis = {name: state_axis(shape) for name, shape in self._state_shapes.items()}
        self._group = self._dynamic_group(model)
        keep_last_row(model)
        self._compiled = self._compile(model)
        self._feed = feed
        self._fused, self._stored = cache_precision(self._compiled)
        self._require_kv_type()
        self._request = self._compiled.create_infer_request()
        self._lengths = (0, 0)  # tokens of the last two steps
        self._torn = False
        super().__init__(
            context_length=self._config.context_length,
            vocab_size=int(model.outputs[0].get_partial_shape()[-1].get_length()),
            step_tokens=self._config.batch_tokens,
            codec=artifact.codec,
        )

    def _dynamic_group(self, model: Any) -> str:
        """Return how many activations share a run-time scale: hint, else artifact, else none."""
        asked = dict(self._config.hints).get("DYNAMIC_QUANTIZATION_GROUP_SIZE")
        if asked is not None:
            return asked
        if model.has_rt_info(_ARTIFACT_GROUP):
            return str(model.get_rt_info(_ARTIFACT_GROUP).astype(str))
        return "0"

    def _compile(self, model: Any, *, profile: bool = False) -> Any:
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(self._config.threads),
            "ENABLE_CPU_PINNING": "NO",
            "INFERENCE_PRECISION_HINT": _DEFAULT_PRECISION,
            "KV_CACHE_PRECISION": KV_PROPERTY[self._config.kv_type],
            "PERF_COUNT": "YES" if profile else "NO",
            **dict(self._config.hints),
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": self._group,
        }
        try:
            return native.load().Core().compile_model(model, native.DEVICE, settings)
        except (RuntimeError, MemoryError) as error:
            if "option" in str(error).lower() or "property" in str(error).lower():
                raise InputError(
                    "hint-invalid",
                    "OpenVINO refuses a setting",
                    context={"native": str(error)[-400:], "settings": settings},
                    hint="check the values given as hints",
                ) from error
            raise native_error("compile-failed", "compiling the graph", error) from error

    def _require_kv_type(self) -> None:
        asked = self._config.kv_type
        if self._fused or KV_PROPERTY[asked] == self._stored:
            return
        raise UnsupportedError(
            "kv-type-unsupported",
            f"this graph's attention keeps its cache as {self._stored}, not as {asked}",
            context={"asked": str(asked), "in_force": self._stored},
            hint=f"run it with --kv {self._stored}",
        )

    def _evaluate(self, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        self._lengths = (self._lengths[1], len(tokens))
        try:
            # Asynchronous, since only such a request can be cancelled from another thread.
            self._request.start_async(self._feed.inputs(tokens, self._position))
            self._request.wait()
        except (RuntimeError, MemoryError) as error:
            self._torn = True
            if self.cancelled:
                raise CancelledError from error
            raise native_error("decode-failed", "evaluating a step", error) from error
        logits: np.ndarray[Any, np.dtype[np.float32]] = self._request.get_output_tensor(
            0
        ).data.reshape(-1, self._vocab_size)[-1]
        return logits

    def cancel(self) -> None:
        """Abort the running call before its next operator. Callable from any thread."""
        super().cancel()
        self._request.cancel()

    def _truncate(self, position: int) -> None:
        if position == 0:
            self._request.reset_state()
            self._mend()
            return
        self._require_exact_states()
        kept = {}
        for state, values in self._states():
            keep = [slice(None)] * values.ndim
            keep[self._axis[state.name]] = slice(0, position)
            kept[state.name] = np.ascontiguousarray(values[tuple(keep)])
        if self._torn:
            self._request.reset_state()
            self._mend()
        for state in self._request.query_state():
            self._set(state, kept[state.name])

    def _mend(self) -> None:
        """Make the graph usable after a step that did not end.

        The plugin infers shapes again only where an input's shape has changed since the last
        step. An aborted step leaves its shapes in part of the graph; a step of yet another
        length, into an empty cache, changes them everywhere.
        """
        if not self._torn:
            return
        length = next(count for count in (1, 2, 3) if count not in self._lengths)
        try:
            self._request.infer(self._feed.inputs([0] * length, 0))
        except RuntimeError:
            assert self._artifact is not None
            model = self._artifact.read()
            keep_last_row(model)
            self._compiled = self._compile(model)
            self._request = self._compiled.create_infer_request()
        self._request.reset_state()
        self._lengths = (self._lengths[1], length)
        self._torn = False

    def _states(self) -> list[tuple[Any, np.ndarray[Any, Any]]]:
        return [(state, state.state.data) for state in self._request.query_state()]

    @staticmethod
    def _set(state: Any, values: np.ndarray[Any, Any]) -> None:
        state.state = native.load().Tensor(np.ascontiguousarray(values))

    def _require_exact_states(self) -> None:
        if self._fused and self._config.kv_type not in _EXACT_KV:
            raise UnsupportedError(
                "rewind-unsupported",
                f"a {self._config.kv_type} cache comes out of OpenVINO as floats and is rounded "
                "anew when it goes in",
                hint="rewind to 0 and evaluate the prompt again, or use an f16 cache",
            )

    def _identity(self) -> tuple[object, ...]:
        assert self._artifact is not None
        return (
            *self._artifact.identity,
            str(self._config.kv_type),
            self._config.hints,
            native.installed_version(),
        )

    def _save(self) -> bytes:
        self._require_exact_states()
        parts = []
        for state, values in sorted(self._states(), key=lambda pair: str(pair[0].name)):
            body = _pack(values, self._width())
            parts.append(_STATE_ENTRY.pack(values.shape[self._axis[state.name]], len(body)) + body)
        return b"".join(parts)

    def _load(self, body: memoryview, position: int) -> None:
        self._require_exact_states()
        if position == 0:
            return
        at = 0
        for state, empty in sorted(self._states(), key=lambda pair: str(pair[0].name)):
            tokens, size = _STATE_ENTRY.unpack_from(body, at)
            at += _STATE_ENTRY.size
            values = _unpack(body[at : at + size], self._width())
            at += size
            shape = self._shape(state.name, tokens)
            if tokens != position or values.size != int(np.prod(shape)):
                self._request.reset_state()
                raise IntegrityError("state-damaged", "the saved state has another shape")
            self._set(state, values.reshape(shape).astype(empty.dtype))

    def _shape(self, name: str, tokens: int) -> tuple[int, ...]:
        fixed = (
            1 if size.is_dynamic else int(size.get_length()) for size in self._state_shapes[name]
        )
        shape = list(fixed)
        shape[self._axis[name]] = tokens
        return tuple(shape)

    def _width(self) -> str:
        return KV_PROPERTY[self._config.kv_type] if self._fused else "f32"

    def memory(self) -> MemoryReport:
        """Return what the process holds, and what follows from the artifact and its states."""
        assert self._artifact is not None
        return memory_report(
            self._artifact.weights_bytes,
            [values.shape for _, values in self._states()],
            KV_ELEMENT_BYTES[self._config.kv_type],
        )

    def partition(self) -> PartitionReport:
        """Compile the graph again with profiling, run one step, return which kernels ran."""
        assert self._artifact is not None
        model = self._artifact.read()
        refused = self._refused(model)
        keep_last_row(model)
        compiled = self._compile(model, profile=True)
        request = compiled.create_infer_request()
        request.infer(self._feed.inputs([0], 0))
        executed = [
            (info.node_type, info.exec_type)
            for info in request.profiling_info
            if str(info.status).endswith("EXECUTED")
        ]
        precision = precision_in_force(compiled, fused=self._fused, stored=self._stored)
        return partition_of(executed, refused, precision, features_in_force(compiled))

    @staticmethod
    def _refused(model: Any) -> dict[str, int]:
        """Return the operators of the graph that the CPU plugin does not take."""
        taken = native.load().Core().query_model(model, native.DEVICE)
        refused: collections.Counter[str] = collections.Counter()
        for node in model.get_ops():
            if node.get_friendly_name() not in taken:
                refused[node.get_type_name()] += 1
        return dict(refused)

    def close(self) -> None:
        """Free the compiled graph and what loading put on disk."""
        if self._artifact is not None:
            del self._request, self._compiled
            self._artifact.close()
            self._artifact = None


def _state_shapes(model: Any) -> dict[str, Any]:
    """Return ``state -> partial shape``."""
    shapes = {
        variable.get_info().variable_id: variable.get_info().data_shape
        for variable in model.get_variables()
    }
    if not shapes:
        raise UnsupportedError(
            "architecture-unsupported",
            "the graph keeps no state between steps",
            hint="export it with its KV cache inside",
        )
    return shapes


def _refuse(run_config: RunConfig) -> None:
    """Refuse settings that OpenVINO would replace by something else."""
    if run_config.kv_type not in KV_PROPERTY:
        raise UnsupportedError(
            "kv-type-unsupported",
            f"openvino has no {run_config.kv_type} KV cache",
            hint=f"it has: {', '.join(KV_PROPERTY)}",
        )
    asked = dict(run_config.hints).get("INFERENCE_PRECISION_HINT", _DEFAULT_PRECISION)
    offered = native.offered_precisions()
    if asked not in offered:
        raise UnsupportedError(
            "precision-unsupported",
            f"the CPU plugin has no {asked} kernels on this processor",
            hint=f"it has: {', '.join(offered)}",
        )


def _pack(values: np.ndarray[Any, Any], width: str) -> bytes:
    """Return cached values in the width they are held in; nothing is lost."""
    if width == "bf16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32) >> np.uint32(16)
        return bits.astype("<u2").tobytes()
    return np.ascontiguousarray(values, "<f2" if width == "f16" else "<f4").tobytes()


def _unpack(body: memoryview, width: str) -> np.ndarray[Any, Any]:
    if width == "bf16":
        bits = np.frombuffer(body, "<u2").astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    return np.frombuffer(body, "<f2" if width == "f16" else "<f4")
