"""The tokenizer of a Hugging Face folder, for engines that have none of their own.

Invariants: text is never searched for control tokens unless the caller asks for it, so that a
user cannot write them; bytes are given out as they are, also halves of a character.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any, Final

from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.models.hf_form.byte_alphabet import SPACE_MARK, byte_of_token, unescape
from edgewise.store.regular import read_regular

__all__ = ["HfTokenizer"]

_FILE: Final = "tokenizer.json"
_BYTES_MAX: Final = 256 << 20


class HfTokenizer:
    """Text to token ids and back. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Read ``tokenizer.json``.

        Raises:
            UnsupportedError: the package ``tokenizers`` is not installed
                (``tokenizers-missing``), or ids cannot be turned into bytes
                (``tokenizer-unsupported``).
            InputError: there is no such file, or it cannot be read (``model-unreadable``).
            IntegrityError: it is no tokenizer (``hf-tokenizer-invalid``).
        """
        path = folder / _FILE
        self._tokenizer = _load(path)
        self._byte_level = _is_byte_level(self._tokenizer, path)
        vocab: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self._token_by_id = {index: token for token, index in vocab.items()}
        self._vocab_size = max(self._token_by_id, default=-1) + 1
        added = self._tokenizer.get_added_tokens_decoder()
        self._control = {index for index, token in added.items() if token.special}
        self._verbatim: dict[int, str] = {
            index: token.content for index, token in added.items() if not token.special
        }

    @property
    def vocab_size(self) -> int:
        """Return one more than the highest id; a model may have more rows than that."""
        return self._vocab_size

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the token ids of ``text``.

        Args:
            text: Any text.
            add_special: Whether start and end tokens are put around it, where the model has them.
            parse_special: Whether text that spells a control token becomes that token.
        """
        self._tokenizer.encode_special_tokens = not parse_special
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special).ids
        return ids

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for; empty for a control token or an unused id."""
        text = self._token_by_id.get(token)
        if text is None or token in self._control:
            return b""
        verbatim: str | None = self._verbatim.get(token)
        if verbatim is not None:
            return verbatim.encode()
        if self._byte_level:
            return unescape(text)
        byte = byte_of_token(text)
        if byte is not None:
            return bytes([byte])
        return text.replace(SPACE_MARK, " ").encode()


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - optional, and native
    except ImportError as error:
        raise UnsupportedError(
            "tokenizers-missing",
            "this artifact needs the package tokenizers, which is not installed",
            context={"path": str(path)},
            hint="pip install 'edgewise[convert]', or install the runtime again",
        ) from error
    try:
        raw = read_regular(path, limit_bytes=_BYTES_MAX)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _invalid(path, str(error)) from error
        raise InputError(
            "model-unreadable",
            f"{path} cannot be read: {error.strerror or error}",
            context={"path": str(path)},
            hint="the artifact is incomplete: build it again",
        ) from error
    try:
        tokenizer = Tokenizer.from_buffer(raw)
    except Exception as error:  # the library raises plain Exception
        raise _invalid(path, str(error)) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _is_byte_level(tokenizer: Any, path: Path) -> bool:
    decoder = tokenizer.decoder
    state = json.loads(decoder.__getstate__()) if decoder is not None else {}
    kinds = [step.get("type") for step in state.get("decoders", [state])]
    if "ByteLevel" in kinds:
        return True
    if "ByteFallback" in kinds:
        return False
    raise UnsupportedError(
        "tokenizer-unsupported",
        f"{path} decodes by {', '.join(map(str, kinds))}, which does not tell a token's bytes",
        context={"path": str(path)},
        hint="byte-level BPE and SentencePiece with byte fallback are supported",
    )


def _invalid(path: Path, why: str) -> IntegrityError:
    return IntegrityError(
        "hf-tokenizer-invalid",
        f"{path} cannot be right: {why}",
        context={"path": str(path), "reason": why},
        hint="the folder is damaged or incomplete: fetch or convert the checkpoint again",
    )
