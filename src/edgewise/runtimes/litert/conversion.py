"""From a checkpoint in HF form to a float ``.tflite`` with prefill and decode signatures.

This is the expensive half of an export (minutes and gigabytes), so what cannot work is refused
before torch is imported. Formats are made afterwards, from this one float file.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    InputError,
    IntegrityError,
    ResourceError,
    UnsupportedError,
)
from edgewise.store.home import storage_error

__all__ = ["PREFILL_TOKENS", "UNVERIFIED", "VERIFIED", "Checkpoint", "convert", "read_checkpoint"]

# Tokens of the prefill signature. A shorter prompt pays for all of them.
PREFILL_TOKENS = 128
# The cache is read whole in every step, so a longer one costs speed as well as memory.
_CONTEXT_DEFAULT = 2048

# Exported and run here; the others are known to the converter.
VERIFIED = ("llama",)
UNVERIFIED = ("gemma2", "gemma3_text", "mistral", "qwen2", "qwen3")
_KNOWN = (*VERIFIED, *UNVERIFIED)
_ROPE_REFUSED = ("dynamic", "longrope")
_STAND_IN = "tensorflow.lite.python.schema_py_generated"
_LOG_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What the conversion needs to know of a checkpoint.

    Attributes:
        folder: The HF form.
        model_type: ``model_type`` of its configuration.
        n_layers: Layers that have a KV cache.
        context_length_trained: Tokens.
        stop_token_ids: Every token that ends an answer.
    """

    folder: Path
    model_type: str
    n_layers: int
    context_length_trained: int
    stop_token_ids: tuple[int, ...]

    def context_length(self, wanted: int | None) -> int:
        """Return the length of the KV cache to export.

        Args:
            wanted: Tokens the recipe asks for, or ``None`` for the default.

        Raises:
            UnsupportedError: the model was not trained that far.
        """
        if wanted is None:
            return min(_CONTEXT_DEFAULT, self.context_length_trained)
        if wanted > self.context_length_trained:
            raise UnsupportedError(
                "context-beyond-training",
                f"a context of {wanted} tokens is asked for; the model was trained on "
                f"{self.context_length_trained}",
                context={"asked": wanted, "trained": self.context_length_trained},
                hint=f"ask for at most {self.context_length_trained}",
            )
        return wanted


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return what a checkpoint's configuration says.

    Raises:
        InputError: the folder is no HF checkpoint.
        IntegrityError: its configuration cannot be read.
        UnsupportedError: LiteRT's converter does not know the architecture, or not this use of it.
    """
    config = _json(folder, "config.json")
    for name in ("tokenizer.json", "config.json"):
        if not (folder / name).is_file():
            raise _not_a_checkpoint(folder, name)
    if not any(folder.glob("*.safetensors")):
        raise _not_a_checkpoint(folder, "*.safetensors")
    _require_supported(config)
    generation = _json(folder, "generation_config.json", optional=True)
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    return Checkpoint(
        folder=folder,
        model_type=str(config["model_type"]),
        n_layers=_count(config, "num_hidden_layers"),
        context_length_trained=_count(config, "max_position_embeddings"),
        stop_token_ids=tuple(sorted(set(ends if isinstance(ends, list) else [ends]) - {None})),
    )


def convert(checkpoint: Checkpoint, work: Path, *, context_length: int, threads: int) -> Path:
    """Write the float model below ``work`` and return its path.

    Args:
        checkpoint: The source.
        work: An empty folder.
        context_length: Tokens the KV cache holds.
        threads: Threads torch may use.

    Raises:
        UnsupportedError: the converter refuses the model.
        AdapterError: the converter failed.
        ResourceError: memory or disk ran out.
    """
    output = io.StringIO()
    # A look-up of a checkpoint that lies here must not wait for a network.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            export = _converter(threads)
            export.export(
                model=str(checkpoint.folder),
                output_dir=str(work),
                quantization_recipe="",
                prefill_lengths=[min(PREFILL_TOKENS, context_length)],
                cache_length=context_length,
                keep_temporary_files=True,
                bundle_litert_lm=False,
            )
    except EdgewiseError:
        raise
    except MemoryError as error:
        raise ResourceError(
            "export-out-of-memory",
            "the conversion ran out of memory",
            hint="it takes about seven times the float weights; use a machine with more memory",
        ) from error
    except OSError as error:
        raise storage_error(error, work, "converting the checkpoint") from error
    except NotImplementedError as error:
        raise UnsupportedError(
            "architecture-unsupported", f"LiteRT's converter refuses the model: {error}"
        ) from error
    except Exception as error:
        raise AdapterError(
            "export-failed",
            f"LiteRT's converter failed with {type(error).__name__}",
            context={"error": str(error)[:_LOG_CHARACTERS], "log": output.getvalue()[-2000:]},
            hint="the log says at which stage",
        ) from error
    return work / "model.tflite"


def _converter(threads: int) -> Any:
    """Return the export module, with torch imported and limited to ``threads``."""
    torch = importlib.import_module("torch")
    importlib.import_module("torch._dynamo")  # asks whether tensorflow is there: before we say so
    torch.set_num_threads(threads)
    with _schema_stand_in():
        return importlib.import_module("litert_torch.generative.export_hf.export")


@contextlib.contextmanager
def _schema_stand_in() -> Iterator[None]:
    """Offer the one module of tensorflow that the converter imports, for the time it does.

    It holds the file format's generated tables, which ai-edge-litert ships as well.
    """
    if importlib.util.find_spec("tensorflow") is not None:
        yield
        return
    schema = importlib.import_module("ai_edge_litert.schema_py_generated")
    parts = _STAND_IN.split(".")
    names = [".".join(parts[: end + 1]) for end in range(len(parts))]
    for name in names[:-1]:
        sys.modules[name] = types.ModuleType(name)
    sys.modules[_STAND_IN] = schema
    vars(sys.modules[names[-2]])[parts[-1]] = schema
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)


def _require_supported(config: dict[str, Any]) -> None:
    model_type = config.get("model_type")
    if model_type not in _KNOWN:
        raise UnsupportedError(
            "architecture-unsupported",
            f"LiteRT's exporter does not know the architecture {model_type!r}",
            context={"architecture": model_type, "known": list(_KNOWN)},
            hint=f"it knows: {', '.join(_KNOWN)}",
        )
    if config.get("quantization_config"):
        raise UnsupportedError(
            "checkpoint-quantised",
            "LiteRT's exporter takes float checkpoints, and this one is quantised",
            hint="give the float checkpoint",
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kinds = {str(rope.get("rope_type", rope.get("type", "default")))} if rope else set()
    if refused := kinds.intersection(_ROPE_REFUSED):
        raise UnsupportedError(
            "architecture-unsupported",
            f"LiteRT's exporter cannot express rope scaling of type {refused.pop()}",
        )


def _json(folder: Path, name: str, *, optional: bool = False) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        if optional:
            return {}
        raise _not_a_checkpoint(folder, name)
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise IntegrityError(
            "checkpoint-damaged", f"{name} is no JSON: {error}", context={"file": name}
        ) from error
    if not isinstance(value, dict):
        raise IntegrityError(
            "checkpoint-damaged", f"{name} is no JSON object", context={"file": name}
        )
    return value


def _count(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise IntegrityError(
            "checkpoint-damaged",
            f"config.json gives {value!r} as {name}",
            context={"file": "config.json", "field": name},
        )
    return value


def _not_a_checkpoint(folder: Path, missing: str) -> InputError:
    return InputError(
        "checkpoint-files-missing",
        f"{folder.name} is no checkpoint in HF form: {missing} is missing",
        context={"missing": missing},
        hint="a checkpoint needs config.json, tokenizer.json and *.safetensors",
    )
