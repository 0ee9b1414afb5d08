"""The ExecuTorch engine: a program loaded once, run for some tokens at a position.

The KV cache lives in the program's own memory, is addressed by position and read up to it, so
rewinding means continuing from an earlier position. The program takes any number of tokens up to
its step, so a prompt is evaluated in steps. The cache cannot be read from outside: no saved state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgewise.core.quantity import Estimated, Measured, Quantity, Unknown
from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.device.process import peak_resident_bytes, resident_bytes
from edgewise.errors import AdapterError, IntegrityError, UnsupportedError
from edgewise.runtimes.executorch import native
from edgewise.runtimes.executorch.pte import METHOD, PteFile, read_pte
from edgewise.runtimes.executorch.record import (
    PROGRAM,
    ExportRecord,
    partition_of,
    read_record,
    require_vocabulary,
)
from edgewise.runtimes.hf_tokenizer import HfTokenizer
from edgewise.runtimes.reports import MemoryReport, PartitionReport
from edgewise.runtimes.stepped import SteppedEngine, refuse_hints

__all__ = ["ExecutorchEngine"]


class ExecutorchEngine(SteppedEngine):
    """One program with its KV cache."""

    runtime = "executorch"

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Load the program of an artifact's folder.

        Raises:
            UnsupportedError: the runtime is not installed, lacks a backend of the program, or the
                configuration asks for what the program does not have.
            IntegrityError: the program or the tokenizer is damaged.
            AdapterError: ExecuTorch refuses the program.
        """
        refuse_hints(self.runtime, run_config, ())
        folder = artifact if artifact.is_dir() else artifact.parent
        self._program = read_pte(folder / PROGRAM)
        self._record = read_record(folder)
        limit = _fact(self._program, "get_max_context_len")
        step = _fact(self._program, "get_max_seq_len") - 1
        dynamic = _fact(self._program, "enable_dynamic_shape")
        vocab_size = _fact(self._program, "get_vocab_size")
        _refuse_config(run_config, limit)
        codec = HfTokenizer(folder)
        require_vocabulary(codec, vocab_size)
        super().__init__(
            context_length=run_config.context_length,
            vocab_size=vocab_size,
            step_tokens=min(run_config.batch_tokens, step) if dynamic else 1,
            codec=codec,
        )
        bindings = native.load()
        _refuse_backends(self._program, bindings._get_registered_backend_names())  # noqa: SLF001
        bindings._unsafe_reset_threadpool(run_config.threads)  # noqa: SLF001 - nothing runs yet
        self._torch = _torch(run_config.threads)
        self._method: Any = _load(bindings, folder / PROGRAM)

    def _evaluate(self, tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        torch = self._torch
        inputs = (torch.tensor([tokens]), torch.tensor([self._position]))
        try:
            (logits,) = self._method(inputs)
        except RuntimeError as error:
            raise AdapterError(
                "decode-failed",
                f"ExecuTorch failed at position {self._position}: {error}",
                hint="the worker's native lines name the operator",
            ) from error
        values: np.ndarray[Any, np.dtype[np.float32]] = logits.numpy().reshape(-1)
        if values.size != self._vocab_size:
            raise AdapterError(
                "logits-missing", f"ExecuTorch gave {values.size} logits, not {self._vocab_size}"
            )
        return values

    def _truncate(self, position: int) -> None:
        """Do nothing: what lies beyond the position is overwritten before it is read."""

    def memory(self) -> MemoryReport:
        """Return what the process holds and what the program plans."""
        kv = self._kv_bytes()
        arena = self._program.arena_bytes
        rest: Quantity = Unknown(reason="the program does not say which part is the KV cache")
        if isinstance(kv, Estimated):
            rest = Estimated(value=arena - int(kv.number), source="planned memory less KV cache")
        return MemoryReport(
            resident_bytes=resident_bytes(),
            peak_resident_bytes=peak_resident_bytes(),
            weights_bytes=Measured(
                value=self._program.segments_bytes, source="segments of the .pte file"
            ),
            kv_cache_bytes=kv,
            workspace_bytes=rest,
        )

    def _kv_bytes(self) -> Quantity:
        record: ExportRecord | None = self._record
        if record is None:
            return Unknown(reason="the artifact has no export record")
        return Estimated(
            value=record.kv_bytes_per_token * record.context_length,
            source="layers x heads x context of f32, reserved by the program",
        )

    def partition(self) -> PartitionReport:
        """Return which operators run where, by the loaded program's instructions."""
        return partition_of(self._program, self._record)

    def close(self) -> None:
        """Free the program."""
        self._method = None


def _fact(program: PteFile, name: str) -> int:
    value = program.constants.get(name)
    if value is None:
        raise IntegrityError(
            "pte-without-metadata",
            f"the program does not say {name}",
            context={"present": sorted(program.constants)},
            hint="it was not exported as a language model with a KV cache: build it again",
        )
    return value


def _refuse_config(run_config: RunConfig, limit: int) -> None:
    if run_config.context_length > limit:
        raise UnsupportedError(
            "context-too-long",
            f"the artifact holds {limit} tokens, not {run_config.context_length}",
            context={"asked": run_config.context_length, "limit": limit},
            hint=f"run it with a context of at most {limit}, or build it with a longer one",
        )
    if run_config.kv_type is not KvType.F32:
        raise UnsupportedError(
            "kv-type-unsupported",
            f"executorch has no {run_config.kv_type} KV cache",
            hint="its programs keep the KV cache in f32",
        )
    if run_config.flash_attention:
        raise UnsupportedError(
            "flash-attention-unsupported",
            "an ExecuTorch program's attention was fixed when it was exported",
            hint="leave flash attention off",
        )
    if run_config.load_mode is not LoadMode.MMAP:
        raise UnsupportedError(
            "load-mode-unsupported",
            "ExecuTorch maps its programs",
            hint="use the load mode mmap",
        )


def _refuse_backends(program: PteFile, registered: list[str]) -> None:
    missing = sorted(set(program.delegate_calls) - set(registered))
    if missing:
        raise UnsupportedError(
            "backend-missing",
            f"the program needs {', '.join(missing)}, which this build of ExecuTorch lacks",
            context={"missing": missing, "registered": list(registered)},
            hint="run it on a device with that backend, or build it for xnnpack",
        )


def _torch(threads: int) -> Any:
    import torch  # noqa: PLC0415

    torch.set_num_threads(threads)
    return torch


def _load(bindings: Any, path: Path) -> Any:
    try:
        program = bindings._load_program(  # noqa: SLF001 - the module has no other way in
            str(path),
            enable_etdump=False,
            debug_buffer_size=0,
            program_verification=bindings.Verification.InternalConsistency,
            data_path=None,
        )
        return program.load_method(METHOD)
    except RuntimeError as error:
        raise AdapterError(
            "model-load-failed",
            f"ExecuTorch cannot load {path.name}: {error}",
            hint="the worker's native lines say why; build it again with the installed version",
        ) from error
