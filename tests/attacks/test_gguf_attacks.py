"""Malformed and hostile GGUF files: each kind is refused by its own code, cheaply."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.builders import raw_gguf, raw_kv, raw_safetensors, raw_tensor, string_bytes, tiny_gguf

from edgewise.errors import EdgewiseError, IntegrityError
from edgewise.models import model_shape, read_gguf, tokenizer_identity

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


def kv_u32(key: str | bytes, value: int) -> bytes:
    return raw_kv(key, 4, U32.pack(value))


def array(key: str, kind: int, count: int, body: bytes = b"") -> bytes:
    return raw_kv(key, 9, U32.pack(kind) + U64.pack(count) + body)


HUGE = (1 << 64) - 1
# name: (bytes, code after "gguf-", field, offset or None where the layout decides)
CASES: dict[str, tuple[bytes, str, str, int | None]] = {
    "empty": (b"", "empty", "magic", 0),
    "three bytes": (b"GGU", "bad-magic", "magic", 0),
    "only magic": (b"GGUF", "truncated", "version", 4),
    "header cut": (raw_gguf()[:20], "truncated", "version", 4),
    "html": (b"<!DOCTYPE html><html><body>Log in", "bad-magic", "magic", 0),
    "zip": (b"PK\x03\x04" + b"\0" * 40, "bad-magic", "magic", 0),
    "safetensors": (raw_safetensors({"__metadata__": {}}), "bad-magic", "magic", 0),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", "bad-magic", "magic", 0),
    "ggjt": (b"tjgg" + b"\0" * 40, "bad-magic", "magic", 0),
    "version 0": (raw_gguf(version=0), "version-unsupported", "version", 4),
    "version 1": (raw_gguf(version=1), "version-unsupported", "version", 4),
    "version 4": (raw_gguf(version=4), "version-unsupported", "version", 4),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian", "version", 4),
    "tensor count": (raw_gguf(n_tensors=HUGE), "count-absurd", "tensor_count", 8),
    "tensor count near": (raw_gguf(n_tensors=1), "count-absurd", "tensor_count", 8),
    "kv count": (raw_gguf(n_kv=HUGE), "count-absurd", "metadata_kv_count", 16),
    "kv count above limit": (
        raw_gguf(n_kv=(1 << 16) + 1, data_bytes=1 << 20),
        "count-absurd",
        "metadata_kv_count",
        16,
    ),
    "kv missing": (raw_gguf(n_kv=2, kvs=[kv_u32("a" * 30, 1)]), "truncated", "key 1", None),
    "empty key": (raw_gguf(kvs=[kv_u32("", 1), kv_u32("b", 1)]), "key-invalid", "key 0", 24),
    "long key": (raw_gguf(kvs=[kv_u32("k" * 65_536, 1)]), "key-invalid", "key 0", 24),
    "huge key": (
        raw_gguf(kvs=[U64.pack(HUGE) + b"abcdefghijkl"]),
        "key-invalid",
        "key 0",
        24,
    ),
    "key not utf-8": (raw_gguf(kvs=[kv_u32(b"\xff\xfe", 1)]), "invalid-utf8", "key 0", 24),
    "duplicate key": (raw_gguf(kvs=[kv_u32("a", 1), kv_u32("a", 1)]), "duplicate-key", "a", 41),
    "unknown value type": (
        raw_gguf(kvs=[raw_kv("a", 13, b"\0" * 8)]),
        "unknown-value-type",
        "a",
        33,
    ),
    "negative value type": (
        raw_gguf(kvs=[raw_kv("a", 0xFFFFFFFF, b"\0" * 8)]),
        "unknown-value-type",
        "a",
        33,
    ),
    "value cut": (raw_gguf(kvs=[raw_kv("a", 10, b"\0" * 4)]), "truncated", "a", 37),
    "bool of two": (raw_gguf(kvs=[raw_kv("a", 7, b"\x02")]), "bad-bool", "a", 37),
    "bool array of two": (raw_gguf(kvs=[array("a", 7, 2, b"\x01\x02")]), "bad-bool", "a", 49),
    "text not utf-8": (
        raw_gguf(kvs=[raw_kv("a", 8, string_bytes(b"\xc3\x28"))]),
        "invalid-utf8",
        "a",
        37,
    ),
    "text longer than file": (
        raw_gguf(kvs=[raw_kv("a", 8, U64.pack(1 << 20))]),
        "truncated",
        "a",
        45,
    ),
    "text longer than allowed": (
        raw_gguf(kvs=[raw_kv("a", 8, U64.pack(HUGE))]),
        "string-too-long",
        "a",
        37,
    ),
    "array of arrays": (raw_gguf(kvs=[array("a", 9, 1, b"\0" * 12)]), "nested-array", "a", 37),
    "array of unknown": (
        raw_gguf(kvs=[array("a", 99, 1, b"\0" * 12)]),
        "unknown-value-type",
        "a",
        37,
    ),
    "array count": (raw_gguf(kvs=[array("a", 4, HUGE)]), "array-too-large", "a", 41),
    "array count overflow": (
        raw_gguf(kvs=[array("a", 12, 1 << 61, b"\0" * 64)]),
        "array-too-large",
        "a",
        41,
    ),
    "array one too many": (
        raw_gguf(kvs=[array("a", 4, 3, b"\0" * 8)]),
        "array-too-large",
        "a",
        41,
    ),
    "text array count": (
        raw_gguf(kvs=[array("a", 8, 1 << 40, b"\0" * 64)]),
        "array-too-large",
        "a",
        41,
    ),
    "text array above limit": (
        raw_gguf(kvs=[array("a", 0, (1 << 22) + 1, b"\0" * ((1 << 22) + 1))]),
        "array-too-large",
        "a",
        41,
    ),
    "text in array too long": (
        raw_gguf(kvs=[array("a", 8, 2, string_bytes("ok") + U64.pack(HUGE))]),
        "string-too-long",
        "a",
        59,
    ),
    "text in array cut": (
        raw_gguf(kvs=[array("a", 8, 2, string_bytes("ok") + U64.pack(9) + b"x")]),
        "truncated",
        "a",
        67,
    ),
    "alignment zero": (
        raw_gguf(kvs=[kv_u32("general.alignment", 0)]),
        "bad-alignment",
        "general.alignment",
        49,
    ),
    "alignment 48": (
        raw_gguf(kvs=[kv_u32("general.alignment", 48)]),
        "bad-alignment",
        "general.alignment",
        49,
    ),
    "alignment 4": (
        raw_gguf(kvs=[kv_u32("general.alignment", 4)]),
        "bad-alignment",
        "general.alignment",
        49,
    ),
    "alignment u64": (
        raw_gguf(kvs=[raw_kv("general.alignment", 10, U64.pack(32))]),
        "bad-alignment",
        "general.alignment",
        49,
    ),
    "alignment beyond the file": (
        raw_gguf(kvs=[kv_u32("general.alignment", 1 << 31)], tensors=[raw_tensor("t", [8])]),
        "data-truncated",
        "t",
        1 << 31,
    ),
    "tensor name empty": (
        raw_gguf(tensors=[raw_tensor("", [8])], data_bytes=32),
        "tensor-name-invalid",
        "tensor 0",
        24,
    ),
    "tensor name long": (
        raw_gguf(tensors=[raw_tensor("n" * 64, [8])], data_bytes=32),
        "tensor-name-invalid",
        "tensor 0",
        24,
    ),
    "tensor name not utf-8": (
        raw_gguf(tensors=[raw_tensor(b"\xff", [8])], data_bytes=32),
        "invalid-utf8",
        "tensor 0",
        24,
    ),
    "duplicate tensor": (
        raw_gguf(tensors=[raw_tensor("t", [8]), raw_tensor("t", [8], 0, 32)], data_bytes=64),
        "duplicate-tensor",
        "t",
        57,
    ),
    "five dimensions": (
        raw_gguf(tensors=[raw_tensor("t", [1] * 5)], data_bytes=32),
        "too-many-dimensions",
        "t",
        33,
    ),
    "huge dimension count": (
        raw_gguf(tensors=[raw_tensor("t", [8], n_dims=0xFFFFFFFF)], data_bytes=32),
        "too-many-dimensions",
        "t",
        33,
    ),
    "shape overflow": (
        raw_gguf(tensors=[raw_tensor("t", [1 << 32, 1 << 32])], data_bytes=32),
        "shape-overflow",
        "t",
        37,
    ),
    "negative dimension": (
        raw_gguf(tensors=[raw_tensor("t", [HUGE])], data_bytes=32),
        "shape-overflow",
        "t",
        37,
    ),
    "overflow hidden by a zero": (
        raw_gguf(tensors=[raw_tensor("t", [0, 1 << 40, 1 << 40])], data_bytes=32),
        "shape-overflow",
        "t",
        37,
    ),
    "unknown tensor type": (
        raw_gguf(tensors=[raw_tensor("t", [256], 43)], data_bytes=512),
        "unknown-tensor-type",
        "t",
        45,
    ),
    "removed tensor type": (
        raw_gguf(tensors=[raw_tensor("t", [256], 31)], data_bytes=512),
        "removed-tensor-type",
        "t",
        45,
    ),
    "row of 31": (
        raw_gguf(tensors=[raw_tensor("t", [31, 32], 2)], data_bytes=2048),
        "row-not-divisible",
        "t",
        37,
    ),
    "scalar in blocks": (
        raw_gguf(tensors=[raw_tensor("t", [], 2)], data_bytes=2048),
        "row-not-divisible",
        "t",
        37,
    ),
    "offset misaligned": (
        raw_gguf(tensors=[raw_tensor("t", [8], 0, 8)], data_bytes=64),
        "offset-misaligned",
        "t",
        49,
    ),
    "offset with a gap": (
        raw_gguf(tensors=[raw_tensor("t", [8], 0, 32)], data_bytes=64),
        "offset-unexpected",
        "t",
        49,
    ),
    "offset overlapping": (
        raw_gguf(tensors=[raw_tensor("t", [8]), raw_tensor("u", [8])], data_bytes=64),
        "offset-unexpected",
        "u",
        82,
    ),
    "offset near 2**64": (
        raw_gguf(tensors=[raw_tensor("t", [8], 0, HUGE - 31)], data_bytes=64),
        "offset-unexpected",
        "t",
        49,
    ),
    "data cut": (
        raw_gguf(tensors=[raw_tensor("t", [8])], data_bytes=31),
        "data-truncated",
        "t",
        64,
    ),
    "no data": (
        raw_gguf(tensors=[raw_tensor("t", [1 << 60], 24)]),
        "data-truncated",
        "t",
        64,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_has_its_code(name: str, tmp_path: Path) -> None:
    raw, code, field, offset = CASES[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError) as caught:
            read_gguf(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    error = caught.value
    assert error.code == f"gguf-{code}"
    assert error.context["field"] == field
    assert error.context["path"] == str(path)
    if offset is not None:
        assert error.context["offset_bytes"] == offset
    assert error.hint
    # Never more than the buffer and what the file itself holds.
    assert peak_bytes < (4 << 20) + 3 * len(raw)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("html", "login"),
        ("zip", "zip archive"),
        ("safetensors", "safetensors"),
        ("lfs pointer", "git lfs pull"),
        ("ggjt", "before GGUF"),
        ("version 1", "convert"),
        ("big endian", "big-endian"),
        ("removed tensor type", "quantise"),
        ("data cut", "incomplete"),
    ],
)
def test_hint_says_what_it_is(name: str, words: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(CASES[name][0])
    with pytest.raises(IntegrityError) as caught:
        read_gguf(path)
    assert words in (caught.value.hint or "")


def test_header_is_bounded_whatever_the_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.models.gguf.HEADER_BYTES_MAX", 4096)
    path = tmp_path / "m.gguf"
    path.write_bytes(raw_gguf(kvs=[raw_kv("a", 8, string_bytes("x" * 5000))]))
    with pytest.raises(IntegrityError) as caught:
        read_gguf(path)
    assert caught.value.code == "gguf-header-too-large"


def test_a_sparse_file_of_a_terabyte_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with path.open("wb") as stream:
        stream.write(raw_gguf(n_kv=1, kvs=[raw_kv("a", 8, U64.pack(1 << 39))]))
        try:
            stream.truncate(1 << 40)
        except OSError:
            pytest.skip("the file system has no such files")
    with pytest.raises(IntegrityError) as caught:
        read_gguf(path)
    assert caught.value.code == "gguf-string-too-long"


@pytest.mark.slow
def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    raw = tiny_bytes()
    path = tmp_path / "m.gguf"
    for length in [*range(0, 2600, 7), *range(2600, len(raw), 997), len(raw) - 1]:
        path.write_bytes(raw[:length])
        with pytest.raises(IntegrityError):
            read_gguf(path)


@cache
def tiny_bytes() -> bytes:
    with TemporaryDirectory() as folder:
        return tiny_gguf(Path(folder) / "t.gguf").read_bytes()


HEADER_BYTES = 3000

mutation = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, HEADER_BYTES), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 80_000), st.just(0)),
    st.tuples(st.just("drop"), st.integers(0, HEADER_BYTES), st.integers(1, 64)),
    st.tuples(st.just("double"), st.integers(0, HEADER_BYTES), st.integers(1, 64)),
    st.tuples(st.just("huge"), st.integers(0, HEADER_BYTES), st.integers(1, 8)),
    st.tuples(st.just("zero"), st.integers(0, HEADER_BYTES), st.integers(1, 8)),
)


@given(mutations=st.lists(mutation, min_size=1, max_size=4))
@settings(
    max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.slow
def test_mutated_files_are_read_or_refused(mutations: Any, tmp_path: Path) -> None:
    raw = mutated(mutations)
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(raw)
    started = time.perf_counter()
    tracemalloc.start()
    try:
        file, refusal = answer(read_gguf, path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 << 20
    assert time.perf_counter() - started < 1
    if refusal is not None:
        assert isinstance(refusal, IntegrityError)
        assert refusal.code.startswith("gguf-")
        assert {"path", "field", "offset_bytes"} <= refusal.context.keys()
    else:
        assert all(t.offset_bytes + t.size_bytes <= len(raw) for t in file.tensors)
        # Whatever survives the reader still gets a typed answer.
        answer(model_shape, file)
        answer(tokenizer_identity, file)


def answer(question: Any, subject: Any) -> Any:
    """Return a result or a deliberate error; anything else fails the test."""
    try:
        return question(subject), None
    except EdgewiseError as error:
        return None, error


def mutated(mutations: Any) -> bytes:
    raw = bytearray(tiny_bytes())
    for what, at, how in mutations:
        old = bytes(raw[at : at + how])
        if what == "flip" and at < len(raw):
            raw[at] ^= how
        elif what == "cut":
            del raw[at:]
        elif what in NEW_BYTES:
            raw[at : at + how] = NEW_BYTES[what](old)
    return bytes(raw)


NEW_BYTES: dict[str, Callable[[bytes], bytes]] = {
    "drop": lambda _: b"",
    "double": lambda old: old + old,
    "huge": lambda old: b"\xff" * len(old),
    "zero": lambda old: b"\0" * len(old),
}
