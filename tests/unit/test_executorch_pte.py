"""A ``.pte`` is read from its bytes, and no bytes bring anything but a typed error."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.errors import EdgewiseError, InputError, IntegrityError
from edgewise.runtimes.executorch.pte import PteFile, read_pte


class Ref:
    """A table: ``field -> ("u8"|"i32"|"i64", number)``, or text, or a list, or another table."""

    def __init__(self, **fields) -> None:
        self.fields = {int(name[1:]): value for name, value in fields.items()}


SCALARS = {"u8": "<B", "u32": "<I", "i32": "<i", "i64": "<q"}


def write(data: bytearray, value) -> int:
    """Append what a reference points to; return where it lies."""
    data.extend(b"\0" * (-len(data) % 8))
    if isinstance(value, str):
        start = len(data)
        data += struct.pack("<I", len(value.encode())) + value.encode() + b"\0"
        return start
    if isinstance(value, list):
        return write_list(data, value)
    slots, offset = {}, 4
    for field, content in sorted(value.fields.items()):
        size = struct.calcsize(SCALARS[content[0]]) if isinstance(content, tuple) else 4
        slots[field] = offset
        offset += size
    entries = [slots.get(field, 0) for field in range(max(slots, default=-1) + 1)]
    vtable = len(data)
    data += struct.pack(f"<HH{len(entries)}H", 4 + 2 * len(entries), offset, *entries)
    table = len(data)
    data += struct.pack("<i", table - vtable) + b"\0" * (offset - 4)
    for field, content in value.fields.items():
        at = table + slots[field]
        if isinstance(content, tuple):
            struct.pack_into(SCALARS[content[0]], data, at, content[1])
        else:
            struct.pack_into("<I", data, at, write(data, content) - at)
    return table


def write_list(data: bytearray, values: list[object]) -> int:
    wide = any(isinstance(value, int) and value >= 1 << 31 for value in values)
    width = 8 if wide else 4
    start = len(data)
    data += struct.pack("<I", len(values)) + b"\0" * (width * len(values))
    for index, value in enumerate(values):
        at = start + 4 + width * index
        if isinstance(value, int):
            struct.pack_into("<q" if wide else "<i", data, at, value)
        else:
            struct.pack_into("<I", data, at, write(data, value) - at)
    return start


def constant(name: str, kind: int, value: tuple[str, int]) -> Ref:
    return Ref(f0=name, f2=[Ref(f0=("u8", kind), f1=Ref(f0=value))], f4=[0])


def call(kind: int, index: int) -> Ref:
    return Ref(f0=("u8", kind), f1=Ref(f0=("i32", index)))


def program(
    *, method: str = "forward", calls: list[Ref] | None = None, segments: int = 64
) -> bytes:
    if calls is None:
        calls = [call(1, 0), call(2, 0), call(2, 0), call(1, 1), call(1, 1), call(5, 0)]
    main = Ref(
        f0=method,
        f5=[Ref(f2=calls)],
        f6=[Ref(f0="aten::mean", f1="out"), Ref(f0="llama::custom_sdpa", f1="")],
        f7=[Ref(f0="XnnpackBackend")],
        f8=[1 << 32, 5],
    )
    plans = [
        main,
        constant("get_vocab_size", 2, ("i64", 49152)),
        constant("enable_dynamic_shape", 3, ("u8", 1)),
        constant("get_scale", 4, ("i64", 0)),
    ]
    data = bytearray(40)
    data[4:8] = b"ET12"
    struct.pack_into("<I", data, 0, write(data, Ref(f0=("u32", 0), f1=plans)))
    struct.pack_into("<4sIQQQ", data, 8, b"eh00", 32, len(data), len(data), segments)
    return bytes(data) + b"w" * segments


def read(folder: Path, data: bytes) -> PteFile:
    path = folder / "model.pte"
    path.write_bytes(data)
    return read_pte(path)


def test_a_program_says_what_it_calls(tmp_path: Path) -> None:
    assert read(tmp_path, program()) == PteFile(
        constants={"get_vocab_size": 49152, "enable_dynamic_shape": 1},
        delegate_calls={"XnnpackBackend": 2},
        kernel_calls={"aten::mean.out": 1, "free": 1, "llama::custom_sdpa": 2},
        arena_bytes=(1 << 32) + 5,
        segments_bytes=64,
    )


def test_a_cut_program_is_truncated(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError) as refused:
        read(tmp_path, program()[:-1])
    assert refused.value.code == "pte-truncated"


@pytest.mark.parametrize("data", [b"", b"\0", b"GGUF" * 9, b"\0\0\0\0ET11" + b"\0" * 64])
def test_what_is_no_program_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(IntegrityError):
        read(tmp_path, data)


def test_an_absent_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_pte(tmp_path / "model.pte")


def test_a_program_without_the_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError) as refused:
        read(tmp_path, program(method="other"))
    assert refused.value.code == "pte-without-method"


@pytest.mark.parametrize("index", [-1, 2, 1 << 30])
def test_a_call_of_an_absent_operator_is_refused(tmp_path: Path, index: int) -> None:
    with pytest.raises(IntegrityError) as refused:
        read(tmp_path, program(calls=[call(1, index)]))
    assert refused.value.code == "pte-damaged"


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), flips=st.integers(1, 8), cut=st.booleans())
def test_damage_is_found_or_harmless(tmp_path: Path, seed: int, flips: int, cut: bool) -> None:
    chance = random.Random(seed)
    data = bytearray(program(segments=0))
    for _ in range(flips):
        data[chance.randrange(len(data))] = chance.randrange(256)
    if cut:
        del data[chance.randrange(len(data)) :]
    try:
        read(tmp_path, bytes(data))
    except EdgewiseError as error:
        assert isinstance(error, IntegrityError)  # noqa: PT017 - any other type is a failure
