"""Which tokens may come next, step by step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewise.core.structure import Structure
from edgewise.errors import AdapterError
from edgewise.run.structure.grammar import Audit, prepare
from edgewise.run.structure.library import is_beyond_limits, too_large
from edgewise.run.structure.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from edgewise.runtimes.protocol import Engine

__all__ = ["Constrainer", "Matcher"]

Logits = np.ndarray[Any, np.dtype[np.float32]]

_KEPT = 8


class Constrainer:
    """Makes matchers for one loaded engine. Its vocabulary is built once, at the first one."""

    def __init__(self, engine: Engine, end_token_ids: Collection[int]) -> None:
        self._engine = engine
        self._end_token_ids = tuple(end_token_ids)
        self._vocabulary: Vocabulary | None = None
        self._made: OrderedDict[tuple[Structure, bool], Matcher] = OrderedDict()

    def matcher(self, structure: Structure, *, own: bool = False) -> Matcher:
        """Return a matcher at the start of a structure.

        The last few structures are kept compiled.

        Args:
            structure: What the answer has to look like.
            own: Whether it is a Lark grammar that Edgewise wrote itself, not a caller's.

        Raises:
            InputError: the structure is malformed, or no text fits it.
            UnsupportedError: a part of it can be neither enforced nor checked, a library that it
                needs is missing, or the model has no end token.
            ResourceError: it is too large.
        """
        key = (structure, own)
        made = self._made.get(key)
        if made is None:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(self._engine, self._end_token_ids)
            prepared, native = prepare(structure, self._vocabulary.native, own=own)
            made = self._made[key] = Matcher(prepared.audit, native, self._vocabulary)
            if len(self._made) > _KEPT:
                self._made.popitem(last=False)
        else:
            self._made.move_to_end(key)
        return made.fork()


class Matcher:
    """Where one answer stands in its structure. Not thread-safe.

    Attributes:
        audit: What is enforced, and what the finished answer has to be checked against.
    """

    def __init__(self, audit: Audit, native: LLMatcher, vocabulary: Vocabulary) -> None:
        self.audit = audit
        self._native = native
        self._vocabulary = vocabulary
        self._ended = False
        self._bits = np.zeros((vocabulary.size + 31) // 32, dtype=np.uint32)
        self._masked: Logits | None = None

    @property
    def complete(self) -> bool:
        """Whether the structure may end here."""
        return self._ended or bool(self._native.is_accepting())

    @property
    def exhausted(self) -> bool:
        """Whether nothing but an end token may follow."""
        return self._ended or (bool(self._native.is_stopped()) and self.complete)

    def mask(self, logits: Logits) -> Logits:
        """Return the logits with those of tokens that may not follow at minus infinity.

        Args:
            logits: Shape ``(vocab_size,)``, float32; not modified.

        Returns:
            The same shape, in a buffer of this matcher that the next call writes again.

        Raises:
            ResourceError: going on would pass the grammar library's limits.
            AdapterError: no token can follow, or the logits are not the vocabulary's.
        """
        if logits.shape != (self._vocabulary.size,):
            raise _broken(f"{logits.shape} logits for {self._vocabulary.size} tokens")
        allowed = self._allowed()
        if self._masked is None:
            self._masked = np.empty(self._vocabulary.size, dtype=np.float32)
        self._masked.fill(-np.inf)
        np.copyto(self._masked, logits, where=allowed)
        return self._masked

    def _allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        size, ends = self._vocabulary.size, self._vocabulary.ends
        if self._ended or self._native.is_stopped():
            allowed = np.zeros(size, dtype=np.bool_)
        else:
            self._native.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
            if is_beyond_limits(self._native):
                raise too_large("going on would pass the grammar library's limits")
            bits = np.unpackbits(self._bits.view(np.uint8), count=size, bitorder="little")
            allowed = bits.view(np.bool_)
        allowed[ends] = self.complete
        if not allowed.any():
            raise _broken("no token can follow")
        return allowed

    def accept(self, token: int) -> None:
        """Go on by one token.

        Raises:
            AdapterError: the token is not allowed here.
        """
        if token in self._vocabulary.ends:
            if not self.complete:
                raise _broken("the answer ended inside of it")
            self._ended = True
            return
        allowed = not self._ended and self._vocabulary.spells(token)
        if not allowed or not self._native.consume_token(token):
            raise _broken("a token came that it does not allow")

    def fork(self) -> Matcher:
        """Return a copy that goes on by itself from here."""
        copy = Matcher(self.audit, self._native.deep_copy(), self._vocabulary)
        copy._ended = self._ended
        return copy


def _broken(why: str) -> AdapterError:
    return AdapterError(
        "structure-broken",
        f"the answer cannot go on within its structure: {why}",
        hint="report it, with the structure; use another one meanwhile",
    )
