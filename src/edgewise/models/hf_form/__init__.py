"""Checkpoints in the Hugging Face form: reading them, and converting from GGUF and back."""

from edgewise.models.hf_form.convert import Conversion, gguf_to_hf, hf_to_gguf
from edgewise.models.hf_form.finite import check_finite
from edgewise.models.hf_form.folder import HfCheckpoint, read_hf
from edgewise.models.hf_form.rules import HF_ARCHITECTURES

__all__ = [
    "HF_ARCHITECTURES",
    "Conversion",
    "HfCheckpoint",
    "check_finite",
    "gguf_to_hf",
    "hf_to_gguf",
    "read_hf",
]
