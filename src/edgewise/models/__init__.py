"""Checkpoints: reading them, and what they say about shape, tokenizer and chat template.

Importing this package imports neither jinja2 nor numpy.
"""

from edgewise.models.architecture import KNOWN_ARCHITECTURES, ModelShape, model_shape
from edgewise.models.gguf import read_gguf
from edgewise.models.gguf_types import GgmlType, GgufFile, TensorInfo
from edgewise.models.safetensors import SafetensorInfo, SafetensorsFile, read_safetensors
from edgewise.models.template import ChatTemplate, RenderedPrompt, Segment, chat_template
from edgewise.models.tokenizer import TokenizerIdentity, tokenizer_identity

__all__ = [
    "KNOWN_ARCHITECTURES",
    "ChatTemplate",
    "GgmlType",
    "GgufFile",
    "ModelShape",
    "RenderedPrompt",
    "SafetensorInfo",
    "SafetensorsFile",
    "Segment",
    "TensorInfo",
    "TokenizerIdentity",
    "chat_template",
    "model_shape",
    "read_gguf",
    "read_safetensors",
    "tokenizer_identity",
]
