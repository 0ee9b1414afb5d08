"""What an export leaves beside its program for those who run it: limits, and the delegated part.

The program lists its calls, but what a delegate took is opaque in it. The operators inside were
known when the graph was divided, so their counts are kept here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from edgewise.errors import IntegrityError
from edgewise.runtimes.executorch.formats import TARGETS
from edgewise.runtimes.executorch.pte import PteFile
from edgewise.runtimes.reports import PartitionReport

if TYPE_CHECKING:
    from edgewise.runtimes.hf_tokenizer import HfTokenizer

__all__ = [
    "PROGRAM",
    "RECORD",
    "ExportRecord",
    "partition_of",
    "read_record",
    "require_vocabulary",
    "write_record",
]

PROGRAM: Final = "model.pte"
RECORD: Final = "export.json"
# Where operators run that no backend took.
KERNELS: Final = "executorch-cpu"
_PRODUCTS: Final = ("linear", "addmm", "aten_mm_", "bmm")


class ExportRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of an export.

    Attributes:
        format: The resolved format's name.
        backend: Which backend it was lowered for, e.g. ``xnnpack``.
        method: How weights were quantised, e.g. ``hqq``; empty for floats.
        context_length: Tokens the KV cache holds.
        step_tokens: Most tokens one run takes.
        kv_bytes_per_token: Bytes of a KV cache of f32, per token.
        delegated: ``operator -> count`` inside the backend's parts.
    """

    schema_version: int = 1
    format: str
    backend: str
    method: str
    context_length: int
    step_tokens: int
    kv_bytes_per_token: int
    delegated: dict[str, int]


def write_record(folder: Path, record: ExportRecord) -> None:
    """Write the record into an artifact's folder."""
    data = msgspec.json.format(msgspec.json.encode(record, order="deterministic"))
    (folder / RECORD).write_bytes(data + b"\n")


def read_record(folder: Path) -> ExportRecord | None:
    """Return the record, or ``None`` for a program that Edgewise did not export.

    Raises:
        IntegrityError: there is one and it cannot be read.
    """
    path = folder / RECORD
    try:
        return msgspec.json.decode(path.read_bytes(), type=ExportRecord)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, OSError) as error:
        raise IntegrityError(
            "export-record-damaged", f"{path.name} cannot be read: {error}", hint="build it again"
        ) from error


def require_vocabulary(tokenizer: HfTokenizer, vocab_size: int) -> None:
    """Refuse a tokenizer that gives ids for which the model has no row.

    Raises:
        IntegrityError: it does.
    """
    if tokenizer.vocab_size > vocab_size:
        raise IntegrityError(
            "tokenizer-mismatch",
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model {vocab_size}",
            context={"tokenizer": tokenizer.vocab_size, "model": vocab_size},
            hint="put the model's own tokenizer.json beside it",
        )


def partition_of(program: PteFile, record: ExportRecord | None) -> PartitionReport:
    """Return which operators run where, by the program's own instructions.

    What a backend took is counted by operator where the record says so, else as calls into it.
    """
    target = TARGETS.get(record.backend) if record is not None else None
    backends = sorted(program.delegate_calls)
    requested = target.delegate if target else (backends[0] if backends else "")
    operators: dict[str, dict[str, int]] = {}
    products = 0
    if record is not None and record.delegated and requested in program.delegate_calls:
        for name, count in record.delegated.items():
            operators.setdefault(name, {})[requested] = count
            products += count if any(word in name for word in _PRODUCTS) else 0
    else:
        for backend, count in program.delegate_calls.items():
            operators.setdefault("delegate-call", {})[backend] = count
    for name, count in program.kernel_calls.items():
        operators.setdefault(name, {})[KERNELS] = count
    return PartitionReport(
        requested=requested or KERNELS,
        operators=dict(sorted(operators.items())),
        weights={requested: products} if products else {},
        fallbacks=tuple(sorted(program.kernel_calls)) if requested else (),
        precision={"kv_cache": "f32"},
        source="the program's instructions; inside a backend, the graph as it was divided",
    )
