"""Reading safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.builders import raw_safetensors

from edgewise.errors import InputError
from edgewise.models import read_safetensors


def entry(dtype: Any, shape: Any, begin: Any, end: Any) -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_reads_the_index(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    header = {
        "__metadata__": {"format": "pt"},
        "second": entry("BF16", [3, 2], 16, 28),
        "first": entry("F32", [4], 0, 16),
        "none": entry("F32", [0, 7], 28, 28),
        "scalar": entry("I8", [], 28, 29),
        "four bits": entry("F4", [3, 2], 29, 32),
    }
    raw = raw_safetensors(header, b"\0" * 32)
    path.write_bytes(raw)
    file = read_safetensors(path)
    assert file.metadata == {"format": "pt"}
    assert file.data_offset_bytes == len(raw) - 32
    assert file.file_size_bytes == len(raw)
    assert [(t.name, t.shape, t.size_bytes) for t in file.tensors] == [
        ("first", (4,), 16),
        ("second", (3, 2), 12),
        ("none", (0, 7), 0),
        ("scalar", (), 1),
        ("four bits", (3, 2), 3),
    ]
    assert file.tensors[1].offset_bytes == file.data_offset_bytes + 16


def test_header_padded_with_spaces(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(
        raw_safetensors(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   ', b"x")
    )
    assert read_safetensors(path).tensors[0].dtype == "U8"


def test_no_tensors(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw_safetensors({}))
    assert read_safetensors(path).tensors == ()


@pytest.mark.parametrize(("name", "code"), [("none", "model-not-found"), (".", "model-not-a-file")])
def test_not_a_file(tmp_path: Path, name: str, code: Any) -> None:
    with pytest.raises(InputError) as caught:
        read_safetensors(tmp_path / name)
    assert caught.value.code == code
