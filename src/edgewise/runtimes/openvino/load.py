"""From an artifact to a graph, its tokenizer, and what identifies it.

Three kinds of artifact: a folder with an IR, a single GGUF file (read by OpenVINO GenAI), and a
folder with a GGUF file and a note that OpenVINO's GGUF frontend is to read it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.errors import AdapterError, EdgewiseError, InputError, ResourceError
from edgewise.models.gguf import read_gguf
from edgewise.runtimes.openvino import native
from edgewise.runtimes.openvino.formats import FRONTEND
from edgewise.store.home import storage_error

if TYPE_CHECKING:
    from edgewise.runtimes.stepped import TextCodec

__all__ = ["GGUF_NAME", "IR_NAME", "READER_NAME", "Loaded", "load_artifact", "native_error"]

IR_NAME = "openvino_model.xml"
GGUF_NAME = "model.gguf"
READER_NAME = "reader.json"
_SAVE = {"enable_save_ov_model": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An artifact ready to compile.

    Attributes:
        read: Returns the graph, a fresh one on each call.
        codec: The tokenizer.
        weights_bytes: Bytes of the constants' file.
        identity: What tells this artifact from others.
        close: Removes what loading put on disk.
    """

    read: Callable[[], Any]
    codec: TextCodec
    weights_bytes: int
    identity: tuple[object, ...]
    close: Callable[[], None]


def load_artifact(artifact: Path, run_config: RunConfig) -> Loaded:
    """Return the graph, tokenizer and identity of an artifact.

    Raises:
        InputError: there is none, or it is of no kind this runtime reads.
        UnsupportedError: a library is missing.
        IntegrityError: the GGUF file or the tokenizer is damaged.
        AdapterError: OpenVINO cannot read it.
        ResourceError: the disk has no room for the converted GGUF.
    """
    if (artifact / IR_NAME).is_file():
        return _ir(artifact, run_config)
    ggufs = [artifact] if artifact.is_file() else sorted(artifact.glob("*.gguf"))
    if len(ggufs) != 1:
        raise InputError(
            "artifact-invalid",
            f"{artifact} holds neither {IR_NAME} nor one GGUF file",
            hint="build it again with --for openvino",
        )
    note = artifact / READER_NAME
    if note.is_file() and json.loads(note.read_text()).get("reader") == FRONTEND:
        return _frontend(ggufs[0])
    return _genai(ggufs[0], run_config)


def native_error(code: str, what: str, error: Exception) -> EdgewiseError:
    """Return OpenVINO's exception as ours; its long message is cut to what says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = [line for line in lines if not line.startswith("Exception from")] or lines
    if isinstance(error, MemoryError) or any("bad_alloc" in line for line in lines):
        return ResourceError(
            "memory-exhausted",
            f"memory ran out while {what}",
            context={"native": why[-3:]},
            hint="free memory, or choose smaller weights or a shorter context",
        )
    return AdapterError(
        code,
        f"OpenVINO failed while {what}: {why[0] if why else 'no reason given'}",
        context={"native": why[:6]},
        hint="the native message says why; another version of the runtime may help",
    )


def _ir(folder: Path, run_config: RunConfig) -> Loaded:
    from edgewise.runtimes.hf_tokenizer import HfTokenizer  # noqa: PLC0415 - native library

    path = folder / IR_NAME
    return Loaded(
        read=lambda: _read(path, run_config),
        codec=HfTokenizer(folder),
        weights_bytes=path.with_suffix(".bin").stat().st_size,
        identity=_identity(path, path.with_suffix(".bin")),
        close=lambda: None,
    )


def _read(path: Path, run_config: RunConfig) -> Any:
    core = native.load().Core()
    core.set_property({"ENABLE_MMAP": run_config.load_mode is LoadMode.MMAP})
    try:
        return core.read_model(str(path))
    except RuntimeError as error:
        raise native_error("model-load-failed", f"reading {path.name}", error) from error


def _genai(gguf: Path, run_config: RunConfig) -> Loaded:
    """Let GenAI convert the file as its pipeline does, and take the graph it made.

    The pipeline itself gives no logits; the graph it saves is the one it runs.
    """
    from edgewise.runtimes.openvino.gguf_codec import GgufCodec  # noqa: PLC0415 - native library

    header = read_gguf(gguf)
    genai = native.load_genai()
    folder = Path(tempfile.mkdtemp(prefix="edgewise-openvino-"))
    try:
        _place(gguf, folder / GGUF_NAME)
        pipeline = genai.LLMPipeline(str(folder / GGUF_NAME), native.DEVICE, **_SAVE)
        del pipeline
        codec = GgufCodec(header, genai.Tokenizer(str(folder)))
        weights_bytes = (folder / IR_NAME).with_suffix(".bin").stat().st_size
        model = _read(folder / IR_NAME, run_config)
    except (RuntimeError, MemoryError) as error:
        raise native_error("model-load-failed", f"reading {gguf.name}", error) from error
    finally:
        # A mapped file stays readable without its name; where that is refused, close does it.
        shutil.rmtree(folder, ignore_errors=True)
    return Loaded(
        read=model.clone,
        codec=codec,
        weights_bytes=weights_bytes,
        identity=("genai", *_identity(gguf)),
        close=lambda: shutil.rmtree(folder, ignore_errors=True),
    )


def _place(source: Path, target: Path) -> None:
    """Put the file where GenAI may write beside it, without a copy where possible."""
    try:
        target.symlink_to(source.resolve())
    except OSError:
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise storage_error(error, target, "preparing the GGUF file") from error


def _frontend(gguf: Path) -> Loaded:
    from edgewise.runtimes.openvino.frontend import read_with_frontend  # noqa: PLC0415
    from edgewise.runtimes.openvino.gguf_codec import GgufCodec  # noqa: PLC0415

    header = read_gguf(gguf)
    try:
        tokenizer = native.load_genai().Tokenizer(str(gguf))
    except RuntimeError as error:
        raise native_error("model-load-failed", f"reading {gguf.name}", error) from error
    return Loaded(
        read=lambda: read_with_frontend(gguf),
        codec=GgufCodec(header, tokenizer),
        weights_bytes=sum(tensor.size_bytes for tensor in header.tensors),
        identity=("frontend", *_identity(gguf)),
        close=lambda: None,
    )


def _identity(*paths: Path) -> tuple[object, ...]:
    first = hashlib.sha256()
    with paths[0].open("rb") as stream:  # an IR's graph, or a GGUF's header
        first.update(stream.read(4 << 20))
    sizes = tuple(path.stat().st_size for path in paths)
    times = tuple(path.stat().st_mtime_ns for path in paths)
    return (first.hexdigest(), sizes, times)
