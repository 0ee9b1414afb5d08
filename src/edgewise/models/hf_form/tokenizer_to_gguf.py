"""GGUF metadata of a tokenizer from tokenizer.json and its companions.

Invariants: every token keeps its identifier; a tokenizer that llama.cpp would read differently is
refused. A tokenizer that does not belong to the weights (more tokens than the embedding has rows,
a special token outside it) is an error before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edgewise.errors import IntegrityError, UnsupportedError
from edgewise.models.gguf_types import GgufValue
from edgewise.models.hf_form.byte_alphabet import SPACE_MARK, byte_of_token
from edgewise.models.hf_form.pretokenizers import by_steps
from edgewise.models.hf_form.sentencepiece import read_pieces
from edgewise.models.hf_form.tokenizer_to_hf import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
)
from edgewise.models.tokenizer import END_TOKEN_TEXTS

__all__ = ["tokenizer_metadata"]

_PREFIX: Final = "tokenizer.ggml."


def tokenizer_metadata(
    tokenizer: Mapping[str, Any],
    settings: Mapping[str, Any],
    generation: Mapping[str, Any],
    *,
    rows: int,
    pieces: bytes | None,
) -> tuple[dict[str, GgufValue], list[str]]:
    """Return ``tokenizer.ggml.*`` and notes on what was dropped.

    Args:
        tokenizer: tokenizer.json.
        settings: tokenizer_config.json, with special tokens that only config.json names.
        generation: generation_config.json.
        rows: Rows of the embedding.
        pieces: tokenizer.model, if there is one.

    Raises:
        IntegrityError: the tokenizer is malformed (``hf-tokenizer-invalid``) or does not belong
            to these weights (``hf-tokenizer-mismatch``).
        UnsupportedError: llama.cpp cannot read it the same way (``tokenizer-unsupported``,
            ``pre-tokenizer-unsupported``).
    """
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else None
        raise _unsupported(f"tokenizer.json holds a {kind} model, not BPE")
    tokens, types = _vocabulary(tokenizer, model, rows)
    merges = _merges(model)
    notes: list[str] = []
    if model.get("byte_fallback"):
        found = _sentencepiece(tokenizer, settings, tokens, types, merges, pieces, notes)
    else:
        found = _byte_level(tokenizer, model, settings, merges, notes)
    found[_PREFIX + "tokens"] = tuple(tokens)
    found[_PREFIX + "token_type"] = tuple(types)
    ids = {token: index for index, token in enumerate(tokens)}
    found.update(_specials(settings, generation, ids, tokens, types, notes))
    _add_ends(tokenizer, settings, found)
    return found, notes


def _vocabulary(
    tokenizer: Mapping[str, Any], model: Mapping[str, Any], rows: int
) -> tuple[list[str], list[int]]:
    vocab = model.get("vocab")
    added = tokenizer.get("added_tokens") or []
    if not isinstance(vocab, dict) or not isinstance(added, list):
        raise _invalid("vocab or added_tokens")
    entries: dict[int, tuple[str, int]] = {}
    for token, index in vocab.items():
        _place(entries, index, token, NORMAL, rows)
    for one in added:
        if not isinstance(one, dict):
            raise _invalid("added_tokens")
        kind = CONTROL if one.get("special") else USER_DEFINED
        _place(entries, one.get("id"), one.get("content"), kind, rows)
    tokens, types = [], []
    for index in range(rows):
        token, kind = entries.get(index, (f"[PAD{index}]", UNUSED))
        tokens.append(token)
        types.append(kind)
    return tokens, types


def _place(
    entries: dict[int, tuple[str, int]], index: Any, token: Any, kind: int, rows: int
) -> None:
    if type(index) is not int or index < 0 or not isinstance(token, str):
        raise _invalid(f"token {token!r}")
    if index >= rows:
        raise IntegrityError(
            "hf-tokenizer-mismatch",
            f"the token {token!r} has the identifier {index}, and the embedding has {rows} rows",
            context={"token_id": index, "rows": rows},
            hint="tokenizer and weights are of different models: fetch the checkpoint again",
        )
    if index in entries and entries[index][0] != token:
        raise _invalid(f"identifier {index}, which two tokens have")
    entries[index] = (token, kind)


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    merges = model.get("merges") or []
    pairs: list[tuple[str, str]] = []
    if not isinstance(merges, list):
        raise _invalid("merges")
    for merge in merges:
        parts = merge.split(" ", 1) if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(map(_is_text, parts)):
            raise _invalid("merges")
        pairs.append((parts[0], parts[1]))
    return pairs


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _byte_level(
    tokenizer: Mapping[str, Any],
    model: Mapping[str, Any],
    settings: Mapping[str, Any],
    merges: list[tuple[str, str]],
    notes: list[str],
) -> dict[str, GgufValue]:
    normalizer = tokenizer.get("normalizer")
    if normalizer is not None:
        kinds = [step.get("type") for step in _steps(normalizer, "normalizers")]
        if kinds not in (["NFC"], []):
            raise _unsupported(f"it normalises text by {', '.join(map(str, kinds))}")
        if kinds:
            notes.append("the tokenizer's NFC normalisation is not done by llama.cpp")
    steps = _steps(tokenizer.get("pre_tokenizer"), "pretokenizers")
    pre = by_steps(steps, ignore_merges=bool(model.get("ignore_merges")))
    name = settings.get("gguf_pre")
    found: dict[str, GgufValue] = {
        _PREFIX + "model": "gpt2",
        _PREFIX + "pre": name if name in pre.names else pre.names[0],
        _PREFIX + "merges": tuple([f"{left} {right}" for left, right in merges]),
    }
    prefix = settings.get("add_prefix_space")
    if isinstance(prefix, bool):
        found[_PREFIX + "add_space_prefix"] = prefix
    return found


def _sentencepiece(
    tokenizer: Mapping[str, Any],
    settings: Mapping[str, Any],
    tokens: list[str],
    types: list[int],
    merges: list[tuple[str, str]],
    pieces: bytes | None,
    notes: list[str],
) -> dict[str, GgufValue]:
    prefix = _space_prefix(tokenizer)
    for index, token in enumerate(tokens):
        if types[index] == NORMAL and byte_of_token(token) is not None:
            types[index] = BYTE
    unknown = tokenizer["model"].get("unk_token")
    scores = None
    if pieces is not None:
        scores = _scores_of_pieces(tokens, types, pieces)
        if scores is None:
            notes.append("tokenizer.model is of another vocabulary than tokenizer.json: not used")
    if scores is None:
        types[:] = [
            UNKNOWN if kind == CONTROL and token == unknown else kind
            for token, kind in zip(tokens, types, strict=True)
        ]
        scores = _scores_of_merges(tokens, merges)
        notes.append("the scores of the vocabulary were derived from the order of its merges")
    found: dict[str, GgufValue] = {_PREFIX + "model": "llama", _PREFIX + "scores": tuple(scores)}
    name = settings.get("gguf_pre", "default")
    if isinstance(name, str):
        found[_PREFIX + "pre"] = name
    if not prefix or "add_prefix_space" in settings:
        found[_PREFIX + "add_space_prefix"] = prefix
    return found


def _space_prefix(tokenizer: Mapping[str, Any]) -> bool:
    """Return whether a space is put in front of text; refuse what llama.cpp does otherwise."""
    steps = _steps(tokenizer.get("normalizer"), "normalizers")
    pre = [
        step
        for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers")
        # Splitting at spaces once they have been replaced splits nothing.
        if not (step.get("type") == "Split" and step.get("pattern") == {"String": " "})
    ]
    kinds = [step.get("type") for step in steps]
    if kinds and kinds[-1] == "Replace" and not pre and set(kinds[:-1]) <= {"Prepend"}:
        step = steps[-1]
        if step.get("pattern") == {"String": " "} and step.get("content") == SPACE_MARK:
            return len(kinds) > 1
    if not steps and [step.get("type") for step in pre] == ["Metaspace"]:
        scheme = pre[0].get("prepend_scheme", "always")
        if pre[0].get("replacement") == SPACE_MARK and pre[0].get("split") is False:
            return bool(scheme != "never")
    raise _unsupported("it treats spaces in a way that llama.cpp has no setting for")


def _scores_of_pieces(tokens: list[str], types: list[int], raw: bytes) -> list[float] | None:
    """Return the scores of tokenizer.model and set its types, ``None`` if it does not fit."""
    pieces = read_pieces(raw)
    if len(pieces) > len(tokens):
        return None
    scores = [-1000.0] * len(tokens)
    for index, (text, score, kind) in enumerate(pieces):
        if text.replace(SPACE_MARK, " ") != tokens[index].replace(SPACE_MARK, " "):
            return None
        scores[index] = score
        if types[index] != UNUSED:
            types[index] = kind
    return scores


def _scores_of_merges(tokens: list[str], merges: list[tuple[str, str]]) -> list[float]:
    rank: dict[str, int] = {}
    for left, right in merges:
        rank.setdefault(left + right, len(rank))
    worst = -float(len(rank) + 1)
    return [-float(rank[token]) if token in rank else worst for token in tokens]


def _specials(
    settings: Mapping[str, Any],
    generation: Mapping[str, Any],
    ids: Mapping[str, int],
    tokens: list[str],
    types: list[int],
    notes: list[str],
) -> dict[str, GgufValue]:
    found: dict[str, GgufValue] = {}
    for name, key in (
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("unk_token", "unknown"),
        ("pad_token", "padding"),
    ):
        index = _special_id(settings.get(name), ids, len(tokens), name)
        if index is not None:
            found[f"{_PREFIX}{key}_token_id"] = index
    ends = generation.get("eos_token_id")
    listed = ends if isinstance(ends, list) else [ends]
    rest = []
    for end in listed:
        index = _special_id(end, ids, len(tokens), "eos_token_id")
        if index is None or index == found.get(_PREFIX + "eos_token_id"):
            continue
        if not (types[index] == CONTROL and tokens[index] in END_TOKEN_TEXTS):
            rest.append(index)
    for key, index in zip(("eot", "eom"), rest, strict=False):
        found[f"{_PREFIX}{key}_token_id"] = index
    notes += [f"GGUF has no place for the end token {tokens[index]!r}" for index in rest[2:]]
    return found


def _special_id(value: Any, ids: Mapping[str, int], rows: int, name: str) -> int | None:
    if isinstance(value, dict):
        value = value.get("content")
    if value is None:
        return None
    index = ids.get(value) if isinstance(value, str) else value
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < rows:
        raise IntegrityError(
            "hf-tokenizer-mismatch",
            f"{name} is {value!r}, which is none of the model's {rows} tokens",
            context={"field": name, "found": value, "rows": rows},
            hint="tokenizer and weights are of different models: fetch the checkpoint again",
        )
    return index


def _add_ends(
    tokenizer: Mapping[str, Any], settings: Mapping[str, Any], found: dict[str, GgufValue]
) -> None:
    """Say whether start and end tokens are put around a text, as the post-processor does."""
    post = tokenizer.get("post_processor")
    steps = [
        step for step in _steps(post, "processors") if step.get("type") == "TemplateProcessing"
    ]
    template = steps[-1].get("single") if steps else []
    shape = ["Sequence" in part for part in template or [] if isinstance(part, dict)]
    at = shape.index(True) if True in shape else 0
    for key, stated, done in (
        ("bos", "add_bos_token", at > 0),
        ("eos", "add_eos_token", at < len(shape) - 1),
    ):
        wanted = done if steps or not isinstance(settings.get(stated), bool) else settings[stated]
        found[f"{_PREFIX}add_{key}_token"] = bool(wanted) and f"{_PREFIX}{key}_token_id" in found


def _steps(part: Any, key: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    if not isinstance(part, dict):
        raise _invalid(key)
    if part.get("type") != "Sequence":
        return [part]
    steps = part.get(key)
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise _invalid(key)
    return steps


def _invalid(what: str) -> IntegrityError:
    return IntegrityError(
        "hf-tokenizer-invalid",
        f"tokenizer.json cannot be right: {what}",
        context={"field": what},
        hint="the folder is damaged or incomplete: fetch or convert the checkpoint again",
    )


def _unsupported(why: str) -> UnsupportedError:
    return UnsupportedError(
        "tokenizer-unsupported",
        f"this tokenizer cannot be carried into GGUF: {why}",
        context={"reason": why},
        hint="use the checkpoint in the form it has",
    )
