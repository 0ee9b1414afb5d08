"""Reading a checkpoint that is a Hugging Face folder, trusting nothing in it.

Invariants: only regular files of bounded size are read; JSON and safetensors only, a pickle is
never opened; shards lie in the folder itself and hold the tensors that the index says. The folder
is seen as the GGUF file it would become, so that shape, tokenizer and template are checked and
described by the same code for both forms.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.models.architecture import ModelShape, model_shape
from edgewise.models.gguf_types import GgmlType, GgufFile, GgufValue, TensorInfo
from edgewise.models.hf_form.config_json import (
    config_rope,
    count,
    invalid,
    layer_count,
    metadata_of_config,
)
from edgewise.models.hf_form.json_files import bad_json, read_bytes, read_json
from edgewise.models.hf_form.rules import ROPE_FACTORS, HfRules, TensorPlace, rules_for_hf
from edgewise.models.hf_form.rules import tensor_places as places_of
from edgewise.models.hf_form.tokenizer_to_gguf import tokenizer_metadata
from edgewise.models.safetensors import SafetensorInfo, read_safetensors
from edgewise.models.template import ChatTemplate, chat_template
from edgewise.models.tokenizer import TokenizerIdentity, tokenizer_identity

__all__ = ["HfCheckpoint", "HfTensor", "read_hf"]

_CONFIG_BYTES_MAX: Final = 4 << 20
_NO_TOKEN: Final = -1
_TOKENIZER_BYTES_MAX: Final = 256 << 20
_INDEX_BYTES_MAX: Final = 64 << 20
_SHARDS_MAX: Final = 1024
_FLOATS: Final = {"F32": GgmlType.F32, "F16": GgmlType.F16, "BF16": GgmlType.BF16}
_WEIGHTS: Final = "model.safetensors"
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True, kw_only=True)
class HfTensor:
    """Where a tensor lies: its shard and its place in it."""

    shard: Path
    info: SafetensorInfo


@dataclass(frozen=True, kw_only=True)
class HfCheckpoint:
    """A checkpoint in the Hugging Face form.

    Attributes:
        folder: Where it lies.
        config: config.json.
        generation: generation_config.json, empty when there is none.
        rules: The architecture.
        tensors: By name.
        view: The GGUF file that it would become: every tensor in its own type, offsets all zero.
        notes: What GGUF cannot carry of it.
        free_texts: The ``__metadata__`` of the first shard.
    """

    folder: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    rules: HfRules
    tensors: dict[str, HfTensor]
    view: GgufFile
    notes: tuple[str, ...]
    free_texts: dict[str, str]

    @cached_property
    def shape(self) -> ModelShape:
        """Return the shape; errors as :func:`~edgewise.models.architecture.model_shape`."""
        return model_shape(self.view)

    @cached_property
    def tokenizer(self) -> TokenizerIdentity:
        """Return the tokenizer's identity, the same as the GGUF's from which it came."""
        return tokenizer_identity(self.view)

    @cached_property
    def tied(self) -> bool:
        """Return whether the output matrix is the token embedding."""
        return is_tied(self.config, self.tensors)

    def template(self, *, allow_builtin: str | None = None) -> ChatTemplate:
        """Return the chat template; errors as :func:`~edgewise.models.template.chat_template`."""
        found = chat_template(self.view, allow_builtin=allow_builtin)
        if found.name.startswith("gguf:"):
            return ChatTemplate(source=found.source, name="hf:chat_template")
        return found

    def places(self) -> tuple[TensorPlace, ...]:
        """Return every tensor by both names, in the order in which GGUF gets them."""
        return config_places(self.config, self.rules, tied=self.tied)


def read_hf(folder: str | os.PathLike[str]) -> HfCheckpoint:
    """Return a checkpoint, its shape and tokenizer checked against its tensors.

    Args:
        folder: Holds config.json, tokenizer.json and safetensors files.

    Raises:
        InputError: it is no such folder (``model-not-found``, ``hf-file-missing``), or a file
            cannot be read (``model-unreadable``).
        IntegrityError: a file is malformed (``hf-...``, ``safetensors-...``), tensors are missing
            or of another shape (``gguf-...``), or the tokenizer is not this model's
            (``hf-tokenizer-mismatch``).
        UnsupportedError: the architecture, tokenizer, number format or packaging has no rules.
    """
    path = Path(folder)
    if not path.is_dir():
        raise InputError(
            "model-not-found",
            f"there is no folder {path}",
            context={"path": str(path)},
            hint="name the folder that holds config.json",
        )
    config = read_json(path, "config.json", _CONFIG_BYTES_MAX)
    if config is None:
        raise _missing(path, "config.json")
    rules = rules_for_hf(_model_type(config))
    tensors, free_texts = _tensors(path)
    generation = read_json(path, "generation_config.json", _CONFIG_BYTES_MAX) or {}
    view, notes = _view(path, config, generation, rules, tensors, free_texts)
    found = HfCheckpoint(
        folder=path,
        config=config,
        generation=generation,
        rules=rules,
        tensors=tensors,
        view=view,
        notes=tuple(notes),
        free_texts=free_texts,
    )
    _ = found.shape, found.tokenizer  # raise now what is wrong with them
    return found


def config_places(
    config: Mapping[str, Any], rules: HfRules, *, tied: bool
) -> tuple[TensorPlace, ...]:
    """Return every tensor that a configuration calls for."""
    heads = count(config, "num_attention_heads")
    return places_of(
        rules,
        n_layers=layer_count(config),
        n_heads=heads,
        n_kv_heads=count(config, "num_key_value_heads", heads),
        tied=tied,
    )


def is_tied(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """Return whether the output matrix is the token embedding."""
    stated = config.get("tie_word_embeddings")
    return "lm_head.weight" not in tensors if stated is None else bool(stated)


def _model_type(config: Mapping[str, Any]) -> str:
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise invalid("model_type", "it is missing")
    return kind


def _tensors(folder: Path) -> tuple[dict[str, HfTensor], dict[str, str]]:
    """Return every tensor of every shard, checked against the index where there is one."""
    index = read_json(folder, _WEIGHTS + ".index.json", _INDEX_BYTES_MAX)
    listed = None
    names = [_WEIGHTS]
    if index is not None and not (folder / _WEIGHTS).exists():
        listed = index.get("weight_map")
        names = _shard_names(folder, listed)
    elif not (folder / _WEIGHTS).exists():
        raise _no_weights(folder)
    tensors: dict[str, HfTensor] = {}
    texts: dict[str, str] = {}
    for name in names:
        file = read_safetensors(folder / name)
        texts = texts or file.metadata
        for info in file.tensors:
            if info.name in tensors or (listed is not None and listed.get(info.name) != name):
                raise _shards(folder, f"{info.name} in {name} is not where the index says")
            tensors[info.name] = HfTensor(shard=folder / name, info=info)
    if listed is not None and len(listed) != len(tensors):
        raise _shards(folder, "the index names tensors that no shard holds")
    return tensors, texts


def _shard_names(folder: Path, listed: Any) -> list[str]:
    if not isinstance(listed, dict) or not listed:
        raise _shards(folder, "it has no weight_map")
    for name in listed.values():
        plain = isinstance(name, str) and name == Path(name).name and name.endswith(".safetensors")
        if not plain:
            raise _shards(folder, f"{name!r} is not the name of a shard")
    names = set(listed.values())
    if len(names) > _SHARDS_MAX:
        raise _shards(folder, f"it names {len(names)} shards")
    return sorted(names)


def _view(
    folder: Path,
    config: dict[str, Any],
    generation: dict[str, Any],
    rules: HfRules,
    tensors: dict[str, HfTensor],
    free_texts: dict[str, str],
) -> tuple[GgufFile, list[str]]:
    metadata: dict[str, GgufValue] = {"general.architecture": rules.gguf}
    name = free_texts.get("name") or str(config.get("_name_or_path") or "").rpartition("/")[2]
    if name:
        metadata["general.name"] = name
    if free_texts.get("licence"):
        metadata["general.license"] = free_texts["licence"]
    metadata.update(metadata_of_config(config, rules))
    infos, notes = _tensor_infos(config, rules, tensors)
    rows = count(config, "vocab_size")
    tokens, more = _tokenizer(folder, config, generation, rows)
    metadata.update(tokens)
    view = GgufFile(
        path=str(folder),
        version=3,
        alignment=32,
        metadata=metadata,
        tensors=tuple(infos),
        data_offset_bytes=0,
        file_size_bytes=0,
    )
    return view, notes + more


def _tensor_infos(
    config: Mapping[str, Any], rules: HfRules, tensors: Mapping[str, HfTensor]
) -> tuple[list[TensorInfo], list[str]]:
    infos = []
    tied = is_tied(config, tensors)
    places = config_places(config, rules, tied=tied)
    for place in places:
        found = tensors.get(place.hf)
        if found is None:
            raise IntegrityError(
                "hf-tensor-missing",
                f"the checkpoint has no tensor {place.hf}",
                context={"field": place.hf},
                hint="the folder is incomplete: fetch the checkpoint again",
            )
        kind = _FLOATS.get(found.info.dtype)
        if kind is None:
            raise UnsupportedError(
                "hf-dtype-unsupported",
                f"{place.hf} is stored as {found.info.dtype}, which is not read",
                context={"field": place.hf, "dtype": found.info.dtype},
                hint="F32, F16 and BF16 checkpoints are",
            )
        shape = tuple(reversed(found.info.shape))
        infos.append(_info(place.gguf, shape, kind))
    llama3 = config_rope(config, rules).llama3
    if llama3 is not None:
        half = count(config, "head_dim", infos[0].shape[0] // count(config, "num_attention_heads"))
        infos.append(_info(ROPE_FACTORS, (half // 2,), GgmlType.F32))
    known = {place.hf for place in places}
    extra = sorted(set(tensors) - known - ({"lm_head.weight"} if tied else set()))
    extra = [name for name in extra if not name.endswith("rotary_emb.inv_freq")]
    if extra:
        raise UnsupportedError(
            "hf-tensor-unexpected",
            f"{len(extra)} tensors have no place in a {rules.gguf} model, such as {extra[0]}",
            context={"tensors": extra[:20]},
            hint="merge adapters into the weights first; other parts are not supported",
        )
    dropped = tied and "lm_head.weight" in tensors
    return infos, ["lm_head.weight is the embedding and was dropped"] if dropped else []


def _info(name: str, shape: tuple[int, ...], kind: GgmlType) -> TensorInfo:
    size = kind.type_size
    for dimension in shape:
        size *= dimension
    return TensorInfo(name=name, shape=shape, type=kind, offset_bytes=0, size_bytes=size)


def _tokenizer(
    folder: Path, config: dict[str, Any], generation: dict[str, Any], rows: int
) -> tuple[dict[str, GgufValue], list[str]]:
    tokenizer = read_json(folder, "tokenizer.json", _TOKENIZER_BYTES_MAX)
    if tokenizer is None:
        raise _missing(folder, "tokenizer.json")
    settings = read_json(folder, "tokenizer_config.json", _CONFIG_BYTES_MAX) or {}
    named = {}
    for name in ("bos", "eos", "pad", "unk"):
        value = settings.get(f"{name}_token")
        if value is None:
            value = config.get(f"{name}_token_id")
            value = value[0] if isinstance(value, list) and value else value
            value = None if value == _NO_TOKEN else value
        named[f"{name}_token"] = value
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        for stated in (config.get(name), generation.get(name)):
            _check_ids(name, stated, rows)
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    found, notes = tokenizer_metadata(
        tokenizer,
        {**settings, **named},
        {"eos_token_id": ends},
        rows=rows,
        pieces=read_bytes(folder, "tokenizer.model", _TOKENIZER_BYTES_MAX),
    )
    template = _template(folder, settings)
    if template is not None:
        found["tokenizer.chat_template"] = template
    return found, notes


def _check_ids(name: str, stated: Any, rows: int) -> None:
    """Refuse a token id that no row of the embedding stands for; -1 means that there is none."""
    for one in stated if isinstance(stated, list) else [stated]:
        if one is None or (one == _NO_TOKEN and name == "pad_token_id"):
            continue
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < rows:
            raise IntegrityError(
                "hf-tokenizer-mismatch",
                f"{name} is {one!r}, which is none of the model's {rows} tokens",
                context={"field": name, "found": one, "rows": rows},
                hint="tokenizer and weights are of different models: fetch the checkpoint again",
            )


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    raw = read_bytes(folder, "chat_template.jinja", _CONFIG_BYTES_MAX)
    if raw is not None:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise bad_json(folder, "chat_template.jinja", "it is not UTF-8") from error
    stated = settings.get("chat_template")
    if isinstance(stated, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in stated if isinstance(one, dict)}
        stated = named.get("default")
    return stated if isinstance(stated, str) else None


def _missing(folder: Path, name: str) -> InputError:
    return InputError(
        "hf-file-missing",
        f"{folder} has no {name}",
        context={"path": str(folder), "file": name},
        hint="name a folder with config.json, tokenizer.json and safetensors files",
    )


def _no_weights(folder: Path) -> InputError | UnsupportedError:
    if any(entry.suffix in _PICKLES for entry in folder.iterdir()):
        return UnsupportedError(
            "hf-pickle-weights",
            f"{folder} holds its weights as pickles, which can run code and are never opened",
            context={"path": str(folder)},
            hint="convert them to safetensors first",
        )
    return _missing(folder, _WEIGHTS)


def _shards(folder: Path, why: str) -> IntegrityError:
    return IntegrityError(
        "hf-index-invalid",
        f"{_WEIGHTS}.index.json in {folder} cannot be right: {why}",
        context={"path": str(folder), "reason": why},
        hint="the folder is damaged or incomplete: fetch the checkpoint again",
    )
