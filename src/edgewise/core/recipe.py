"""How a candidate is built and how it is run: the recipe and the run configuration."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from edgewise.core.formats import Activation, OfferedFormat, choose
from edgewise.errors import InputError

__all__ = ["KvType", "LoadMode", "Recipe", "RunConfig", "resolve"]

# Above what any runtime can address; keeps sizes computed from it exact.
_COUNT_MAX = 2**31


class KvType(StrEnum):
    """Element format of the KV cache. ``Q``: llama.cpp's blocks; ``U``: with zero points.

    ``FP8`` is for adapters to come: no runtime here has it on a CPU (docs/kv-cache.md).
    """

    F16 = "f16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    BF16 = "bf16"
    F32 = "f32"
    U8 = "u8"
    U4 = "u4"
    FP8 = "fp8"

    @classmethod
    def parse(cls, text: str) -> KvType:
        """Return the member a text names.

        Raises:
            InputError: there is no such format.
        """
        try:
            return cls(text)
        except ValueError as error:
            raise InputError(
                "kv-type-unknown",
                f"there is no KV cache format {text!r}",
                hint=f"choose one of: {', '.join(cls)}",
            ) from error


class LoadMode(StrEnum):
    """How weights get into memory.

    ``MMAP`` maps the file; ``MALLOC`` reads it into anonymous memory, which the kernel can back
    with huge pages.
    """

    MMAP = "mmap"
    MALLOC = "malloc"


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the weights become.

    A recipe states constraints (see :mod:`edgewise.core.formats`); what it leaves open is the
    runtime's choice, and the receipt names the exact formats that came out.

    Attributes:
        name: The name the user gives, e.g. ``as-shipped`` or ``int4``.
        weights: Format of the weights (``int4-g32-sym``), the runtime's own name of one
            (``q4_k_m``), or ``as-is`` for the source's.
        embedding: Format of the token embedding, or ``None`` for the runtime's default.
        output: Format of the output matrix, or ``None`` for the runtime's default.
        activation: How activations enter matrix products, or ``None`` for the runtime's default.
        method: Calibration method (``rtn``, ``imatrix``, ``awq``, ``gptq``, ``hqq``, ...), or
            ``None`` for the runtime's default.
        kv: KV cache format, for runtimes that fix it when they export.
        context_length: Longest context, for runtimes that fix it when they export.
        overrides: ``tensor-name-pattern -> format``, applied in order.
        calibration_revision: Digest of the calibration set, where one was used.
    """

    name: str
    weights: str = "as-is"
    embedding: str | None = None
    output: str | None = None
    activation: Activation | None = None
    method: str | None = None
    kv: KvType | None = None
    context_length: int | None = None
    overrides: tuple[tuple[str, str], ...] = ()
    calibration_revision: str | None = None


def resolve(recipe: Recipe, offered: Sequence[OfferedFormat], *, runtime: str) -> OfferedFormat:
    """Return the first offered format that meets every constraint of a recipe.

    Raises:
        InputError: a format of the recipe is malformed.
        UnsupportedError: no offer meets every constraint; names the nearest one.
    """
    return choose(
        offered,
        runtime=runtime,
        weights=recipe.weights,
        embedding=recipe.embedding,
        output=recipe.output,
        activation=recipe.activation,
        method=recipe.method,
    )


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an artifact is run. Every field is part of the fingerprint.

    Attributes:
        context_length: Tokens of KV cache that are reserved up front.
        kv_type: Element format of the KV cache.
        threads: Compute threads for decode and prefill.
        flash_attention: Whether the fused attention kernel is used.
        load_mode: How weights get into memory.
        huge_pages: Whether the worker asks its allocator for transparent huge pages.
        batch_tokens: Most tokens one prefill step takes (llama.cpp's ``n_batch`` and
            ``n_ubatch``); it bounds the workspace and how soon a prefill can be cancelled.
        parallel: Requests that are answered at once, each with a whole context of its own. 1 is
            left out of the fingerprint, so that those from before this field stay.
        hints: Settings in the runtime's own terms, e.g. a precision hint. An engine refuses one
            that it does not know.
    """

    context_length: int = 2048
    kv_type: KvType = KvType.F16
    threads: int = 1
    flash_attention: bool = False
    load_mode: LoadMode = LoadMode.MMAP
    huge_pages: bool = False
    batch_tokens: int = 128
    parallel: int = 1
    hints: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in ("context_length", "threads", "batch_tokens", "parallel"):
            if not 1 <= getattr(self, name) <= _COUNT_MAX:
                raise InputError(
                    "run-config-invalid",
                    f"{name} is {getattr(self, name)}; allowed is 1 to {_COUNT_MAX}",
                    context={"field": name},
                    hint=f"choose {name} within that range",
                )
        if self.kv_type in {KvType.Q8_0, KvType.Q4_0} and not self.flash_attention:
            raise InputError(
                "kv-type-needs-flash-attention",
                f"a {self.kv_type} value cache needs the fused attention kernel",
                hint="switch flash attention on, or use --kv f16",
            )
