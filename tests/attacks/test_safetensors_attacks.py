"""Malformed and hostile safetensors files: each kind is refused by its own code."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.builders import raw_safetensors

from edgewise.errors import IntegrityError
from edgewise.models import read_safetensors


def one(**changes: Any) -> Any:
    return {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


def two(begin: Any, end: Any) -> Any:
    return {**one(), "u": {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}}


DATA = b"\0" * 8
# name: (bytes, code after "safetensors-", field)
CASES = {
    "empty": (b"", "empty", "header_length"),
    "seven bytes": (b"\0" * 7, "truncated", "header_length"),
    "gguf": (b"GGUF" + b"\0" * 40, "bad-magic", "header_length"),
    "html": (b"<!DOCTYPE html><html></html>", "header-length", "header_length"),
    "zip": (b"PK\x03\x04" + b"\xff" * 40, "header-length", "header_length"),
    "length zero": (struct.pack("<Q", 0) + b"{}", "header-length", "header_length"),
    "length 2**64": (b"\xff" * 8 + b"{}", "header-length", "header_length"),
    "length above limit": (
        struct.pack("<Q", 100_000_001) + b"{}",
        "header-length",
        "header_length",
    ),
    "length beyond file": (struct.pack("<Q", 3) + b"{}", "truncated", "header"),
    "array": (raw_safetensors(b"[]"), "header-not-json", "header"),
    "leading space": (raw_safetensors(b" {}"), "header-not-json", "header"),
    "not utf-8": (raw_safetensors(b'{"\xff":1}'), "header-not-json", "header"),
    "cut json": (raw_safetensors(b'{"a":'), "header-not-json", "header"),
    "two values": (raw_safetensors(b"{}{}"), "header-not-json", "header"),
    "lone surrogate": (raw_safetensors(b'{"\\ud800":1}'), "header-not-json", "header"),
    "nan": (raw_safetensors(b'{"a":NaN}'), "header-not-json", "header"),
    "deep": (raw_safetensors(b'{"a":' + b"[" * 200_000), "header-not-json", "header"),
    "long number": (
        raw_safetensors(b'{"a":' + b"9" * 10_000 + b"}"),
        "header-not-json",
        "header",
    ),
    "duplicate tensor": (raw_safetensors(b'{"t":1,"t":2}'), "duplicate-key", "t"),
    "duplicate inside": (raw_safetensors(b'{"t":{"shape":1,"shape":2}}'), "duplicate-key", "shape"),
    "metadata list": (raw_safetensors({"__metadata__": []}), "bad-metadata", "__metadata__"),
    "metadata number": (
        raw_safetensors({"__metadata__": {"a": 1}}),
        "bad-metadata",
        "__metadata__",
    ),
    "entry number": (raw_safetensors({"t": 1}), "bad-entry", "t"),
    "entry without shape": (raw_safetensors({"t": {"dtype": "F32"}}), "bad-entry", "t"),
    "entry with more": (raw_safetensors(one(extra=1), DATA), "bad-entry", "t"),
    "unknown dtype": (raw_safetensors(one(dtype="F33"), DATA), "unknown-dtype", "t"),
    "dtype list": (raw_safetensors(one(dtype=["F32"]), DATA), "unknown-dtype", "t"),
    "shape text": (raw_safetensors(one(shape="2"), DATA), "bad-shape", "t"),
    "shape negative": (raw_safetensors(one(shape=[-2]), DATA), "bad-shape", "t"),
    "shape true": (raw_safetensors(one(shape=[True]), DATA), "bad-shape", "t"),
    "shape fraction": (raw_safetensors(one(shape=[2.0]), DATA), "bad-shape", "t"),
    "shape huge": (raw_safetensors(one(shape=[1 << 70]), DATA), "bad-shape", "t"),
    "shape long": (raw_safetensors(one(shape=[1] * 17), DATA), "bad-shape", "t"),
    "shape overflow": (raw_safetensors(one(shape=[1 << 60] * 16), DATA), "size-mismatch", "t"),
    "offsets one": (raw_safetensors(one(data_offsets=[0]), DATA), "bad-offsets", "t"),
    "offsets text": (raw_safetensors(one(data_offsets="08"), DATA), "bad-offsets", "t"),
    "offsets reversed": (raw_safetensors(one(data_offsets=[8, 0]), DATA), "bad-offsets", "t"),
    "offsets negative": (raw_safetensors(one(data_offsets=[-8, 0]), DATA), "bad-offsets", "t"),
    "data cut": (raw_safetensors(one(), DATA[:-1]), "data-truncated", "t"),
    "size mismatch": (raw_safetensors(one(shape=[3]), DATA), "size-mismatch", "t"),
    "half a byte": (
        raw_safetensors(one(dtype="F4", shape=[17]), DATA),
        "size-mismatch",
        "t",
    ),
    "hole at start": (
        raw_safetensors(one(data_offsets=[1, 9]), DATA + b"x"),
        "hole",
        "t",
    ),
    "hole between": (raw_safetensors(two(9, 10), DATA + b"xx"), "hole", "u"),
    "overlap": (raw_safetensors(two(7, 9), DATA + b"x"), "overlap", "u"),
    "same bytes twice": (raw_safetensors(two(0, 8), DATA), "overlap", "u"),
    "trailing bytes": (raw_safetensors(one(), DATA + b"HTTP/1.1 416"), "trailing-bytes", "data"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_has_its_code(name: str, tmp_path: Path) -> None:
    raw, code, field = CASES[name]
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError) as caught:
            read_safetensors(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    error = caught.value
    assert error.code == f"safetensors-{code}"
    assert error.context["field"] == field
    assert error.context["path"] == str(path)
    assert isinstance(error.context["offset_bytes"], int)
    assert error.hint
    assert peak_bytes < 16 << 20


VALID = raw_safetensors(two(8, 10), DATA + b"xx")


@given(
    at=st.integers(0, len(VALID) - 1),
    new=st.binary(max_size=9),
    length=st.integers(0, 9),
)
@settings(
    max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.slow
def test_mutated_files_are_read_or_refused(
    at: int, new: bytes, length: int, tmp_path: Path
) -> None:
    raw = VALID[:at] + new + VALID[at + length :]
    path = tmp_path / "fuzz.safetensors"
    path.write_bytes(raw)
    try:
        file = read_safetensors(path)
    except IntegrityError as error:
        assert {"path", "field", "offset_bytes"} <= error.context.keys()  # noqa: PT017
    else:
        assert sum(t.size_bytes for t in file.tensors) == len(raw) - file.data_offset_bytes
