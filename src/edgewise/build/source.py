"""The checkpoint in the form that an exporter takes, converted once and kept.

Exporters take a GGUF file or an HF folder. When the checkpoint has the other form it is converted
by the shared step of :mod:`edgewise.models.hf_form`, in a worker, and the result is stored by
content under the digest of what it was made from.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from edgewise.build.limits import explain
from edgewise.build.service import CONVERT_SERVICE, Converted, ConvertParams
from edgewise.core.canonical import canonical_json, digest_of
from edgewise.errors import EdgewiseError, IntegrityError
from edgewise.models.gguf import read_gguf
from edgewise.runtimes.launch import start_worker
from edgewise.store import Home, trees

__all__ = ["Source", "is_quantised", "prepare_source"]

_CONVERT_TIMEOUT_S = 3600.0
_FLOAT_TYPES = {"F32", "F16", "BF16", "F64"}
# Raised whenever the conversion writes other bytes for the same source.
_CONVERTER_REVISION = 1


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an exporter is given.

    Attributes:
        path: The file or folder.
        sha256: Its digest.
        converted_from: Digest of the checkpoint when it is not the checkpoint itself.
        quantised: Whether the checkpoint's weights were quantised before.
        notes: What the conversion dropped or corrected.
    """

    path: str
    sha256: str
    converted_from: str | None
    quantised: bool
    notes: tuple[str, ...] = ()


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sha256: str
    notes: tuple[str, ...]


def prepare_source(
    home: Home,
    sha256: str,
    form: str,
    *,
    runtime: str,
    memory_limit_bytes: int | None = None,
    report: Callable[[str], None] = lambda _message: None,
) -> Source:
    """Return the checkpoint ``sha256`` in a form, converted if need be.

    Args:
        home: Where the checkpoint lies and the converted form goes.
        sha256: Digest of the checkpoint.
        form: ``gguf`` or ``hf``.
        runtime: Runtime in whose environment the conversion runs.
        memory_limit_bytes: Most anonymous memory the conversion may allocate.
        report: Called with what is going on, in words.

    Raises:
        IntegrityError: the checkpoint is damaged, or its tokenizer does not fit its weights.
        UnsupportedError: its architecture has no conversion.
        ResourceError: memory or disk ran out.
    """
    path = trees.verified_path(home, sha256)
    quantised = is_quantised(path)
    if (form == "hf") == path.is_dir():
        return Source(path=str(path), sha256=sha256, converted_from=None, quantised=quantised)
    key = digest_of({"source": sha256, "form": form, "revision": _CONVERTER_REVISION})
    with home.lock(f"convert-{key[:16]}", on_wait=lambda: report("waiting for a conversion")):
        known = _known(home, key)
        if known is None:
            report(f"converting the checkpoint to {form} (once)")
            known = _convert(home, path, form, runtime, memory_limit_bytes)
            home.write(_record_path(home, key), canonical_json(known))
    return Source(
        path=str(trees.path_of(home, known.sha256)),
        sha256=known.sha256,
        converted_from=sha256,
        quantised=quantised,
        notes=known.notes,
    )


def is_quantised(path: Path) -> bool:
    """Return whether a checkpoint's matrices hold quantised numbers."""
    if path.is_dir():
        return False
    return any(tensor.type.name not in _FLOAT_TYPES for tensor in read_gguf(path).tensors)


def _known(home: Home, key: str) -> _Record | None:
    try:
        record = msgspec.json.decode(_record_path(home, key).read_bytes(), type=_Record)
        trees.verified_path(home, record.sha256)
    except (OSError, msgspec.MsgspecError, IntegrityError):
        return None
    return record


def _convert(
    home: Home, path: Path, form: str, runtime: str, memory_limit_bytes: int | None
) -> _Record:
    with home.work_folder() as work:
        target = work / "converted"
        target.mkdir()
        worker = start_worker(runtime, CONVERT_SERVICE, memory_limit_bytes=memory_limit_bytes)
        try:
            done = worker.call(
                "convert",
                ConvertParams(source=str(path), destination=str(target), form=form),
                Converted,
                timeout_s=_CONVERT_TIMEOUT_S,
            )
        except EdgewiseError as error:
            raise explain(error, memory_limit_bytes) from error
        finally:
            worker.close()
        entries = trees.index(target)
        trees.adopt(home, target, entries)
    return _Record(sha256=trees.tree_digest(entries), notes=done.notes)


def _record_path(home: Home, key: str) -> Path:
    return home.root / "derived" / f"{key}.json"
