"""The MLX engine: mlx-lm's model definitions, a plain KV cache, logits of every step."""

from __future__ import annotations

import collections
import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.core.quantity import Measured, Quantity, Unknown
from edgewise.core.recipe import RunConfig
from edgewise.device.process import peak_resident_bytes, resident_bytes
from edgewise.errors import AdapterError, IntegrityError, ResourceError, UnsupportedError
from edgewise.runtimes.hf_tokenizer import HfTokenizer
from edgewise.runtimes.mlx import caches
from edgewise.runtimes.mlx.formats import RUNTIME
from edgewise.runtimes.mlx.libraries import build_model, installed_version, libraries
from edgewise.runtimes.reports import MemoryReport, PartitionReport
from edgewise.runtimes.stepped import SteppedEngine, refuse_hints

__all__ = ["MlxEngine"]

_WEIGHTS = "model.safetensors"
_NO_LOGITS = np.empty(0, dtype=np.float32)
# On a CPU MLX is slow; a cancel waits for one step.
_CPU_STEP_TOKENS = 8
_LABEL = re.compile(r'label\s*=\s*"([A-Za-z]\w*)"\s*,\s*shape\s*=\s*rectangle')


class MlxEngine(SteppedEngine):
    """One model on MLX's default device."""

    runtime = RUNTIME

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Load the model.

        Raises:
            InputError: the context is longer than the model's positions.
            UnsupportedError: MLX is not installed, or lacks the architecture or a setting.
            AdapterError: the artifact is damaged.
        """
        refuse_hints(self.runtime, run_config, ())
        self._lib = libraries()
        self._artifact = artifact
        self._config = run_config
        config = _config(artifact)
        limit = config.get("max_position_embeddings")
        if isinstance(limit, int) and run_config.context_length > limit:
            raise UnsupportedError(
                "context-too-long",
                f"the model has positions for {limit} tokens, {run_config.context_length} were "
                "asked for",
                hint=f"ask for at most {limit}",
            )
        self._model: Any = _load(artifact, config)
        self._pending: Any = None
        on_cpu = self._lib.mx.default_device().type == self._lib.mx.DeviceType.cpu
        self._caches = caches.make_caches(self._model, run_config.kv_type)
        super().__init__(
            context_length=run_config.context_length,
            vocab_size=_vocab_size(config),
            step_tokens=min(run_config.batch_tokens, _CPU_STEP_TOKENS)
            if on_cpu
            else run_config.batch_tokens,
            codec=HfTokenizer(artifact),
        )
        self._weights_bytes = sum(
            array.nbytes for _, array in self._lib.utils.tree_flatten(self._model.parameters())
        )
        self._lib.mx.reset_peak_memory()

    def prefill(
        self, tokens: Sequence[int], *, progress: Callable[[int], None] | None = None
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Evaluate ``tokens`` and return the logits after the last one.

        See :meth:`edgewise.runtimes.protocol.Engine.prefill`.
        """
        super().prefill(tokens, progress=progress)
        return self._logits()

    def decode(self, token: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Evaluate one token and return the logits after it.

        See :meth:`edgewise.runtimes.protocol.Engine.decode`.
        """
        super().decode(token)
        return self._logits()

    def _evaluate(self, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        # MLX computes what is asked for: the caches now, the logits only when a step's are wanted.
        # The last token goes alone, so that the head is never computed for the others.
        mx = self._lib.mx
        with _translated():
            for part in (tokens[:-1], tokens[-1:]):
                if part:
                    out = self._model(mx.array([part]), cache=self._caches)
                    mx.eval([cache.state for cache in self._caches])
        self._pending = out[0, -1].astype(mx.float32)
        return _NO_LOGITS

    def _logits(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        with _translated():
            return np.array(self._pending, dtype=np.float32)

    def _truncate(self, position: int) -> None:
        caches.cut(self._caches, position)

    def _identity(self) -> tuple[object, ...]:
        stat = (self._artifact / _WEIGHTS).stat()
        return (stat.st_size, stat.st_mtime_ns, self._config.kv_type, installed_version())

    def _save(self) -> bytes:
        return caches.dump(self._caches, self._position)

    def _load(self, body: memoryview, position: int) -> None:
        if position == 0:
            return
        if self._caches[0].keys is None:
            self._evaluate([0])  # gives the shapes and types of what is to be restored
            self._truncate(0)
        fresh = caches.make_caches(self._model, self._config.kv_type)
        caches.restore(fresh, self._caches, body, position)
        self._caches = fresh

    def memory(self) -> MemoryReport:
        """Return what the process holds and what MLX counts."""
        held = sum(cache.nbytes for cache in self._caches if cache.keys is not None)
        return MemoryReport(
            resident_bytes=resident_bytes(),
            peak_resident_bytes=peak_resident_bytes(),
            weights_bytes=Measured(value=self._weights_bytes, source="MLX: bytes of all arrays"),
            kv_cache_bytes=Measured(value=held, source="MLX: bytes held now; the cache grows"),
            workspace_bytes=self._workspace(held),
        )

    def _workspace(self, cache_bytes: int) -> Quantity:
        peak: int = self._lib.mx.get_peak_memory()
        beyond = peak - self._weights_bytes - cache_bytes
        if beyond <= 0:
            return Unknown(reason="nothing has been evaluated yet")
        return Measured(value=beyond, source="MLX: peak, less weights and cache")

    def partition(self) -> PartitionReport:
        """Return the operators of one decode step's graph.

        MLX runs a whole graph on the stream of its default device unless a model says otherwise;
        it does not tell per operator.
        """
        mx = self._lib.mx
        device = str(mx.default_device()).partition("(")[2].partition(",")[0].upper() or "CPU"
        observed = caches.make_caches(self._model, self._config.kv_type)
        out = self._model(mx.array([[0]]), cache=observed)
        text = io.StringIO()
        mx.export_to_dot(text, out)
        counts = collections.Counter(_LABEL.findall(text.getvalue()))
        return PartitionReport(
            requested=device,
            operators={name: {device: count} for name, count in sorted(counts.items())},
            features=_features(mx),
            precision={
                "kv": str(self._config.kv_type),
                "compute": _compute_type(self._lib, self._model),
                "threads": "MLX's own choice; it has no setting",
            },
            source="graph of one decode step; MLX does not tell the place of single operators",
        )

    def close(self) -> None:
        """Free the model."""
        self._model = None
        self._caches = []
        self._pending = None
        self._lib.mx.clear_cache()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise AdapterError("decode-failed", f"MLX failed to evaluate: {error}") from error
    except MemoryError as error:
        raise ResourceError("out-of-memory", "MLX ran out of memory") from error


def _config(artifact: Path) -> dict[str, Any]:
    try:
        config = json.loads((artifact / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise IntegrityError(
            "artifact-damaged", "the artifact holds no readable config.json"
        ) from error
    if not isinstance(config, dict):
        raise IntegrityError("artifact-damaged", "the artifact's config.json is no object")
    return config


def _load(artifact: Path, config: dict[str, Any]) -> Any:
    lib = libraries()
    model = build_model(config)
    settings = config.get("quantization")
    try:
        weights = lib.mx.load(str(artifact / _WEIGHTS))
        if hasattr(model, "sanitize"):  # some definitions only then learn that the head is tied
            weights = model.sanitize(weights)
        if settings:
            _make_quantised(lib, model, settings, weights)
        model.load_weights(list(weights.items()), strict=True)
        model.eval()
        lib.mx.eval(model.parameters())
    except (RuntimeError, ValueError, KeyError, TypeError, OSError) as error:
        raise AdapterError(
            "model-load-failed",
            f"MLX cannot load the artifact: {error}",
            hint="build it again; the weights do not fit the config",
        ) from error
    return model


def _make_quantised(lib: Any, model: Any, settings: dict[str, Any], weights: Any) -> None:
    common = {key: settings[key] for key in ("group_size", "bits", "mode")}

    def chosen(path: str, _module: Any) -> Any:
        if f"{path}.scales" not in weights:
            return False
        return settings.get(path, common)

    lib.nn.quantize(model, class_predicate=chosen)


def _vocab_size(config: dict[str, Any]) -> int:
    size = config.get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise IntegrityError("artifact-damaged", "the artifact's config.json has no vocab_size")
    return size


def _compute_type(lib: Any, model: Any) -> str:
    types = {
        str(array.dtype).rpartition(".")[2]
        for path, array in lib.utils.tree_flatten(model.parameters())
        if path.endswith("norm.weight")
    }
    return ", ".join(sorted(types))


def _features(mx: Any) -> tuple[str, ...]:
    try:
        facts = mx.device_info()
    except (RuntimeError, AttributeError):
        return ()
    named = ("architecture", "device_name")
    return tuple(str(facts[name]) for name in named if facts.get(name))
