"""The reference engine: one forward pass of transformers at a time, with a cache that can be cut.

The cache keeps every position, also in sliding layers, whose window the attention mask applies.
So any position can be returned to exactly.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgewise.core.quantity import Measured, Unknown
from edgewise.core.recipe import KvType, RunConfig
from edgewise.device.process import peak_resident_bytes, resident_bytes
from edgewise.errors import (
    AdapterError,
    InputError,
    IntegrityError,
    ResourceError,
    UnsupportedError,
)
from edgewise.models.hf_form import HfCheckpoint, read_hf
from edgewise.runtimes.hf_tokenizer import HfTokenizer
from edgewise.runtimes.reports import MemoryReport, PartitionReport
from edgewise.runtimes.stepped import SteppedEngine, refuse_hints
from edgewise.runtimes.transformers import native

if TYPE_CHECKING:
    import numpy as np

    Logits = np.ndarray[Any, np.dtype[np.float32]]

__all__ = ["TransformersEngine"]

_F32_BYTES: Final = 4
_PLACE: Final = "torch CPU"


class TransformersEngine(SteppedEngine):
    """One model in 32-bit floats and one cache of batch size 1."""

    runtime = "transformers"

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Load the model.

        Raises:
            UnsupportedError: the runtime is not installed, the model has no rules, or the
                configuration asks for what the reference does not do.
            IntegrityError: the folder is not sound.
            AdapterError: transformers refuses the folder.
            ResourceError: memory ran out.
        """
        refuse_hints(self.runtime, run_config, ())
        if run_config.kv_type is not KvType.F32:
            raise UnsupportedError(
                "kv-type-unsupported",
                f"the reference keeps its KV cache in f32, not {run_config.kv_type}",
                hint="use --kv f32",
            )
        checkpoint = read_hf(artifact)
        super().__init__(
            context_length=run_config.context_length,
            vocab_size=checkpoint.shape.vocab_size,
            step_tokens=run_config.batch_tokens,
            codec=HfTokenizer(artifact),
        )
        self._torch, self._transformers = native.load()
        self._torch.set_num_threads(run_config.threads)
        self._shape = checkpoint.shape
        self._attention = "sdpa" if run_config.flash_attention else "eager"
        self._model: Any = self._load_model(artifact)
        self._check_tensors(checkpoint)
        self._cache = self._new_cache()

    def score(self, tokens: Sequence[int]) -> Logits:
        """Return the logits after each of ``tokens``, from an empty cache.

        The engine's own cache is untouched.

        Args:
            tokens: Token ids, at least one, at most the context's length.

        Returns:
            ``(len(tokens), vocab_size)`` float32.

        Raises:
            InputError: there is no token, or there are too many, or one is not in the vocabulary.
            AdapterError: the forward pass failed.
        """
        import numpy as np  # noqa: PLC0415 - the worker has it

        if not 0 < len(tokens) <= self._context_length:
            raise InputError(
                "context-full",
                f"{len(tokens)} tokens do not fit: the context holds 1 to {self._context_length}",
            )
        if not all(0 <= token < self._vocab_size for token in tokens):
            raise InputError("token-invalid", "a token is not in the vocabulary")
        cache = self._new_cache()
        scores = np.empty((len(tokens), self._vocab_size), dtype=np.float32)
        for done in range(0, len(tokens), self._step_tokens):
            chunk = list(tokens[done : done + self._step_tokens])
            scores[done : done + len(chunk)] = self._forward(chunk, cache, keep=0)
        return scores

    def memory(self) -> MemoryReport:
        """Return what the process and the model hold."""
        weights = sum(parameter.nbytes for parameter in self._model.parameters())
        per_token = sum(
            heads * (self._shape.head_dim_k + self._shape.head_dim_v)
            for heads in self._shape.n_kv_heads
        )
        return MemoryReport(
            resident_bytes=resident_bytes(),
            peak_resident_bytes=peak_resident_bytes(),
            weights_bytes=Measured(value=weights, source="bytes of the model's parameters"),
            kv_cache_bytes=Measured(
                value=per_token * self._position * _F32_BYTES,
                source="keys and values of the positions held; the cache grows as it fills",
            ),
            workspace_bytes=Unknown(reason="torch does not tell what its CPU allocator holds"),
        )

    def partition(self) -> PartitionReport:
        """Run one decode step beside the cache and return which operators ran where."""
        torch = self._torch
        seen: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)

        class Observer(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]  # noqa: SLF001 - torch's documented place of it
            def __torch_dispatch__(
                self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                result = operator(*args, **(kwargs or {}))
                first = result[0] if isinstance(result, tuple | list) and result else result
                device = first.device.type.upper() if isinstance(first, torch.Tensor) else "CPU"
                seen[str(operator.overloadpacket)][f"torch {device}"] += 1
                return result

        with Observer():
            self._forward([0], self._new_cache(), keep=1)
        operators = {name: dict(places) for name, places in sorted(seen.items())}
        return PartitionReport(
            requested=_PLACE,
            operators=operators,
            fallbacks=tuple(name for name, places in operators.items() if set(places) != {_PLACE}),
            features=(torch.backends.cpu.get_cpu_capability(),),
            precision={
                "weights": "float32",
                "kv_cache": "float32",
                "matmul": torch.get_float32_matmul_precision(),
                "attention": self._model.config._attn_implementation,  # noqa: SLF001 - nowhere else
            },
            source="dispatcher of torch during one decode step",
        )

    def close(self) -> None:
        """Free the model. The engine is unusable afterwards."""
        self._model = None
        self._cache = None

    def _load_model(self, artifact: Path) -> Any:
        try:
            model = self._transformers.AutoModelForCausalLM.from_pretrained(
                str(artifact),
                dtype=self._torch.float32,
                attn_implementation=self._attention,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
        except (MemoryError, self._torch.OutOfMemoryError) as error:
            raise _no_memory(error) from error
        except Exception as error:  # transformers raises many kinds
            raise AdapterError(
                "model-load-failed",
                f"transformers refuses the folder: {error}",
                context={"path": str(artifact)},
            ) from error
        return model.eval()

    def _check_tensors(self, checkpoint: HfCheckpoint) -> None:
        """See that every tensor arrived: transformers fills a missing one with random numbers."""
        there = {name: tuple(value.shape) for name, value in self._model.state_dict().items()}
        for name, tensor in checkpoint.tensors.items():
            if name in there and there[name] != tensor.info.shape:
                raise _mismatch(name)
        missing = set(there) - set(checkpoint.tensors)
        missing -= {"lm_head.weight"} if checkpoint.tied else set()
        if missing:
            raise _mismatch(min(missing))

    def _new_cache(self) -> Any:
        return self._transformers.DynamicCache()

    def _evaluate(self, tokens: list[int]) -> Logits:
        logits: Logits = self._forward(tokens, self._cache, keep=1)[-1]
        return logits

    def _forward(self, tokens: list[int], cache: Any, *, keep: int) -> Logits:
        """Return the logits of the last ``keep`` tokens, of all for 0, ``(keep, vocab_size)``."""
        torch = self._torch
        try:
            with torch.inference_mode():
                result = self._model(
                    input_ids=torch.tensor([tokens]),
                    cache=cache,
                    use_cache=True,
                    logits_to_keep=keep,
                )
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise _no_memory(error) from error
        except (RuntimeError, ValueError, IndexError) as error:
            raise AdapterError("decode-failed", f"the forward pass failed: {error}") from error
        logits: Logits = result.logits[0].numpy()
        return logits

    def _truncate(self, position: int) -> None:
        if position == 0:
            self._cache = self._new_cache()
            return
        for layer in self._cache.layers:
            if layer.is_initialized:
                layer.keys = layer.keys[..., :position, :]
                layer.values = layer.values[..., :position, :]

    def _identity(self) -> tuple[object, ...]:
        return (native.installed_version(), repr(self._shape), self._attention)

    def _save(self) -> bytes:
        parts = [
            part[..., : self._position, :].contiguous().numpy().tobytes()
            for layer in self._cache.layers
            if self._position
            for part in (layer.keys, layer.values)
        ]
        return b"".join(parts)

    def _load(self, body: memoryview, position: int) -> None:
        torch = self._torch
        layout = [
            (1, heads, position, width)
            for heads in self._shape.n_kv_heads
            for width in (self._shape.head_dim_k, self._shape.head_dim_v)
        ]
        if len(body) != sum(map(math.prod, layout)) * _F32_BYTES:
            raise IntegrityError("state-damaged", "the saved state has another size than its cache")
        if position == 0:
            return
        parts, at = [], 0
        for shape in layout:
            size = math.prod(shape) * _F32_BYTES
            piece = bytearray(body[at : at + size])
            parts.append(torch.frombuffer(piece, dtype=torch.float32).reshape(shape))
            at += size
        for index in range(self._shape.n_layers):
            self._cache.update(parts[2 * index], parts[2 * index + 1], index)


def _no_memory(error: BaseException) -> ResourceError:
    return ResourceError(
        "out-of-memory",
        f"torch could not get the memory it needs: {error}",
        hint="the reference needs four bytes for each weight; close other programs",
    )


def _mismatch(name: str) -> AdapterError:
    return AdapterError(
        "model-load-failed",
        f"transformers builds another model than the folder holds, such as {name}",
        context={"tensor": name},
    )
