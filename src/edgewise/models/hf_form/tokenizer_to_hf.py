"""tokenizer.json and its companions from a GGUF vocabulary.

Invariants: the files split text as llama.cpp does with the GGUF; identifiers are those of the
GGUF; control tokens are marked, so that a reader can refuse to find them in a user's text. What
tokenizer.json cannot say is refused, never approximated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.models.gguf_types import GgufFile
from edgewise.models.hf_form.byte_alphabet import SPACE_MARK
from edgewise.models.hf_form.pretokenizers import by_name
from edgewise.models.hf_form.sentencepiece import write_pieces
from edgewise.models.tokenizer import END_TOKEN_TEXTS, TokenizerIdentity, tokenizer_identity

__all__ = ["HfTokenizerFiles", "tokenizer_files"]

_PREFIX: Final = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# What converters put where the embedding has more rows than the vocabulary has tokens.
PAD_TOKEN: Final = re.compile(r"\[PAD(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class HfTokenizerFiles:
    """A tokenizer in the Hugging Face form.

    Attributes:
        tokenizer: Content of tokenizer.json.
        settings: Content of tokenizer_config.json, without a chat template.
        pieces: Bytes of tokenizer.model, for SentencePiece vocabularies.
        identity: What the GGUF says.
        notes: How llama.cpp's reading differs from the original's, if it does.
    """

    tokenizer: dict[str, Any]
    settings: dict[str, Any]
    pieces: bytes | None
    identity: TokenizerIdentity
    notes: tuple[str, ...] = field(default=())


def tokenizer_files(file: GgufFile) -> HfTokenizerFiles:
    """Return the tokenizer of a GGUF file in the Hugging Face form.

    Raises:
        IntegrityError: there is no sound tokenizer in the file (``gguf-...``), or two tokens are
            the same (``tokenizer-duplicate-token``).
        UnsupportedError: it is neither byte-level BPE nor SentencePiece with byte fallback
            (``tokenizer-unsupported``), or its pre-tokenizer has no rules
            (``pre-tokenizer-unsupported``).
    """
    identity = tokenizer_identity(file)
    tokens: Any = file.metadata[_PREFIX + "tokens"]
    types: Any = file.metadata.get(_PREFIX + "token_type") or (NORMAL,) * len(tokens)
    _require_text(file, tokens)
    if identity.kind == "gpt2":
        return _byte_level(file, identity, tokens, types)
    if identity.kind == "llama":
        return _sentencepiece(file, identity, tokens, types)
    raise UnsupportedError(
        "tokenizer-unsupported",
        f"{file.path} has a tokenizer of the kind {identity.kind!r}, which has no counterpart",
        context={"path": file.path, "kind": identity.kind},
        hint="byte-level BPE (gpt2) and SentencePiece with byte fallback (llama) have one",
    )


def _byte_level(
    file: GgufFile, identity: TokenizerIdentity, tokens: tuple[str, ...], types: tuple[int, ...]
) -> HfTokenizerFiles:
    pre = by_name(identity.pre)
    kept = _without_padding(tokens, types)
    merges: Any = file.metadata.get(_PREFIX + "merges") or ()
    pairs = []
    for merge in merges:
        at = merge.find(" ", 1)
        if at < 1 or at == len(merge) - 1:
            raise IntegrityError(
                "gguf-bad-metadata",
                f"{_PREFIX}merges in {file.path} cannot be right: {merge!r} is not two parts",
                context={"path": file.path, "field": _PREFIX + "merges"},
                hint="convert the checkpoint again with a current converter",
            )
        pairs.append([merge[:at], merge[at + 1 :]])
    add_bos = pre.add_bos if identity.add_bos is None else identity.add_bos
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = _document(
        added=_added(tokens[:kept], types),
        normalizer=None,
        pre_tokenizer=_sequence("pretokenizers", list(pre.steps)),
        post_processor=_post_processor(identity, tokens, add_bos=add_bos, plain=level),
        decoder={**level, "use_regex": True},
        model={
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.ignore_merges,
            "vocab": {token: index for index, token in enumerate(tokens[:kept])},
            "merges": _spelled(pairs),
        },
    )
    return HfTokenizerFiles(
        tokenizer=tokenizer,
        settings=_settings(file, identity, tokens, add_bos=add_bos),
        pieces=None,
        identity=identity,
        notes=((pre.note,) if pre.note else ()) + _ends_in_text(tokens, types),
    )


def _sentencepiece(
    file: GgufFile, identity: TokenizerIdentity, tokens: tuple[str, ...], types: tuple[int, ...]
) -> HfTokenizerFiles:
    scores: Any = file.metadata.get(_PREFIX + "scores")
    if not scores:
        raise IntegrityError(
            "gguf-missing-metadata",
            f"{file.path} has no {_PREFIX}scores",
            context={"path": file.path, "field": _PREFIX + "scores"},
            hint="convert the checkpoint again with a current converter",
        )
    prefix = file.metadata.get(_PREFIX + "add_space_prefix", True) is True
    add_bos = True if identity.add_bos is None else identity.add_bos
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    first = [{"type": "Prepend", "prepend": SPACE_MARK}] if prefix else []
    last = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    decoders = [
        {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *last,
    ]
    unknown = identity.unk_id if identity.unk_id is not None else 0
    tokenizer = _document(
        added=_added(tokens, types),
        normalizer=_sequence("normalizers", [*first, escape]),
        pre_tokenizer=None,
        post_processor=_post_processor(identity, tokens, add_bos=add_bos, plain=None),
        decoder={"type": "Sequence", "decoders": decoders},
        model={
            "unk_token": tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": _spelled(merges_by_score(tokens, scores, types)),
        },
    )
    pieces = tuple(zip(tokens, scores, types, strict=True))
    return HfTokenizerFiles(
        tokenizer=tokenizer,
        settings=_settings(file, identity, tokens, add_bos=add_bos),
        pieces=write_pieces(pieces, add_dummy_prefix=prefix),
        identity=identity,
        notes=_ends_in_text(tokens, types),
    )


def merges_by_score(
    tokens: tuple[str, ...], scores: tuple[float, ...], types: tuple[int, ...]
) -> list[list[str]]:
    """Return every way in which two tokens make a third, by the third's score, best first.

    llama.cpp joins whichever neighbours make the token of the highest score; as ranked merges
    that is the same choice. A token with a space in it is never made so: spaces are marks by then.
    """
    parts = {
        token for token, kind in zip(tokens, types, strict=True) if kind in {NORMAL, USER_DEFINED}
    }
    whole = sorted(
        (-score, index)
        for index, (score, kind) in enumerate(zip(scores, types, strict=True))
        if kind in {NORMAL, USER_DEFINED, UNUSED} and len(tokens[index]) > 1
        if " " not in tokens[index]
    )
    merges = []
    for _, index in whole:
        token = tokens[index]
        merges += [
            [token[:at], token[at:]]
            for at in range(1, len(token))
            if token[:at] in parts and token[at:] in parts
        ]
    return merges


def _spelled(merges: list[list[str]]) -> list[str] | list[list[str]]:
    """Return merges as texts, which every reader knows, or as pairs where a part has a space."""
    if any(" " in left or " " in right for left, right in merges):
        return merges
    return [f"{left} {right}" for left, right in merges]


def _ends_in_text(tokens: tuple[str, ...], types: tuple[int, ...]) -> tuple[str, ...]:
    """Return notes on tokens that llama.cpp takes for control tokens against what the file says."""
    return tuple(
        [
            f"llama.cpp takes {token!r} for a control token; here it is text, as the file says"
            for token, kind in zip(tokens, types, strict=True)
            if kind in {NORMAL, USER_DEFINED} and token in END_TOKEN_TEXTS
        ]
    )


def _without_padding(tokens: tuple[str, ...], types: tuple[int, ...]) -> int:
    """Return how many tokens there are before the filling at the end."""
    kept = len(tokens)
    while kept and types[kept - 1] == UNUSED:
        match = PAD_TOKEN.fullmatch(tokens[kept - 1])
        if match is None or int(match[1]) != kept - 1:
            break
        kept -= 1
    return kept


def _added(tokens: tuple[str, ...], types: tuple[int, ...]) -> list[dict[str, Any]]:
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": types[index] != USER_DEFINED,
        }
        for index, token in enumerate(tokens)
        if types[index] in {CONTROL, UNKNOWN, USER_DEFINED}
    ]


def _document(
    *, model: dict[str, Any], added: list[dict[str, Any]], **parts: Any
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        **parts,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            **model,
        },
    }


def _sequence(key: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return steps[0] if len(steps) == 1 else {"type": "Sequence", key: steps}


def _post_processor(
    identity: TokenizerIdentity, tokens: tuple[str, ...], *, add_bos: bool, plain: Any
) -> Any:
    """Return what puts start and end tokens around a text, ``plain`` when nothing does."""
    ends = (
        (identity.bos_id if add_bos else None),
        (identity.eos_id if identity.add_eos else None),
    )
    if ends == (None, None):
        return plain

    def special(index: int | None, number: int) -> list[dict[str, Any]]:
        if index is None:
            return []
        return [{"SpecialToken": {"id": tokens[index], "type_id": number}}]

    def around(name: str, number: int) -> list[dict[str, Any]]:
        text = {"Sequence": {"id": name, "type_id": number}}
        return [*special(ends[0], number), text, *special(ends[1], number)]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", 1)],
        "special_tokens": {
            tokens[index]: {"id": tokens[index], "ids": [index], "tokens": [tokens[index]]}
            for index in ends
            if index is not None
        },
    }


def _settings(
    file: GgufFile, identity: TokenizerIdentity, tokens: tuple[str, ...], *, add_bos: bool
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "add_bos_token": add_bos,
        "add_eos_token": bool(identity.add_eos),
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for name, index in (
        ("bos_token", identity.bos_id),
        ("eos_token", identity.eos_id),
        ("pad_token", identity.pad_id),
        ("unk_token", identity.unk_id),
    ):
        if index is not None:
            settings[name] = tokens[index]
    prefix = file.metadata.get(_PREFIX + "add_space_prefix")
    if isinstance(prefix, bool):
        settings["add_prefix_space"] = prefix
    if identity.pre is not None:
        settings["gguf_pre"] = identity.pre
    return settings


def _require_text(file: GgufFile, tokens: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for index, token in enumerate(tokens):
        if token in seen:
            raise IntegrityError(
                "tokenizer-duplicate-token",
                f"{file.path} has the token {token!r} more than once",
                context={"path": file.path, "token_id": index},
                hint="convert the checkpoint again with a current converter",
            )
        seen.add(token)
        if not token.isascii() and any(0xDC80 <= ord(char) <= 0xDCFF for char in token):
            raise UnsupportedError(
                "tokenizer-unsupported",
                f"token {index} of {file.path} is not text, and tokenizer.json holds only text",
                context={"path": file.path, "token_id": index},
                hint="use the GGUF as it is",
            )
