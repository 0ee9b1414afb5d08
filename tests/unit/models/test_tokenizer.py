"""Tokenizer identity: what differs has another digest, and no end token is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.builders import TOKEN_TYPES, TOKENS, raw_gguf, raw_kv, string_bytes, tiny_gguf

from edgewise.errors import IntegrityError
from edgewise.models import read_gguf, tokenizer_identity

PREFIX = "tokenizer.ggml."


def identity_of(tmp_path: Path, drop: Any = (), **parts: Any) -> Any:
    metadata = {PREFIX + key: value for key, value in parts.items()}
    path = tiny_gguf(tmp_path / "m.gguf", metadata=metadata, drop=[PREFIX + name for name in drop])
    return tokenizer_identity(read_gguf(path))


def test_tiny(tmp_path: Path) -> None:
    identity = identity_of(tmp_path)
    assert (identity.kind, identity.pre, identity.n_tokens) == ("gpt2", "smollm", len(TOKENS))
    assert (identity.bos_id, identity.eos_id) == (1, 2)
    assert (identity.eot_id, identity.eom_id, identity.unk_id, identity.pad_id) == (None,) * 4
    assert identity.add_bos is False
    assert identity.add_eos is None
    assert identity.special_tokens == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert identity.warnings == ()
    assert len(identity.digest) == 64


def test_end_tokens_are_joined_not_replaced(tmp_path: Path) -> None:
    # The metadata names one end, the vocabulary knows another, and both end generation.
    assert identity_of(tmp_path, eos_token_id=0).end_token_ids == (0, 2)
    assert identity_of(tmp_path, eos_token_id=2).end_token_ids == (0, 2)
    assert identity_of(tmp_path, drop=["eos_token_id"]).end_token_ids == (0, 2)
    assert identity_of(tmp_path, eot_token_id=4, eom_token_id=3).end_token_ids == (0, 2, 3, 4)


@pytest.mark.parametrize(
    "text",
    [
        "</s>",
        "<end_of_turn>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|end_of_text|>",
        "<|return|>",
    ],
)
def test_end_tokens_known_by_text(tmp_path: Path, text: Any) -> None:
    tokens = [*TOKENS[:-1], text]
    control = identity_of(tmp_path, tokens=tokens, token_type=[*TOKEN_TYPES[:-1], 3])
    assert control.end_token_ids == (0, 2, 7)
    assert control.warnings == ()
    normal = identity_of(tmp_path, tokens=tokens)
    assert normal.end_token_ids == (0, 2)
    assert normal.warnings == ("end-token-not-control",)


def test_no_end_token_is_visible(tmp_path: Path) -> None:
    identity = identity_of(
        tmp_path, drop=["eos_token_id"], tokens=[f"t{i}" for i in range(len(TOKENS))]
    )
    assert identity.end_token_ids == ()
    assert identity.warnings == ("end-token-missing",)


def test_missing_pre_tokenizer_is_visible(tmp_path: Path) -> None:
    assert identity_of(tmp_path, drop=["pre"]).warnings == ("pre-tokenizer-missing",)
    assert identity_of(tmp_path, pre="default").warnings == ("pre-tokenizer-default",)
    assert identity_of(tmp_path, drop=["pre"], model="llama").warnings == ()


def test_missing_token_types_are_visible(tmp_path: Path) -> None:
    identity = identity_of(tmp_path, drop=["token_type"])
    assert "token-types-missing" in identity.warnings
    assert identity.special_tokens == {}


def test_everything_that_splits_text_is_in_the_digest(tmp_path: Path) -> None:
    digests = [
        identity_of(tmp_path).digest,
        identity_of(tmp_path, pre="llama-bpe").digest,
        identity_of(tmp_path, drop=["pre"]).digest,
        identity_of(tmp_path, model="llama").digest,
        identity_of(tmp_path, merges=["b a"]).digest,
        identity_of(tmp_path, drop=["merges"]).digest,
        identity_of(tmp_path, token_type=[*TOKEN_TYPES[:-1], 4]).digest,
        identity_of(tmp_path, tokens=[*TOKENS[:-2], TOKENS[-1], TOKENS[-2]]).digest,
        identity_of(tmp_path, tokens=[*TOKENS[:3], "aa", "b", "b", *TOKENS[6:]]).digest,
        identity_of(tmp_path, tokens=[*TOKENS[:3], "a", "ab", "b", *TOKENS[6:]]).digest,
        identity_of(tmp_path, scores=[0.0] * len(TOKENS)).digest,
        identity_of(tmp_path, scores=[0.5] * len(TOKENS)).digest,
        identity_of(tmp_path, add_space_prefix=True).digest,
    ]
    assert len(set(digests)) == len(digests)


def test_what_does_not_split_text_is_not_in_the_digest(tmp_path: Path) -> None:
    digest = identity_of(tmp_path).digest
    assert identity_of(tmp_path, eos_token_id=0).digest == digest
    assert identity_of(tmp_path, add_bos_token=True).digest == digest


@pytest.mark.parametrize("name", ["bos", "eos", "eot", "eom", "unknown", "padding"])
@pytest.mark.parametrize("value", [len(TOKENS), 0xFFFFFFFF, -1])
def test_identifier_out_of_range(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(IntegrityError) as caught:
        identity_of(tmp_path, **{f"{name}_token_id": value})
    assert caught.value.code == "gguf-token-out-of-range"
    assert caught.value.context["field"] == f"{PREFIX}{name}_token_id"


@pytest.mark.parametrize("name", ["model", "tokens"])
def test_missing_part(tmp_path: Path, name: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        identity_of(tmp_path, drop=[name])
    assert caught.value.code == "gguf-missing-metadata"
    assert caught.value.context["field"] == PREFIX + name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 3),
        ("pre", True),
        ("tokens", "abc"),
        ("tokens", [1, 2, 3]),
        ("merges", [1]),
        ("scores", [0.0]),
        ("scores", ["x"]),
        ("token_type", [1] * (len(TOKENS) + 1)),
        ("token_type", [True] * len(TOKENS)),
        ("bos_token_id", 1.5),
        ("eos_token_id", "2"),
        ("add_bos_token", 1),
    ],
)
def test_part_of_another_kind(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(IntegrityError) as caught:
        identity_of(tmp_path, **{name: value})
    assert caught.value.code == "gguf-bad-metadata"
    assert caught.value.context["field"] == PREFIX + name


def test_control_token_that_is_not_utf8_is_visible(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(
        raw_gguf(
            kvs=[
                raw_kv(PREFIX + "model", 8, string_bytes("llama")),
                raw_kv(
                    PREFIX + "tokens",
                    9,
                    (8).to_bytes(4, "little") + (1).to_bytes(8, "little") + string_bytes(b"\xff"),
                ),
                raw_kv(
                    PREFIX + "token_type",
                    9,
                    (5).to_bytes(4, "little")
                    + (1).to_bytes(8, "little")
                    + (3).to_bytes(4, "little"),
                ),
            ]
        )
    )
    identity = tokenizer_identity(read_gguf(path))
    assert "special-token-not-utf8" in identity.warnings
    assert identity.special_tokens == {}


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    identity = tokenizer_identity(read_gguf(smollm2_path))
    assert (identity.kind, identity.pre, identity.n_tokens) == ("gpt2", "smollm", 49_152)
    assert identity.end_token_ids == (0, 2)
    assert identity.special_tokens["<|im_end|>"] == 2
    assert identity.warnings == ()
