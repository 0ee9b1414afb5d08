"""Which tokenizer a model has: an identity to compare, and the tokens that steer generation.

Invariants: two files have the same digest exactly when they split and join text the same way, as
far as the file says; generation may end on *any* token the file marks as an end, never on just
one of them; what is missing or odd is reported as a warning code, never repaired silently.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final, NoReturn

from edgewise.errors import IntegrityError
from edgewise.models.gguf_types import GgufFile, GgufValue
from edgewise.models.metadata_keys import MetadataKeys

__all__ = ["END_TOKEN_TEXTS", "TokenizerIdentity", "tokenizer_identity"]

_PREFIX: Final = "tokenizer.ggml."

# llama.cpp's number for control tokens.
_CONTROL: Final = 3

# Tokens by which known model families end a turn or a text.
END_TOKEN_TEXTS: Final = frozenset(
    {
        "</s>",
        "<EOT>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|call|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|im_end|>",
        "<|return|>",
        "[EOS]",
        "[EOT]",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)

# Metadata that also changes how text is split.
_NORMALISER_KEYS: Final = (
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.remove_extra_whitespaces",
    "tokenizer.ggml.precompiled_charsmap",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerIdentity:
    """A tokenizer as its file describes it.

    Attributes:
        kind: ``tokenizer.ggml.model``: ``gpt2`` for byte-pair encoding, ``llama`` for
            SentencePiece, and so on.
        pre: Name of the pre-tokenizer, or ``None`` when the file has none.
        n_tokens: Size of the vocabulary.
        digest: SHA-256, 64 hex digits, over kind, pre-tokenizer, tokens, merges, scores, token
            types and the settings of the normaliser.
        bos_id: First token of a text, if named.
        eos_id: Last token of a text, if named.
        eot_id: Last token of a turn, if named.
        eom_id: Last token of a message, if named.
        unk_id: Unknown text, if named.
        pad_id: Padding, if named.
        add_bos: Whether a text gets ``bos_id`` in front; ``None`` when the file does not say, and
            the runtime's default for the kind applies.
        add_eos: Whether a text gets ``eos_id`` at its end; ``None`` as for ``add_bos``.
        end_token_ids: Every token that ends generation, sorted.
        special_tokens: Identifier of each control token by its text.
        warnings: Codes of what is missing or odd: ``pre-tokenizer-missing``,
            ``pre-tokenizer-default``, ``token-types-missing``, ``end-token-missing``,
            ``end-token-not-control``, ``special-token-not-utf8``.
    """

    kind: str
    pre: str | None
    n_tokens: int
    digest: str
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    eom_id: int | None
    unk_id: int | None
    pad_id: int | None
    add_bos: bool | None
    add_eos: bool | None
    end_token_ids: tuple[int, ...]
    special_tokens: dict[str, int]
    warnings: tuple[str, ...]


def tokenizer_identity(file: GgufFile) -> TokenizerIdentity:
    """Return the identity of the tokenizer in a file.

    Raises:
        IntegrityError: the file has no tokenizer (``gguf-missing-metadata``); a part of it is of
            another type or length (``gguf-bad-metadata``); a token identifier is outside the
            vocabulary (``gguf-token-out-of-range``).
    """
    parts = _Parts(file)
    keys = parts.keys
    kind = keys.text(_PREFIX + "model")
    if kind is None:
        keys.missing(_PREFIX + "model")
    pre = keys.text(_PREFIX + "pre")
    tokens = parts.texts("tokens")
    if not tokens:
        keys.missing(_PREFIX + "tokens")
    merges = parts.texts("merges")
    scores = parts.numbers("scores", len(tokens))
    types = parts.numbers("token_type", len(tokens))
    warnings: list[str] = []
    if kind == "gpt2" and not pre:
        warnings.append("pre-tokenizer-missing")
    if kind == "gpt2" and pre == "default":
        warnings.append("pre-tokenizer-default")
    if not types:
        warnings.append("token-types-missing")

    named = {name: parts.token_id(name, len(tokens)) for name in ("bos", "eos", "eot", "eom")}
    special = _special_tokens(tokens, types, warnings)
    return TokenizerIdentity(
        kind=kind,
        pre=pre,
        n_tokens=len(tokens),
        digest=_digest(
            file,
            kind=kind,
            pre=pre,
            tokens=tokens,
            merges=merges,
            scores=scores,
            types=types,
        ),
        bos_id=named["bos"],
        eos_id=named["eos"],
        eot_id=named["eot"],
        eom_id=named["eom"],
        unk_id=parts.token_id("unknown", len(tokens)),
        pad_id=parts.token_id("padding", len(tokens)),
        add_bos=keys.flag(_PREFIX + "add_bos_token"),
        add_eos=keys.flag(_PREFIX + "add_eos_token"),
        end_token_ids=_end_token_ids(tokens, special, named, warnings),
        special_tokens=special,
        warnings=tuple(warnings),
    )


class _Parts:
    """Typed access to ``tokenizer.ggml.*``."""

    def __init__(self, file: GgufFile) -> None:
        self.keys = MetadataKeys(file)

    def get(self, name: str) -> GgufValue | None:
        return self.keys.get(_PREFIX + name)

    def bad(self, name: str, why: str) -> NoReturn:
        self.keys.bad(_PREFIX + name, why)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, tuple) or not set(map(type, value)) <= {str}:
            self.bad(name, "it is not a list of texts")
        return value  # type: ignore[return-value]  # the types were looked at

    def numbers(self, name: str, count: int) -> tuple[int | float, ...]:
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, tuple) or not set(map(type, value)) <= {int, float}:
            self.bad(name, "it is not a list of numbers")
        if len(value) != count:
            self.bad(name, f"{len(value)} values for {count} tokens")
        return value  # type: ignore[return-value]  # the types were looked at

    def token_id(self, name: str, count: int) -> int | None:
        name = f"{name}_token_id"
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.bad(name, "it is not a whole number")
        if not 0 <= value < count:
            raise IntegrityError(
                "gguf-token-out-of-range",
                f"{_PREFIX}{name} is {value}, and there are {count} tokens",
                context={"path": self.keys.file.path, "field": _PREFIX + name, "found": value},
                hint="convert the checkpoint again with a current converter",
            )
        return value


def _special_tokens(
    tokens: tuple[str, ...], types: tuple[int | float, ...], warnings: list[str]
) -> dict[str, int]:
    special: dict[str, int] = {}
    for index, kind in enumerate(types):
        if kind != _CONTROL:
            continue
        text = tokens[index]
        if text.isascii() or _is_text(text):
            special.setdefault(text, index)
        elif "special-token-not-utf8" not in warnings:
            warnings.append("special-token-not-utf8")
    return special


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that were not UTF-8 in the file
        return False
    return True


def _end_token_ids(
    tokens: tuple[str, ...],
    special: dict[str, int],
    named: dict[str, int | None],
    warnings: list[str],
) -> tuple[int, ...]:
    """Return the union of the ends that the metadata names and those known by their text."""
    ends = {named[name] for name in ("eos", "eot", "eom")} - {None}
    ends |= {special[text] for text in END_TOKEN_TEXTS & special.keys()}
    if any(
        text in END_TOKEN_TEXTS and index not in ends and special.get(text) is None
        for index, text in enumerate(tokens)
    ):
        warnings.append("end-token-not-control")
    if not ends:
        warnings.append("end-token-missing")
    return tuple(sorted(index for index in ends if index is not None))


def _digest(
    file: GgufFile,
    *,
    kind: str,
    pre: str | None,
    tokens: tuple[str, ...],
    merges: tuple[str, ...],
    scores: tuple[int | float, ...],
    types: tuple[int | float, ...],
) -> str:
    """Return the digest over length-prefixed sections, so that no two contents look alike."""
    digest = hashlib.sha256(b"edgewise tokenizer 1\n")

    def section(name: str, body: bytes) -> None:
        digest.update(struct.pack("<I", len(name)) + name.encode())
        digest.update(struct.pack("<Q", len(body)))
        digest.update(body)

    def texts(name: str, values: tuple[str, ...]) -> None:
        raw = [value.encode("utf-8", "surrogateescape") for value in values]
        section(name + ".lengths", struct.pack(f"<{len(raw)}I", *map(len, raw)))
        section(name, b"".join(raw))

    texts("model", (kind,))
    texts("pre", () if pre is None else (pre,))
    texts("tokens", tokens)
    texts("merges", merges)
    section("scores", struct.pack(f"<{len(scores)}d", *scores))
    section("token_type", struct.pack(f"<{len(types)}d", *types))
    for key in _NORMALISER_KEYS:
        section(key, repr(file.metadata.get(key)).encode())
    return digest.hexdigest()
