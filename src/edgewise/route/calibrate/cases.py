"""Cases to calibrate on: one JSON object a line, with what was measured and whether it was right.

A case holds no content: signals are numbers, the identifier is the caller's. Every error names
the line. Nothing is dropped in silence, and a case given twice is refused, since two halves of a
pair would stand on both sides of the split.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from edgewise.core import strict_json
from edgewise.core.canonical import digest_of
from edgewise.errors import InputError

__all__ = [
    "UNSLICED",
    "Case",
    "Lines",
    "note_id",
    "parse_cases",
    "read_lines",
    "reserved_slice",
    "slice_of",
    "split",
]

# The slice of all cases where they are not sliced; no case may have it as a value of its own.
UNSLICED: Final = "all"
_DEPTH_MAX: Final = 64
_HINT: Final = (
    "a case is {id, signals: {name: number}, correct: true or false, slices: {key: value}}; "
    "see the documentation on escalation"
)


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer of the local model, judged.

    Attributes:
        id: Name of the case, once in a set.
        signals: Numbers or verdicts by name, e.g. those of
            :meth:`edgewise.core.signals.Signals.features`.
        correct: Whether the answer was right.
        slices: Values by key, e.g. ``{"task": "dates", "language": "de"}``.
        fingerprint: The deployment that answered; empty when nobody noted it.
        prompt_sha256: Digest of what is the same in all prompts (instruction, schema, tools);
            empty when nobody noted it.
    """

    id: str
    signals: dict[str, float | bool]
    correct: bool
    slices: dict[str, str] = {}
    fingerprint: str = ""
    prompt_sha256: str = ""


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of a file of lines, with their line numbers, and the digest of its bytes."""

    objects: tuple[tuple[int, dict[str, Any]], ...]
    sha256: str


def read_lines(data: bytes, *, hint: str = _HINT) -> Lines:
    """Return the objects of JSON lines; empty lines are skipped.

    Args:
        data: The lines.
        hint: What a case is, said of a line that is no JSON object.

    Raises:
        InputError: the data is not UTF-8 (``cases-unreadable``), a line is no JSON object
            (``case-malformed``), or there is none (``cases-empty``).
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(
            "cases-unreadable",
            f"line {line} is not valid UTF-8: byte {data[error.start]:#04x}",
            context={"line": line, "offset_bytes": error.start},
            hint="write the cases as UTF-8",
        ) from error
    objects = tuple(_objects(text, hint))
    if not objects:
        raise InputError("cases-empty", "there are no cases", hint="write one JSON object a line")
    return Lines(objects=objects, sha256=hashlib.sha256(data).hexdigest())


def parse_cases(lines: Lines) -> tuple[Case, ...]:
    """Return recorded cases.

    Raises:
        InputError: a field is missing, unknown or of another type (``case-malformed``), a signal
            is no finite number (``case-signal-invalid``), an id comes twice
            (``case-duplicate``), or several deployments answered (``cases-mixed``).
    """
    found: list[Case] = []
    seen: dict[str, int] = {}
    for number, value in lines.objects:
        case = _case(number, value)
        note_id(seen, case.id, number)
        found.append(case)
    for field in ("fingerprint", "prompt_sha256"):
        values = sorted({str(getattr(case, field)) for case in found})
        if len(values) > 1:
            raise InputError(
                "cases-mixed",
                f"the cases have {len(values)} values of {field}: one calibration is of one "
                "deployment and one prompt template",
                context={"field": field, "values": values[:8]},
                hint="calibrate each by itself",
            )
    return tuple(found)


def note_id(seen: dict[str, int], name: str, number: int) -> None:
    """Note on which line an id stands.

    Raises:
        InputError: it stood on another one before (``case-duplicate``).
    """
    first = seen.setdefault(name, number)
    if first != number:
        raise InputError(
            "case-duplicate",
            f"lines {first} and {number} have the same id {name[:80]!r}",
            context={"line": number, "first": first},
            hint="leave one out, or give them ids of their own",
        )


def reserved_slice(slices: Mapping[str, str]) -> str | None:
    """Return why a case cannot have these slices; ``None`` where it can."""
    for key, value in slices.items():
        if value == UNSLICED:
            return f"its slice {key[:80]!r} is {UNSLICED!r}, which stands for cases without slices"
    return None


def slice_of(case: Case, key: str | None) -> str | None:
    """Return the slice of a case by a key; ``None`` where the case does not have it."""
    return UNSLICED if key is None else case.slices.get(key)


def split(
    cases: tuple[Case, ...], *, fit_share: float, seed: int, key: str | None
) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Return the cases to fit on and those to calibrate on, each slice split by itself.

    The order in a slice is that of a digest of seed and id: it depends neither on the order in
    the file nor on what the cases hold.
    """
    groups: dict[str, list[tuple[str, Case]]] = {}
    for case in cases:
        place = digest_of([seed, case.id])
        groups.setdefault(slice_of(case, key) or "", []).append((place, case))
    fit: list[tuple[str, Case]] = []
    rest: list[tuple[str, Case]] = []
    for group in groups.values():
        group.sort(key=lambda pair: pair[0])
        cut = round(len(group) * fit_share)
        fit += group[:cut]
        rest += group[cut:]
    return _in_order(fit), _in_order(rest)


def _in_order(placed: list[tuple[str, Case]]) -> tuple[Case, ...]:
    return tuple(case for _, case in sorted(placed, key=lambda pair: pair[0]))


def _objects(text: str, hint: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # Not splitlines: it would also split at characters that may stand within a JSON text.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = strict_json.parse(line, depth_max=_DEPTH_MAX)
        except strict_json.StrictJsonError as error:
            flawed_number = error.flaw is strict_json.Flaw.NUMBER
            raise _malformed(number, error.message, signal=flawed_number, hint=hint) from error
        if not isinstance(value, dict):
            raise _malformed(number, "it is no JSON object", hint=hint)
        yield number, value


def _case(number: int, value: dict[str, Any]) -> Case:
    signals = value.get("signals")
    for name, signal in signals.items() if isinstance(signals, dict) else ():
        if not isinstance(signal, int | float):
            raise _malformed(number, f"the signal {name[:80]!r} is no number", signal=True)
    try:
        case = msgspec.convert(value, Case)
    except msgspec.ValidationError as error:
        raise _malformed(number, str(error)) from error
    if not case.id:
        raise _malformed(number, "its id is empty")
    reserved = reserved_slice(case.slices)
    if reserved is not None:
        raise _malformed(number, reserved)
    if not case.signals:
        raise _malformed(number, "it has no signals", signal=True)
    for name, signal in case.signals.items():
        if not math.isfinite(signal):
            raise _malformed(number, f"the signal {name[:80]!r} is {signal}", signal=True)
    return case


def _malformed(number: int, why: str, *, signal: bool = False, hint: str = _HINT) -> InputError:
    return InputError(
        "case-signal-invalid" if signal else "case-malformed",
        f"line {number} is no case: {why}",
        context={"line": number},
        hint=hint,
    )
