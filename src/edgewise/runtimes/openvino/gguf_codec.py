"""Text to tokens by OpenVINO GenAI's own tokenizer, tokens to bytes by the GGUF's table."""

from __future__ import annotations

from typing import Any

from edgewise.errors import UnsupportedError
from edgewise.models.gguf_types import GgufFile
from edgewise.models.hf_form.byte_alphabet import SPACE_MARK, byte_of_token, unescape

__all__ = ["GgufCodec"]

_CONTROL = 3  # ggml's number for control tokens
_BYTE_LEVEL = "gpt2"


class GgufCodec:
    """A GGUF's tokenizer. Not thread-safe."""

    def __init__(self, header: GgufFile, tokenizer: Any) -> None:
        """Take the file's metadata and GenAI's tokenizer of it.

        Raises:
            UnsupportedError: the file holds no vocabulary.
        """
        texts, kinds = (header.metadata.get(f"tokenizer.ggml.{key}") for key in _ARRAYS)
        if not isinstance(texts, tuple):
            raise UnsupportedError("tokenizer-unsupported", "the GGUF file holds no vocabulary")
        self._texts = [str(text) for text in texts]
        self._byte_level = header.metadata.get("tokenizer.ggml.model") == _BYTE_LEVEL
        self._control = (
            {index for index, kind in enumerate(kinds) if kind == _CONTROL}
            if isinstance(kinds, tuple)
            else set()
        )
        self._control_texts = tuple(self._texts[index] for index in sorted(self._control))
        self._tokenizer = tokenizer

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the token ids of ``text``.

        Raises:
            UnsupportedError: the text spells a control token that is not to be parsed; GenAI's
                tokenizer always parses them.
        """
        if not parse_special:
            spelled = next((item for item in self._control_texts if item in text), None)
            if spelled is not None:
                raise UnsupportedError(
                    "control-text-unsupported",
                    f"OpenVINO GenAI's tokenizer would take the text {spelled!r} for the token",
                    hint="remove it from the text, or build from the Hugging Face form",
                )
        encoded = self._tokenizer.encode(text, add_special_tokens=add_special)
        return [int(token) for token in encoded.input_ids.data[0]]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for; empty for a control token or an unused id."""
        if token in self._control or not 0 <= token < len(self._texts):
            return b""
        text = self._texts[token]
        if self._byte_level:
            return unescape(text)
        byte = byte_of_token(text)
        if byte is not None:
            return bytes([byte])
        return text.replace(SPACE_MARK, " ").encode("utf-8", "surrogateescape")


_ARRAYS = ("tokens", "token_type")
