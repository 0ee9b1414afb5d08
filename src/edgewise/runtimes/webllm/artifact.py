"""``edgewise.json``: what an artifact of these runtimes says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from edgewise.core.formats import OfferedFormat
from edgewise.errors import IntegrityError
from edgewise.runtimes.reports import PartitionReport
from edgewise.runtimes.webllm.config import LlamaConfig

__all__ = [
    "ABOUT",
    "CPU_LIBRARY",
    "TENSOR_CACHE",
    "TOKENIZER",
    "WEB_LIBRARY",
    "About",
    "read_about",
]

ABOUT: Final = "edgewise.json"
CPU_LIBRARY: Final = "model.so"
WEB_LIBRARY: Final = "model.wasm"
TENSOR_CACHE: Final = "tensor-cache.json"
TOKENIZER: Final = "tokenizer.json"


class About(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="tvm-artifact"
):
    """What was compiled, for what.

    Attributes:
        schema_version: 1.
        format: The exact format of the weights.
        config: Shape of the model.
        context_length: Most tokens the model was trained with, or the page reserves.
        tvm_version: The compiler, which the loading runtime must equal.
        target: ``webgpu``, or the processor the shared library was compiled for.
        machine: Processor family of the shared library; empty for ``webgpu``.
        partition: Where the library's functions run, for ``webgpu``, which shows no more later.
    """

    schema_version: int = 1
    format: OfferedFormat
    config: LlamaConfig
    context_length: int
    tvm_version: str
    target: str
    machine: str = ""
    partition: PartitionReport | None = None


def read_about(artifact: Path) -> About:
    """Return what the artifact says of itself.

    Raises:
        IntegrityError: the file is missing or damaged, or of another version.
    """
    try:
        about = msgspec.json.decode((artifact / ABOUT).read_bytes(), type=About)
    except (OSError, msgspec.MsgspecError) as error:
        raise IntegrityError(
            "artifact-damaged",
            f"{ABOUT} of the artifact cannot be read: {error}",
            hint="build the artifact again",
        ) from error
    if about.schema_version != 1:
        raise IntegrityError(
            "artifact-version-unknown",
            f"{ABOUT} has the version {about.schema_version}; this Edgewise knows 1",
        )
    return about
