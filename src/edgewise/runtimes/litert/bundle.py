"""Writing a ``.litertlm`` bundle: the model, its tokenizer, template and end tokens in one file.

The builder stamps every bundle with a random identifier and the time. Here both follow from the
content, so that the same inputs give the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewise.errors import AdapterError
from edgewise.store.home import storage_error

__all__ = ["BundleText", "write_bundle"]

_NAMESPACE = uuid.UUID("6b0a4bd8-8f0c-5a5b-9d0e-3a6d0f6a9c11")
_PROTO = "litert_lm_builder.runtime.proto"
_EPOCH = "1970-01-01T00:00:00+00:00"
# The axis of the KV cache that counts tokens, in the layout that the export chooses.
_KEY_AXIS, _VALUE_AXIS = 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleText:
    """The text half of a bundle.

    Attributes:
        template: Jinja source that takes content as parts.
        start_token_id: Token the engine puts in front of every prompt, if any.
        stop_token_ids: Every token that ends an answer.
        model_type: Field of the bundle's model type; it decides how messages are prepared.
    """

    template: str
    start_token_id: int | None
    stop_token_ids: tuple[int, ...]
    model_type: str = "generic_model"


def write_bundle(
    model: Path,
    tokenizer: Path,
    destination: Path,
    text: BundleText,
    *,
    context_length: int,
    n_layers: int,
) -> None:
    """Write a bundle for a prefill-and-decode model.

    Args:
        model: The ``.tflite`` file.
        tokenizer: The ``tokenizer.json`` file.
        destination: The file to write.
        text: Template and special tokens.
        context_length: Tokens the KV cache holds.
        n_layers: Layers that have a KV cache.

    Raises:
        AdapterError: the builder failed.
        ResourceError: the file cannot be written, or the disk is full.
    """
    builder_module = importlib.import_module("litert_lm_builder.litertlm_builder")

    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".bundle-") as folder:
        llm, executor = Path(folder) / "llm.pb", Path(folder) / "executor.pb"
        llm.write_bytes(_llm_metadata(text, context_length))
        executor.write_bytes(_executor_metadata(context_length, n_layers))
        builder = builder_module.LitertLmFileBuilder()
        builder.add_llm_metadata(str(llm))
        builder.add_executor_metadata(str(executor))
        builder.add_hf_tokenizer(str(tokenizer))
        builder.add_tflite_model(str(model), builder_module.TfLiteModelType.PREFILL_DECODE)
        identity = _identity(model, tokenizer, llm, executor)
        try:
            with _stamped(builder_module, identity), destination.open("wb") as stream:
                builder.build(stream)
        except OSError as error:
            destination.unlink(missing_ok=True)
            raise storage_error(error, destination, "writing the bundle") from error
        except (ValueError, AssertionError, RuntimeError) as error:
            destination.unlink(missing_ok=True)
            raise AdapterError("bundle-failed", f"the bundle cannot be written: {error}") from error


@contextlib.contextmanager
def _stamped(module: Any, identity: str) -> Iterator[None]:
    original = module.populate_system_metadata

    def stamp(entries: list[Any]) -> list[Any]:
        text = module.DType.STRING
        return [
            *entries,
            module.Metadata(key="Authors", value="edgewise", dtype=text),
            module.Metadata(key="uuid", value=identity, dtype=text),
            module.Metadata(key="creation_timestamp", value=_EPOCH, dtype=text),
        ]

    module.populate_system_metadata = stamp
    try:
        yield
    finally:
        module.populate_system_metadata = original


def _identity(*files: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return str(uuid.uuid5(_NAMESPACE, digest.hexdigest()))


def _llm_metadata(text: BundleText, context_length: int) -> bytes:
    metadata = importlib.import_module(f"{_PROTO}.llm_metadata_pb2").LlmMetadata()
    if text.start_token_id is not None:
        metadata.start_token.token_ids.ids.append(text.start_token_id)
    for token in text.stop_token_ids:
        metadata.stop_tokens.add().token_ids.ids.append(token)
    metadata.max_num_tokens = context_length
    getattr(metadata.llm_model_type, text.model_type).SetInParent()
    metadata.jinja_prompt_template = text.template
    data: bytes = metadata.SerializeToString(deterministic=True)
    return data


def _executor_metadata(context_length: int, n_layers: int) -> bytes:
    proto = importlib.import_module(f"{_PROTO}.executor_metadata_pb2")
    metadata = proto.ExecutorMetadata()
    llm = metadata.llm_executor_metadata
    buffers = proto.StateBuffer
    for layer in range(n_layers):
        for name, kind, axis in (
            (f"kv_cache_k_{layer}", buffers.TYPE_GLOBAL_KEY_CACHE, _KEY_AXIS),
            (f"kv_cache_v_{layer}", buffers.TYPE_GLOBAL_VALUE_CACHE, _VALUE_AXIS),
        ):
            buffer = llm.state_buffers.add()
            buffer.prefill_input_name = buffer.prefill_output_name = name
            buffer.decode_input_name = buffer.decode_output_name = name
            buffer.policy = buffers.POLICY_DEFAULT
            buffer.type = kind
            buffer.sequence_axis = axis
            buffer.maximum_sequence_length = context_length
    llm.max_history_size = context_length
    data: bytes = metadata.SerializeToString(deterministic=True)
    return data
