"""Reading GGUF files: what is returned, and what is refused before it is read."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import pytest
from tests.builders import (
    TOKENS,
    raw_gguf,
    raw_kv,
    raw_tensor,
    string_bytes,
    tiny_gguf,
    tiny_metadata,
    tiny_tensors,
)

from edgewise.errors import InputError, IntegrityError
from edgewise.models import GgmlType, read_gguf


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path / "tiny.gguf")


def test_reads_what_the_reference_writer_wrote(tiny: Path) -> None:
    file = read_gguf(tiny)
    assert (file.version, file.alignment) == (3, 32)
    assert file.file_size_bytes == tiny.stat().st_size
    assert file.trailing_bytes == 0
    assert file.metadata["general.architecture"] == "llama"
    for key, value in tiny_metadata().items():
        expected = tuple(value) if isinstance(value, list) else value
        if isinstance(value, float):
            expected = pytest.approx(value)
        assert file.metadata[key] == expected, key
    assert file.metadata["tokenizer.ggml.tokens"] == TOKENS
    assert file.metadata["tokenizer.ggml.add_bos_token"] is False
    shapes = {tensor.name: tensor.shape[::-1] for tensor in file.tensors}
    assert shapes == tiny_tensors()


def assert_same_index(path: Path) -> None:
    file = read_gguf(path)
    reference = gguf.GGUFReader(path)
    assert len(file.tensors) == len(reference.tensors)
    for ours, theirs in zip(file.tensors, reference.tensors, strict=True):
        assert ours.name == theirs.name
        assert list(ours.shape) == theirs.shape.tolist()
        assert ours.type.name == theirs.tensor_type.name
        assert ours.offset_bytes == theirs.data_offset
        assert ours.size_bytes == theirs.n_bytes
        assert ours.n_elements == theirs.n_elements
    for key, field in reference.fields.items():
        if not key.startswith("GGUF."):
            contents = field.contents()
            assert file.metadata[key] == (
                tuple(contents) if isinstance(contents, list) else contents
            )


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_index_agrees_with_the_reference_reader(tmp_path: Path, alignment: Any) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", alignment=alignment)
    assert read_gguf(path).alignment == (alignment or 32)
    assert_same_index(path)


def test_type_sizes_agree_with_the_reference() -> None:
    sizes = {kind.value: size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    for kind in GgmlType:
        if kind.value in sizes and kind is not GgmlType.Q8_1:
            assert (kind.block_size, kind.type_size) == sizes[kind.value], kind.name
            assert gguf.GGMLQuantizationType(kind.value).name == kind.name
    # ggml's own block of 32 with two half-precision numbers; the package says 40.
    assert GgmlType.Q8_1.type_size == 36
    assert set(sizes) <= {kind.value for kind in GgmlType}


@pytest.mark.parametrize(
    ("kind", "layout", "value"),
    [
        (0, "B", 200),
        (1, "b", -7),
        (2, "H", 60000),
        (3, "h", -30000),
        (4, "I", 4_000_000_000),
        (5, "i", -2_000_000_000),
        (6, "f", 0.5),
        (7, "?", True),
        (10, "Q", 1 << 63),
        (11, "q", -(1 << 62)),
        (12, "d", 0.1),
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_every_type_of_value(
    tmp_path: Path, kind: Any, layout: Any, value: Any, version: Any
) -> None:
    scalar = raw_kv("k", kind, struct.pack("<" + layout, value))
    array = raw_kv("a", 9, struct.pack(f"<IQ3{layout}", kind, 3, value, value, value))
    path = tmp_path / "v.gguf"
    path.write_bytes(raw_gguf(version=version, kvs=[scalar, array]))
    file = read_gguf(path)
    assert file.version == version
    assert file.metadata == {"k": value, "a": (value, value, value)}
    assert type(file.metadata["k"]) is type(value)


def test_empty_arrays_scalar_tensors_and_zero_elements(tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    path.write_bytes(
        raw_gguf(
            kvs=[raw_kv("e", 9, struct.pack("<IQ", 8, 0))],
            tensors=[raw_tensor("none", [0, 4]), raw_tensor("one", [])],
            data_bytes=4,
        )
    )
    file = read_gguf(path)
    assert file.metadata == {"e": ()}
    assert [(t.size_bytes, t.n_elements) for t in file.tensors] == [(0, 0), (4, 1)]


def test_tokens_that_are_not_utf8_keep_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    path.write_bytes(
        raw_gguf(kvs=[raw_kv("t", 9, struct.pack("<IQ", 8, 1) + string_bytes(b"\xff"))])
    )
    tokens = read_gguf(path).metadata["t"]
    assert isinstance(tokens, tuple)
    assert [str(t).encode("utf-8", "surrogateescape") for t in tokens] == [b"\xff"]


def test_strings_across_the_buffer_boundary(tmp_path: Path) -> None:
    texts = [("x" * size) for size in (0, 1, 1_048_540, 3, 2_500_000, 0, 7)]
    body = struct.pack("<IQ", 8, len(texts)) + b"".join(map(string_bytes, texts))
    path = tmp_path / "v.gguf"
    path.write_bytes(raw_gguf(kvs=[raw_kv("t", 9, body), raw_kv("n", 4, struct.pack("<I", 5))]))
    assert read_gguf(path).metadata == {"t": tuple(texts), "n": 5}


def test_appended_bytes_are_counted(tiny: Path) -> None:
    with tiny.open("ab") as stream:
        stream.write(b"HTTP/1.1 416 Range Not Satisfiable")
    assert read_gguf(tiny).trailing_bytes == 34


def test_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_gguf(tmp_path / "none.gguf")
    assert caught.value.code == "model-not-found"
    assert caught.value.hint


def test_directory_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_gguf(tmp_path)
    assert caught.value.code == "model-not-a-file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    started = time.monotonic()
    with pytest.raises(InputError) as caught:
        read_gguf(tmp_path / "pipe")
    assert caught.value.code == "model-not-a-file"
    assert time.monotonic() - started < 1


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs device files")
def test_device_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        read_gguf("/dev/zero")
    assert caught.value.code == "model-not-a-file"


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs local sockets")
def test_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(InputError) as caught:
            read_gguf("s")
    assert caught.value.code == "model-not-a-file"


def test_a_path_that_cannot_be_is_an_input_error() -> None:
    with pytest.raises(InputError) as caught:
        read_gguf("a\0b")
    assert caught.value.code == "model-unreadable"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_unreadable_file_is_an_input_error(tiny: Path) -> None:
    tiny.chmod(0)
    with pytest.raises(InputError) as caught:
        read_gguf(tiny)
    assert caught.value.code == "model-unreadable"


def test_non_ascii_spaced_and_symlinked_paths(tmp_path: Path) -> None:
    folder = tmp_path / "mod\u00e8le \u6a21\u578b"
    folder.mkdir()
    path = tiny_gguf(folder / "a b.gguf")
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    assert read_gguf(link).tensors == read_gguf(str(path)).tensors


def test_import_is_light() -> None:
    code = (
        "import sys, edgewise.models, edgewise.models.gguf;"
        "print([m for m in ('numpy', 'jinja2', 'gguf') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout.strip() == "[]"


def test_all_names_exist() -> None:
    import edgewise.models

    for name in edgewise.models.__all__:
        assert hasattr(edgewise.models, name), name
    assert list(edgewise.models.__all__) == sorted(
        edgewise.models.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n)
    )


@pytest.mark.model
@pytest.mark.slow
def test_real_model_agrees_with_the_reference_and_is_fast(smollm2_path: Path) -> None:
    assert_same_index(smollm2_path)
    best = min(_seconds(smollm2_path) for _ in range(5))
    # Measured 0.04 s; the bound leaves room for a busy machine.
    assert best < 0.5


def _seconds(path: Path) -> float:
    started = time.perf_counter()
    read_gguf(path)
    return time.perf_counter() - started


def test_errors_name_path_field_and_offset(tiny: Path) -> None:
    raw = tiny.read_bytes()
    tiny.write_bytes(raw[:-1])
    with pytest.raises(IntegrityError) as caught:
        read_gguf(tiny)
    assert caught.value.code == "gguf-data-truncated"
    assert caught.value.context["path"] == str(tiny)
    assert caught.value.context["field"] == "output_norm.weight"
    assert caught.value.context["needed_bytes"] == len(raw)
    assert "fetch it again" in (caught.value.hint or "")
