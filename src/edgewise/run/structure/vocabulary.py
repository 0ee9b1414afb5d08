"""A runtime's tokens as the grammar library's vocabulary."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from edgewise.errors import EdgewiseError, UnsupportedError
from edgewise.run.structure.library import library

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from edgewise.runtimes.protocol import Engine

__all__ = ["Vocabulary"]


class Vocabulary:
    """The bytes of every token, the tokens that end an answer, and the library's own copy.

    Control tokens and tokens that end an answer spell nothing here, so no text can hold them.

    Attributes:
        size: How many logits one step gives.
        ends: Ids of the tokens that end an answer, ascending.
        native: The library's copy.
    """

    def __init__(self, engine: Engine, end_token_ids: Collection[int]) -> None:
        """Read the engine's tokens; about 3 µs each.

        Raises:
            UnsupportedError: the library is missing, or no token ends an answer.
        """
        llguidance = library()
        self.size = engine.vocab_size
        self.ends = np.array(sorted({one for one in end_token_ids if 0 <= one < self.size}), int)
        if not len(self.ends):
            raise UnsupportedError(
                "structure-unsupported",
                "this model has no token that ends an answer, so a structure could not end either",
                hint="use a model whose tokenizer names its end token",
            )
        ends = set(self.ends.tolist())
        tokens = [b"" if one in ends else engine.token_bytes(one) for one in range(self.size)]
        self._spells = bytes(map(bool, tokens))
        self._speller = _Speller(engine, tokens, int(self.ends[0]))
        self.native: LLTokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(self._speller), eos_token=self.ends.tolist()
        )

    def spells(self, token: int) -> bool:
        """Whether this is the id of a token that stands for bytes."""
        return 0 <= token < self.size and bool(self._spells[token])


class _Speller:
    """What the library asks of a tokenizer: its tokens, and how a given text is cut into them.

    Where only one text can follow, the library allows the model's own way of spelling it.
    """

    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, engine: Engine, tokens: list[bytes], end: int) -> None:
        self.tokens = tokens
        self.eos_token_id = end
        self._engine = engine

    def __call__(self, data: bytes | str) -> list[int]:
        """Return tokens whose bytes are exactly ``data``, in the model's way if it has one."""
        raw = data.encode() if isinstance(data, str) else data
        try:
            ids = self._engine.tokenize(raw.decode(), add_special=False, parse_special=False)
        except (EdgewiseError, UnicodeDecodeError):
            return self._longest_first(raw)
        # Some tokenizers put a space in front of every text.
        spelled = b"".join(self.tokens[one] for one in ids if 0 <= one < len(self.tokens))
        return ids if spelled == raw else self._longest_first(raw)

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {data: one for one, data in reversed(list(enumerate(self.tokens))) if data}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=1)

    def _longest_first(self, data: bytes) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((one for one in ends if data[start:one] in self._ids), None)
            if end is None:  # no token for this byte: the library finds that the text cannot go on
                break
            ids.append(self._ids[data[start:end]])
            start = end
        return ids
