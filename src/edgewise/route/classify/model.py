"""A classifier of tasks as a file: whole numbers, so that it says the same on every device.

A multinomial logistic model over hashed words. Its file is verified by the digest in its evidence
before a byte of it is decoded; what it holds is checked all the same.
"""

from __future__ import annotations

import array
import hashlib
import math
import re
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from edgewise.core.canonical import canonical_json
from edgewise.errors import IntegrityError
from edgewise.route.classify.texts import BUCKETS, FORM, features

__all__ = ["MODEL_BYTES_MAX", "TASKS_MAX", "TASK_NAME", "TaskModel", "quantised", "score_of"]

TASK_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")
TASKS_MAX: Final = 32
MODEL_BYTES_MAX: Final = 4 << 20
SCALE: Final = 2048  # a weight of 1.0; what 16 bits hold is then up to 16
_LARGEST: Final = 2**15 - 1
_DIGITS: Final = 6  # of a risk: what is stored is what is compared


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file holds.

    Attributes:
        schema_version: Version of this form.
        form: How a text becomes features.
        tasks: Names of the classes.
        bias: For each class, in units of 1/2048.
        weights: For each class, 16-bit whole numbers, little-endian, one for each bucket.
    """

    schema_version: int = 1
    form: str = FORM
    tasks: tuple[str, ...]
    bias: tuple[int, ...]
    weights: tuple[bytes, ...]


class TaskModel:
    """A classifier. It holds no text; see :mod:`edgewise.route.classify.texts` for what it sees."""

    def __init__(
        self, tasks: Sequence[str], bias: Sequence[int], weights: Sequence[array.array[int]]
    ) -> None:
        """Take what the file holds, decoded; ``weights`` has one row for each task."""
        self.tasks = tuple(tasks)
        self._bias = tuple(bias)
        self._rows = tuple(weights)

    @classmethod
    def from_bytes(cls, data: bytes) -> TaskModel:
        """Return the classifier of a file's bytes.

        Raises:
            IntegrityError: they are none that this version reads (``task-model-invalid``).
        """
        try:
            found = msgspec.json.decode(data, type=_File)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _invalid(str(error)) from error
        why = _flaw(found)
        if why:
            raise _invalid(why)
        return cls(found.tasks, found.bias, [_unpacked(row) for row in found.weights])

    def to_bytes(self) -> bytes:
        """Return the file's bytes: the same for the same numbers."""
        rows = tuple(_packed(row) for row in self._rows)
        return canonical_json(_File(tasks=self.tasks, bias=self._bias, weights=rows))

    @property
    def sha256(self) -> str:
        """Return the digest of the file's bytes."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def judge(self, text: str) -> tuple[str, float] | None:
        """Return the likeliest task and the estimated probability that it is another one.

        ``None`` where nothing in the text is known: what remains then is how frequent the tasks
        were, and nothing of this text. Among equals the first task is said.
        """
        seen = features(text)
        if not any(row[at] for row in self._rows for at in seen):
            return None
        length = math.sqrt(len(seen)) * SCALE
        logits = [
            bias / SCALE + sum(map(row.__getitem__, seen)) / length
            for bias, row in zip(self._bias, self._rows, strict=True)
        ]
        most = max(logits)
        likely = 1 / math.fsum(math.exp(logit - most) for logit in logits)
        return self.tasks[logits.index(most)], round(1 - likely, _DIGITS)


def score_of(risk: float) -> float:
    """Return the score of a risk: of two risks of six digits, the lower has the higher score."""
    return round(1 - risk, _DIGITS)


def quantised(weights: Sequence[float]) -> array.array[int]:
    """Return weights as the file holds them."""
    return array.array("h", [max(-_LARGEST, min(_LARGEST, round(w * SCALE))) for w in weights])


def _flaw(found: _File) -> str:
    names = found.tasks
    if found.schema_version != 1 or found.form != FORM:
        return f"its form is {found.form[:40]!r}, version {found.schema_version}"
    if not 2 <= len(names) <= TASKS_MAX or len(set(names)) != len(names):
        return f"it has {len(names)} tasks, or one twice"
    if not all(TASK_NAME.fullmatch(name) for name in names):
        return "the name of a task is none"
    if len(found.bias) != len(names) or len(found.weights) != len(names):
        return "it has not as many rows as tasks"
    if any(abs(one) > _LARGEST for one in found.bias):
        return "a bias is out of its range"
    if any(len(row) != 2 * BUCKETS for row in found.weights):
        return "a row has not as many weights as there are buckets"
    return ""


def _packed(row: array.array[int]) -> bytes:
    return _little(row).tobytes()


def _unpacked(data: bytes) -> array.array[int]:
    row = array.array("h")
    row.frombytes(data)
    return _little(row)


def _little(row: array.array[int]) -> array.array[int]:
    if sys.byteorder == "little":
        return row
    turned = array.array("h", row)
    turned.byteswap()
    return turned


def _invalid(why: str) -> IntegrityError:
    return IntegrityError(
        "task-model-invalid",
        f"this is no classifier of tasks that can be used: {why}",
        hint="learn it again with `edgewise classify learn`, or copy it again",
    )
