"""Names, numbers and facts of llama.cpp's formats, as far as the adapter uses them.

Numbers are those of ``ggml_type`` and ``llama_ftype`` in llama.cpp's public headers
(llama-cpp-python 0.3.36, read 2026-11-30).
"""

from __future__ import annotations

from edgewise.core.recipe import KvType, LoadMode
from edgewise.models.gguf_types import GgmlType

__all__ = ["GGML_TYPES", "KV_TYPES", "LOAD_MODES", "WEIGHT_FORMATS"]

# Types a recipe may name for single tensors.
GGML_TYPES: dict[str, int] = {
    member.name.lower(): member.value
    for member in (
        GgmlType.F32,
        GgmlType.F16,
        GgmlType.BF16,
        GgmlType.Q4_0,
        GgmlType.Q4_1,
        GgmlType.Q5_0,
        GgmlType.Q5_1,
        GgmlType.Q8_0,
        GgmlType.Q2_K,
        GgmlType.Q3_K,
        GgmlType.Q4_K,
        GgmlType.Q5_K,
        GgmlType.Q6_K,
        GgmlType.IQ4_NL,
        GgmlType.IQ4_XS,
    )
}

# Recipe weight format -> (llama_ftype, the type it asks for in matrices).
WEIGHT_FORMATS: dict[str, tuple[int, str]] = {
    "f32": (0, "f32"),
    "f16": (1, "f16"),
    "bf16": (32, "bf16"),
    "q4_0": (2, "q4_0"),
    "q4_1": (3, "q4_1"),
    "q5_0": (8, "q5_0"),
    "q5_1": (9, "q5_1"),
    "q8_0": (7, "q8_0"),
    "q3_k_m": (12, "q3_k"),
    "q4_k_s": (14, "q4_k"),
    "q4_k_m": (15, "q4_k"),
    "q5_k_m": (17, "q5_k"),
    "q6_k": (18, "q6_k"),
    "iq4_nl": (25, "iq4_nl"),
    "iq4_xs": (30, "iq4_xs"),
}

KV_TYPES: dict[KvType, int] = {KvType.F16: 1, KvType.Q8_0: 8}

LOAD_MODES: dict[LoadMode, int] = {LoadMode.MALLOC: 0, LoadMode.MMAP: 1}
