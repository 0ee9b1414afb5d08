"""GGUF to the Hugging Face form and back, without torch and transformers.

Invariants: the same input gives the same bytes; at no time is more than a piece of one tensor in
memory; a conversion that fails leaves nothing in its destination.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.models.architecture import model_shape
from edgewise.models.gguf import read_gguf
from edgewise.models.gguf_types import GgmlType, GgufFile, GgufValue, TensorInfo
from edgewise.models.hf_form.config_json import config_of_gguf, config_rope, rope_of_gguf
from edgewise.models.hf_form.dequantize import PLAIN_TYPES, dequantize, encode, library_version
from edgewise.models.hf_form.folder import HfCheckpoint, HfTensor, read_hf
from edgewise.models.hf_form.rope import llama3_factors, match_llama3_factors
from edgewise.models.hf_form.rules import (
    ROPE_FACTORS,
    HfRules,
    TensorPlace,
    rules_for_gguf,
    tensor_places,
)
from edgewise.models.hf_form.streams import gguf_rows, hf_rows, read_exactly
from edgewise.models.hf_form.tokenizer_to_hf import HfTokenizerFiles, tokenizer_files
from edgewise.models.hf_form.writers import PlannedTensor, write_gguf, write_safetensors
from edgewise.store.home import storage_error
from edgewise.store.regular import open_regular

if TYPE_CHECKING:
    from edgewise.models.architecture import ModelShape

__all__ = ["Conversion", "gguf_to_hf", "hf_to_gguf"]

_DTYPES: Final = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
_FILE_TYPES: Final = {"F32": 0, "F16": 1, "BF16": 32}
_TORCH_NAMES: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_TEMPLATE_KEY: Final = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What a conversion made.

    Attributes:
        path: The folder, or the file.
        architecture: ``general.architecture``.
        n_layers: Layers that were taken.
        dtype: ``f32``, ``f16`` or ``bf16`` of every matrix; vectors are ``f32`` always.
        source_types: Number of tensors per type in the source.
        dequantised: Whether a tensor of the source was quantised, so that a further
            quantisation is a second one.
        tools: ``library -> version`` of what took part.
        notes: What was dropped or is read otherwise elsewhere; empty when nothing.
    """

    path: Path
    architecture: str
    n_layers: int
    dtype: str
    source_types: dict[str, int]
    dequantised: bool
    tools: dict[str, str]
    notes: tuple[str, ...]


def gguf_to_hf(
    source: Path, destination: Path, *, dtype: str = "f32", layers: int | None = None
) -> Conversion:
    """Write the Hugging Face form of a GGUF file.

    Writes config.json, generation_config.json, model.safetensors, tokenizer.json,
    tokenizer_config.json, and tokenizer.model for SentencePiece vocabularies.

    Args:
        source: A GGUF file.
        destination: An existing, empty folder.
        dtype: ``f32``, or ``f16`` or ``bf16`` for the matrices.
        layers: Take only the first layers; all when ``None``.

    Raises:
        InputError: no such file or number format, or the folder is not empty.
        IntegrityError: the file is not sound.
        UnsupportedError: architecture, tokenizer, a tensor's type or a setting has no
            counterpart, or the ``gguf`` package that reads quantised tensors is missing.
        ResourceError: the disk is full or failed.
    """
    target = _dtype(dtype)
    file = read_gguf(source)
    shape = model_shape(file)
    rules = rules_for_gguf(shape.architecture)
    n_layers = _layers(layers, shape.n_layers)
    with open_regular(source) as stream, _whole_or_nothing(destination):
        theta = shape.rope_theta
        rope = rope_of_gguf(file, rules, theta, _llama3(stream, file, theta))
        config, notes = config_of_gguf(file, shape, rules, rope, n_layers=n_layers)
        tokenizer = tokenizer_files(file)
        planned = _planned_hf(stream, file, shape, rules, n_layers, target)
        config["torch_dtype"] = config["dtype"] = _TORCH_NAMES[target]
        _write_texts(destination, file, shape, config, tokenizer)
        texts = {"format": "pt"}
        texts |= {"name": shape.name} if shape.name else {}
        texts |= {"licence": shape.licence} if shape.licence else {}
        write_safetensors(destination / "model.safetensors", planned, texts)
    types = collections.Counter(tensor.type.name.lower() for tensor in file.tensors)
    quantised = any(tensor.type not in PLAIN_TYPES for tensor in file.tensors)
    return Conversion(
        path=destination,
        architecture=shape.architecture,
        n_layers=n_layers,
        dtype=dtype,
        source_types=dict(sorted(types.items())),
        dequantised=quantised,
        tools=_tools(quantised=quantised),
        notes=(*notes, *tokenizer.notes),
    )


def hf_to_gguf(source: Path, destination: Path, *, dtype: str = "f16") -> Conversion:
    """Write a GGUF file from a folder in the Hugging Face form.

    Args:
        source: The folder.
        destination: The file; must not exist.
        dtype: ``f32``, ``f16`` or ``bf16`` for the matrices; vectors are ``f32``.

    Raises:
        InputError: no such folder or number format, or the file exists.
        IntegrityError: the folder is not sound.
        UnsupportedError: something in it has no counterpart in GGUF.
        ResourceError: the disk is full or failed.
    """
    target = _dtype(dtype)
    checkpoint = read_hf(source)
    if os.path.lexists(destination):
        raise InputError(
            "destination-exists",
            f"{destination} exists already",
            context={"path": str(destination)},
            hint="name a file that does not exist",
        )
    metadata: dict[str, GgufValue] = {
        **checkpoint.view.metadata,
        "general.file_type": _FILE_TYPES[target],
        "general.quantization_version": 2,
    }
    planned = _planned_gguf(checkpoint, target)
    try:
        write_gguf(destination, metadata, planned)
    except BaseException as error:
        with contextlib.suppress(OSError):  # it may be this very path that is wrong
            destination.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise storage_error(error, destination, "converting the checkpoint") from error
        raise
    types = collections.Counter(one.info.dtype.lower() for one in checkpoint.tensors.values())
    return Conversion(
        path=destination,
        architecture=checkpoint.rules.gguf,
        n_layers=checkpoint.shape.n_layers,
        dtype=dtype,
        source_types=dict(sorted(types.items())),
        dequantised=False,
        tools=_tools(quantised=False),
        notes=checkpoint.notes,
    )


def _planned_hf(
    stream: IO[bytes],
    file: GgufFile,
    shape: ModelShape,
    rules: HfRules,
    n_layers: int,
    target: str,
) -> list[PlannedTensor]:
    tensors = {tensor.name: tensor for tensor in file.tensors}
    places = tensor_places(
        rules,
        n_layers=shape.n_layers,
        n_heads=shape.n_heads[0],
        n_kv_heads=shape.n_kv_heads[0],
        tied=shape.tied_embeddings,
    )
    known = {place.gguf for place in places} | {ROPE_FACTORS}
    extra = sorted(set(tensors) - known)
    if extra:
        raise UnsupportedError(
            "hf-tensor-unexpected",
            f"{len(extra)} tensors have no place in a {rules.model_type} checkpoint, such as "
            f"{extra[0]}",
            context={"path": file.path, "tensors": extra[:20]},
            hint="use the GGUF as it is",
        )
    planned = []
    for place in places:
        tensor = tensors.get(place.gguf)
        if tensor is None:
            raise IntegrityError(
                "gguf-missing-tensor",
                f"{file.path} has no tensor {place.gguf}",
                context={"path": file.path, "field": place.gguf},
                hint="the file is damaged or was converted wrongly: fetch or convert it again",
            )
        if _taken(place, n_layers):
            planned.append(_plan_hf(stream, tensor, place, target))
    return planned


def _taken(place: TensorPlace, n_layers: int) -> bool:
    head, _, rest = place.gguf.partition(".")
    return head != "blk" or int(rest.partition(".")[0]) < n_layers


def _plan_hf(
    stream: IO[bytes], tensor: TensorInfo, place: TensorPlace, target: str
) -> PlannedTensor:
    shape = tuple(reversed(tensor.shape))
    dtype = target if len(shape) > 1 else "F32"

    def pieces() -> Iterator[bytes]:
        for rows in gguf_rows(stream, tensor, heads=place.heads, offset=place.offset):
            yield encode(rows, dtype, tensor=tensor.name)

    return PlannedTensor(name=place.hf, shape=shape, dtype=dtype, pieces=pieces)


def _planned_gguf(checkpoint: HfCheckpoint, target: str) -> list[PlannedTensor]:
    planned = [
        _plan_gguf(checkpoint.tensors[place.hf], place, target) for place in checkpoint.places()
    ]
    rope = config_rope(checkpoint.config, checkpoint.rules)
    if rope.llama3 is not None:
        head_dim = checkpoint.shape.head_dim_k
        factors = llama3_factors(rope.llama3, theta=rope.theta, head_dim=head_dim)
        planned.append(
            PlannedTensor(
                name=ROPE_FACTORS,
                shape=(head_dim // 2,),
                dtype="F32",
                pieces=partial(_once, factors.tobytes()),
            )
        )
    return planned


def _plan_gguf(found: HfTensor, place: TensorPlace, target: str) -> PlannedTensor:
    info = found.info
    dtype = target if len(info.shape) > 1 else "F32"

    def pieces() -> Iterator[bytes]:
        with open_regular(found.shard) as stream:
            for rows in hf_rows(stream, info, heads=place.heads, offset=place.offset):
                yield encode(rows, dtype, tensor=info.name)

    return PlannedTensor(
        name=place.gguf, shape=tuple(reversed(info.shape)), dtype=dtype, pieces=pieces
    )


def _once(raw: bytes) -> list[bytes]:
    return [raw]


def _llama3(stream: IO[bytes], file: GgufFile, theta: float) -> dict[str, float] | None:
    for tensor in file.tensors:
        if tensor.name == ROPE_FACTORS:
            if tensor.type is not GgmlType.F32 or len(tensor.shape) != 1:
                break
            stream.seek(tensor.offset_bytes)
            raw = read_exactly(stream, tensor.size_bytes, tensor.name)
            return match_llama3_factors(
                dequantize(raw, tensor.type, tensor=tensor.name), theta=theta
            )
    return None


def _write_texts(
    folder: Path,
    file: GgufFile,
    shape: ModelShape,
    config: dict[str, Any],
    tokenizer: HfTokenizerFiles,
) -> None:
    identity = tokenizer.identity
    named = {
        "bos_token_id": identity.bos_id,
        "eos_token_id": identity.eos_id,
        "pad_token_id": identity.pad_id,
    }
    named = {key: value for key, value in named.items() if value is not None}
    generation: dict[str, Any] = dict(named)
    if identity.end_token_ids:
        generation["eos_token_id"] = list(identity.end_token_ids)
    settings = {**tokenizer.settings, "model_max_length": shape.context_length_trained}
    template = file.metadata.get(_TEMPLATE_KEY)
    if isinstance(template, str) and template:
        settings["chat_template"] = template
    _write_json(folder / "config.json", {**config, **named})
    _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "tokenizer_config.json", settings)
    _write_json(folder / "tokenizer.json", tokenizer.tokenizer, readable=False)
    if tokenizer.pieces is not None:
        (folder / "tokenizer.model").write_bytes(tokenizer.pieces)


def _write_json(path: Path, value: dict[str, Any], *, readable: bool = True) -> None:
    """Write JSON; keys are sorted where people look, in the given order where order counts."""
    text = json.dumps(
        value,
        ensure_ascii=False,
        allow_nan=False,
        sort_keys=readable,
        indent=2 if readable else None,
        separators=None if readable else (",", ":"),
    )
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


@contextmanager
def _whole_or_nothing(folder: Path) -> Iterator[None]:
    try:
        if any(folder.iterdir()):
            raise InputError(
                "destination-not-empty",
                f"{folder} is not empty",
                context={"path": str(folder)},
                hint="name an empty folder",
            )
    except OSError as error:
        raise storage_error(error, folder, "converting the checkpoint") from error
    try:
        yield
    except OSError as error:
        _clear(folder)
        raise storage_error(error, folder, "converting the checkpoint") from error
    except BaseException:
        _clear(folder)
        raise


def _clear(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _dtype(name: str) -> str:
    try:
        return _DTYPES[name]
    except KeyError as error:
        raise InputError(
            "dtype-unknown",
            f"there is no number format {name!r} for a float checkpoint",
            hint=f"choose one of: {', '.join(_DTYPES)}",
        ) from error


def _layers(asked: int | None, there: int) -> int:
    if asked is None:
        return there
    if not 1 <= asked <= there:
        raise InputError(
            "layers-out-of-range",
            f"{asked} layers were asked for, and there are {there}",
            context={"asked": asked, "layers": there},
        )
    return asked


def _tools(*, quantised: bool) -> dict[str, str]:
    import numpy as np  # noqa: PLC0415 - already loaded by then

    from edgewise._version import __version__  # noqa: PLC0415

    tools = {"edgewise": __version__, "numpy": np.__version__}
    version = library_version()
    if quantised and version is not None:
        tools["gguf"] = version
    return tools
