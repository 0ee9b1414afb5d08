"""The ONNX Runtime GenAI engine: tokens in, logits out, one generator for the engine's life.

The library evaluates with the interpreter lock held, so nothing can stop a running call. A
prefill therefore goes in steps of at most 64 tokens, between which a cancel is seen; larger steps
are no faster. A new conversation cuts the cache to 0 and goes on with the same generator.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgewise.core.quantity import Estimated, Measured, Unknown
from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.device.process import peak_resident_bytes, resident_bytes
from edgewise.errors import (
    AdapterError,
    InputError,
    IntegrityError,
    ResourceError,
    UnsupportedError,
)
from edgewise.runtimes.hf_tokenizer import HfTokenizer
from edgewise.runtimes.onnx_genai import native
from edgewise.runtimes.onnx_genai.graph import Graph, read_graph
from edgewise.runtimes.onnx_genai.placement import partition_of
from edgewise.runtimes.onnx_genai.source import read_json, require_tokenizer
from edgewise.runtimes.reports import MemoryReport, PartitionReport
from edgewise.runtimes.stepped import SteppedEngine, refuse_hints

if TYPE_CHECKING:
    import numpy as np

__all__ = ["HINTS", "OnnxGenAiEngine"]

HINTS: Final = ("execution_provider", "allow_spinning")

_STEP_TOKENS_MAX: Final = 64
_F32_BYTES: Final = 4
# Spinning threads take the other half of a shared processor while they wait.
_SPINNING: Final = "session.intra_op.allow_spinning"


class OnnxGenAiEngine(SteppedEngine):
    """One model and one generator of batch size 1."""

    runtime = "onnx-genai"

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Load the model and reserve the context.

        Raises:
            UnsupportedError: the runtime is not installed, or cannot run as configured.
            IntegrityError: the artifact is incomplete or malformed.
            AdapterError: ONNX Runtime refuses the model.
            ResourceError: memory ran out.
        """
        facts = _read_facts(artifact)
        self._requested = _check(run_config, facts)
        codec = HfTokenizer(artifact)
        require_tokenizer(codec, facts.vocab_size)
        super().__init__(
            context_length=run_config.context_length,
            vocab_size=facts.vocab_size,
            step_tokens=min(run_config.batch_tokens, _STEP_TOKENS_MAX),
            codec=codec,
        )
        self._facts = facts
        self._artifact = artifact
        self._threads = run_config.threads
        self._session_options = {_SPINNING: dict(run_config.hints).get("allow_spinning", "0")}
        native.use_flash_attention(run_config.flash_attention)
        self._og = native.load()
        self._model = self._load_model()
        self._generator: Any = self._new_generator()

    def _load_model(self) -> Any:
        try:
            config = self._og.Config(str(self._artifact))
            config.clear_providers()
            config.overlay(
                json.dumps(
                    {
                        "model": {
                            "decoder": {
                                "session_options": {
                                    "intra_op_num_threads": self._threads,
                                    "inter_op_num_threads": 1,
                                    **self._session_options,
                                }
                            }
                        }
                    }
                )
            )
            return self._og.Model(config)
        except Exception as error:
            raise _typed(
                error,
                "model-load-failed",
                f"ONNX Runtime cannot load {self._artifact.name}",
                hint="the artifact may belong to another version of the runtime: build it again",
            ) from error

    def _new_generator(self) -> Any:
        try:
            params = self._og.GeneratorParams(self._model)
            params.set_search_options(max_length=self._context_length, do_sample=False)
            return self._og.Generator(self._model, params)
        except Exception as error:
            raise _typed(
                error,
                "context-failed",
                f"ONNX Runtime GenAI cannot reserve a context of {self._context_length} tokens",
                hint="use a smaller context",
            ) from error

    def _evaluate(self, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        import numpy as np  # noqa: PLC0415 - after the native library, like every import of it

        try:
            self._generator.append_tokens(np.asarray(tokens, dtype=np.int32))
            logits = self._generator.get_logits()
        except Exception as error:
            raise _typed(
                error, "decode-failed", f"ONNX Runtime failed at {len(tokens)} tokens"
            ) from error
        last: np.ndarray[Any, np.dtype[np.float32]] = np.asarray(logits, dtype=np.float32)
        return last.reshape(-1)[-self._vocab_size :]

    def _truncate(self, position: int) -> None:
        try:
            if position != self._generator.token_count():
                self._generator.rewind_to(position)
        except Exception as error:
            # What a failed step broke: only an empty cache is certain.
            self._generator = self._new_generator()
            if position:
                raise UnsupportedError(
                    "rewind-unsupported", f"the generator cannot be cut at {position}: {error}"
                ) from error

    def memory(self) -> MemoryReport:
        """Return what the process holds and what model and cache take by their shapes."""
        return MemoryReport(
            resident_bytes=resident_bytes(),
            peak_resident_bytes=peak_resident_bytes(),
            weights_bytes=Measured(
                value=self._facts.stored_bytes, source="size of the model's files"
            ),
            kv_cache_bytes=Estimated(
                value=self._facts.kv_elements_per_token * _F32_BYTES * self._context_length,
                source="layers x heads x (key + value) x context x 4 bytes, reserved at load",
            ),
            workspace_bytes=Unknown(reason="ONNX Runtime does not tell the size of its arena"),
        )

    def partition(self) -> PartitionReport:
        """Return which execution provider took which operator; see :mod:`.placement`."""
        return partition_of(
            self._artifact / self._facts.filename,
            self._facts.graph,
            requested=self._requested,
            session_options=self._session_options,
            threads=self._threads,
        )

    def close(self) -> None:
        """Free the generator, then the model it stands on."""
        self._generator = None
        self._model = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What the artifact says of itself."""

    filename: str
    vocab_size: int
    context_length: int
    kv_elements_per_token: int
    stored_bytes: int
    graph: Graph


def _read_facts(artifact: Path) -> _Facts:
    config = read_json(artifact / "genai_config.json")
    try:
        model = config["model"]
        decoder = model["decoder"]
        filename = str(decoder["filename"])
        numbers = [int(model[key]) for key in ("vocab_size", "context_length")]
        sizes = [
            int(decoder[key]) for key in ("num_hidden_layers", "num_key_value_heads", "head_size")
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            "artifact-damaged", f"genai_config.json does not describe a decoder: {error!r}"
        ) from error
    if min(*numbers, *sizes) < 1 or Path(filename).name != filename:
        raise IntegrityError("artifact-damaged", "genai_config.json holds impossible values")
    layers, heads, width = sizes
    try:
        stored = sum(path.stat().st_size for path in artifact.glob(f"{filename}*"))
    except OSError as error:
        raise IntegrityError("artifact-damaged", f"the model is not readable: {error}") from error
    return _Facts(
        filename=filename,
        vocab_size=numbers[0],
        context_length=numbers[1],
        kv_elements_per_token=2 * layers * heads * width,
        stored_bytes=stored,
        graph=read_graph(artifact / filename),
    )


def _check(config: RunConfig, facts: _Facts) -> str:
    """Refuse what this runtime would do otherwise than configured; return the provider."""
    refuse_hints(OnnxGenAiEngine.runtime, config, HINTS)
    if config.kv_type is not KvType.F32:
        raise UnsupportedError(
            "kv-type-unsupported",
            f"this artifact keeps its KV cache in f32, not {config.kv_type}",
            hint="run it with an f32 KV cache",
        )
    if config.load_mode is not LoadMode.MMAP:
        raise UnsupportedError(
            "load-mode-unsupported",
            "ONNX Runtime maps the weights and repacks them; it cannot be told otherwise",
            hint="use the load mode mmap",
        )
    if config.context_length > facts.context_length:
        raise UnsupportedError(
            "context-too-long",
            f"the artifact was made for {facts.context_length} tokens of context, "
            f"not {config.context_length}",
            context={"asked": config.context_length, "longest": facts.context_length},
            hint=f"ask for at most {facts.context_length}",
        )
    hints = dict(config.hints)
    if hints.get("allow_spinning", "0") not in {"0", "1"}:
        raise InputError("hint-invalid", "allow_spinning is 0 or 1")
    provider = hints.get("execution_provider", native.CPU)
    loaded = native.loaded_providers()
    if provider not in loaded or provider != native.CPU:
        raise UnsupportedError(
            "backend-not-loaded",
            f"the execution provider {provider} is not loaded here, or not for this artifact",
            context={"loaded": list(loaded)},
            hint=f"artifacts of this exporter run on the {native.CPU}",
        )
    return provider


def _typed(
    error: Exception, code: str, message: str, hint: str | None = None
) -> AdapterError | ResourceError:
    text = str(error)
    if isinstance(error, MemoryError) or "allocate" in text or "bad_alloc" in text:
        return ResourceError(
            "engine-out-of-memory",
            f"{message}: memory ran out",
            context={"native": text[:2000]},
            hint="use a smaller context or model",
            retryable=True,
        )
    return AdapterError(code, f"{message}: {text[:500]}", hint=hint)
