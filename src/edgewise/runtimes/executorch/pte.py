"""What a ``.pte`` file says about itself, read without ExecuTorch.

The container is a FlatBuffer with the identifier ``ET12`` (ExecuTorch's ``schema/program.fbs``)
followed by segments of weights and delegate data. Field numbers here are positions in that schema;
FlatBuffers never renumbers them. Every offset is checked against the file before it is followed,
so a damaged or hostile file ends in a typed error and reaches no native loader.

Not read: tensors' contents, and what is inside a delegate's own data.
"""

from __future__ import annotations

import collections
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from edgewise.errors import InputError, IntegrityError
from edgewise.store.home import storage_error

__all__ = ["METHOD", "PteFile", "read_pte"]

METHOD: Final = "forward"

_IDENTIFIER: Final = b"ET12"
_EXTENDED: Final = b"eh00"
_HEADER = struct.Struct("<4sIQQQ")
_ITEMS_MAX: Final = 1 << 22

# Program
_PLANS = 1
# ExecutionPlan
_NAME, _VALUES, _OUTPUTS, _CHAINS, _OPERATORS, _DELEGATES, _ARENAS = 0, 2, 4, 5, 6, 7, 8
# Chain, Instruction, EValue (a union takes two places: its kind, then its table)
_INSTRUCTIONS, _KIND, _TABLE = 2, 0, 1
_KERNEL_CALL, _DELEGATE_CALL = 1, 2
_OTHER_CALLS: Final = {3: "move", 4: "jump", 5: "free"}
_INT, _BOOL = 2, 3


class PteFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program, as far as running and reporting it needs.

    Attributes:
        constants: Values of the methods that return one number, e.g. ``get_vocab_size``.
        delegate_calls: ``backend -> calls`` in one run of the main method.
        kernel_calls: ``operator -> calls`` that no backend took.
        arena_bytes: Memory the program plans for activations and the KV cache.
        segments_bytes: Bytes of weights and delegate data.
    """

    constants: dict[str, int]
    delegate_calls: dict[str, int]
    kernel_calls: dict[str, int]
    arena_bytes: int
    segments_bytes: int


def read_pte(path: Path) -> PteFile:
    """Return what the file says.

    Raises:
        InputError: there is no such file.
        IntegrityError: it is no ``.pte`` file, or a damaged one.
    """
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as m:
            view = memoryview(m)
            try:
                return _read(_Buffer(view, path.name))
            finally:
                view.release()
    except FileNotFoundError as error:
        raise InputError("file-missing", f"there is no file {path}") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise IntegrityError("pte-damaged", f"{path.name} is empty") from error
    except OSError as error:
        raise storage_error(error, path, "reading an artifact") from error


def _read(data: _Buffer) -> PteFile:
    segments_bytes = _check_extent(data)
    constants: dict[str, int] = {}
    main: int | None = None
    for plan in data.tables(data.root(), _PLANS):
        name = data.text(plan, _NAME)
        if name == METHOD:
            main = plan
        elif (value := _constant(data, plan)) is not None:
            constants[name] = value
    if main is None:
        raise IntegrityError(
            "pte-without-method",
            f"{data.name} has no method called {METHOD!r}",
            hint="export it again",
        )
    delegates, kernels = _calls(data, main)
    return PteFile(
        constants=constants,
        delegate_calls=delegates,
        kernel_calls=kernels,
        arena_bytes=sum(data.longs(main, _ARENAS)),
        segments_bytes=segments_bytes,
    )


def _check_extent(data: _Buffer) -> int:
    if data.raw(4, 4) != _IDENTIFIER:
        raise IntegrityError(
            "pte-invalid",
            f"{data.name} is no ExecuTorch program of a known version",
            context={"found": data.raw(4, 4).hex(), "expected": _IDENTIFIER.decode()},
            hint="build it again with the locked version of executorch",
        )
    magic, _, program, base, size = _HEADER.unpack(data.raw(8, _HEADER.size))
    if magic != _EXTENDED:
        return 0
    if max(program, base + size) > data.size:
        raise IntegrityError(
            "pte-truncated",
            f"{data.name} has {data.size} bytes and says it has {max(program, base + size)}",
            hint="copy or build it again",
        )
    return int(size)


def _constant(data: _Buffer, plan: int) -> int | None:
    outputs = data.ints(plan, _OUTPUTS)
    values = list(data.tables(plan, _VALUES))
    if len(outputs) != 1 or not 0 <= outputs[0] < len(values):
        return None
    kind = data.byte(values[outputs[0]], _KIND)
    table = data.table(values[outputs[0]], _TABLE)
    if table is None or kind not in {_INT, _BOOL}:
        return None
    return data.long(table, 0) if kind == _INT else int(data.byte(table, 0) != 0)


def _calls(data: _Buffer, plan: int) -> tuple[dict[str, int], dict[str, int]]:
    operators = [_operator(data, table) for table in data.tables(plan, _OPERATORS)]
    backends = [data.text(table, 0) for table in data.tables(plan, _DELEGATES)]
    delegates: collections.Counter[str] = collections.Counter()
    kernels: collections.Counter[str] = collections.Counter()
    for chain in data.tables(plan, _CHAINS):
        for instruction in data.tables(chain, _INSTRUCTIONS):
            kind = data.byte(instruction, _KIND)
            call = data.table(instruction, _TABLE)
            index = 0 if call is None else data.int32(call, 0)
            if kind == _KERNEL_CALL:
                kernels[_at(data, operators, index)] += 1
            elif kind == _DELEGATE_CALL:
                delegates[_at(data, backends, index)] += 1
            else:
                kernels[_OTHER_CALLS.get(kind, f"instruction-{kind}")] += 1
    return dict(sorted(delegates.items())), dict(sorted(kernels.items()))


def _operator(data: _Buffer, table: int) -> str:
    overload = data.text(table, 1)
    return data.text(table, 0) + (f".{overload}" if overload else "")


def _at(data: _Buffer, names: list[str], index: int) -> str:
    if not 0 <= index < len(names):
        raise data.damaged(f"an instruction names entry {index} of {len(names)}")
    return names[index]


class _Buffer:
    """Bounds-checked reads of a FlatBuffer. A table is the position at which it lies."""

    def __init__(self, view: memoryview, name: str) -> None:
        self._view = view
        self.name = name
        self.size = len(view)
        self._items_left = _ITEMS_MAX  # lists may overlap, so their sum is what needs a bound

    def damaged(self, why: str) -> IntegrityError:
        return IntegrityError(
            "pte-damaged", f"{self.name} is damaged: {why}", hint="copy or build it again"
        )

    def raw(self, at: int, count: int) -> bytes:
        if at < 0 or count < 0 or at + count > self.size:
            raise self.damaged(f"it points to byte {at} of {self.size}")
        return bytes(self._view[at : at + count])

    def root(self) -> int:
        return self._unsigned(0, 4)

    def table(self, table: int, field: int) -> int | None:
        at = self._field(table, field)
        return None if at is None else at + self._unsigned(at, 4)

    def tables(self, table: int, field: int) -> Iterator[int]:
        start, count = self._vector(table, field, 4)
        self._items_left -= count
        if self._items_left < 0:
            raise self.damaged("its lists are longer than any program's")
        for index in range(count):
            at = start + 4 * index
            yield at + self._unsigned(at, 4)

    def text(self, table: int, field: int) -> str:
        start, count = self._vector(table, field, 1)
        return self.raw(start, count).decode("utf-8", "replace")

    def ints(self, table: int, field: int) -> tuple[int, ...]:
        start, count = self._vector(table, field, 4)
        return struct.unpack(f"<{count}i", self.raw(start, 4 * count))

    def longs(self, table: int, field: int) -> tuple[int, ...]:
        start, count = self._vector(table, field, 8)
        return struct.unpack(f"<{count}q", self.raw(start, 8 * count))

    def byte(self, table: int, field: int) -> int:
        at = self._field(table, field)
        return 0 if at is None else self._unsigned(at, 1)

    def int32(self, table: int, field: int) -> int:
        at = self._field(table, field)
        return 0 if at is None else int.from_bytes(self.raw(at, 4), "little", signed=True)

    def long(self, table: int, field: int) -> int:
        at = self._field(table, field)
        return 0 if at is None else int.from_bytes(self.raw(at, 8), "little", signed=True)

    def _unsigned(self, at: int, count: int) -> int:
        return int.from_bytes(self.raw(at, count), "little")

    def _field(self, table: int, field: int) -> int | None:
        vtable = table - int.from_bytes(self.raw(table, 4), "little", signed=True)
        place = 4 + 2 * field
        if place + 2 > self._unsigned(vtable, 2):
            return None
        offset = self._unsigned(vtable + place, 2)
        return table + offset if offset else None

    def _vector(self, table: int, field: int, width: int) -> tuple[int, int]:
        at = self.table(table, field)
        if at is None:
            return 0, 0
        count = self._unsigned(at, 4)
        if at + 4 + count * width > self.size:
            raise self.damaged(f"a list of {count} entries does not fit")
        return at + 4, count
