"""Whether an answer is right, by rules that need no judge.

Each rule is strict and says why an answer fails. A reference that no answer could meet is an
error of the case, found before anything runs.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from edgewise.core import strict_json
from edgewise.core.tools import ToolCall
from edgewise.errors import InputError

__all__ = ["CheckKind", "check_reference", "is_correct"]

_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_TOLERANCE: Final = 1e-6
_PATTERN_CHARACTERS_MAX: Final = 4096


class CheckKind(StrEnum):
    """How answers are checked.

    ``EXACT``: the text is the reference, spaces around it apart. ``NUMBER``: the last number in
    the text is the reference. ``CHOICE``: the first word of the text is the reference, without
    regard to case and signs. ``REGEX``: the reference is found in the text. ``JSON``: the text is
    the reference as JSON value. ``CALL``: the answer is exactly the calls of the reference, a
    list of ``{name: {argument: [accepted values]}}``; ``""`` among the values: may be left out.
    """

    EXACT = "exact"
    NUMBER = "number"
    CHOICE = "choice"
    REGEX = "regex"
    JSON = "json"
    CALL = "call"


def check_reference(kind: CheckKind, reference: Any) -> None:
    """Refuse a reference that this kind of check cannot use.

    Raises:
        InputError: it is of another form (``case-reference-invalid``).
    """
    why = _REFERENCES[kind](reference)
    if why:
        raise InputError(
            "case-reference-invalid",
            f"the reference {str(reference)[:80]!r} does not suit the check {kind.value!r}: {why}",
            context={"check": kind.value},
            hint="see the documentation on escalation for the checks and their references",
        )


def is_correct(kind: CheckKind, reference: Any, text: str, calls: Sequence[ToolCall] = ()) -> bool:
    """Return whether a finished answer is right.

    Args:
        kind: The check.
        reference: One that :func:`check_reference` lets through.
        text: What the model said.
        calls: The calls it made.
    """
    if kind is CheckKind.CALL:
        return _calls_match(reference, calls)
    return _TEXTS[kind](reference, text)


def _exact(reference: Any, text: str) -> bool:
    return _normal(text).strip() == _normal(reference).strip()


def _number(reference: Any, text: str) -> bool:
    found = _NUMBER.findall(text)
    if not found:
        return False
    wanted = float(str(reference).replace(",", ""))
    return math.isclose(
        float(found[-1].replace(",", "")), wanted, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE
    )


def _choice(reference: Any, text: str) -> bool:
    words = re.findall(r"\w+", _normal(text).casefold())
    return bool(words) and words[0] == _normal(reference).strip().casefold()


def _regex(reference: Any, text: str) -> bool:
    return re.search(reference, text) is not None


def _json(reference: Any, text: str) -> bool:
    try:
        return _equal(strict_json.parse(text), reference)
    except strict_json.StrictJsonError:
        return False


def _normal(text: Any) -> str:
    return unicodedata.normalize("NFC", str(text))


_TEXTS: Final[dict[CheckKind, Callable[[Any, str], bool]]] = {
    CheckKind.EXACT: _exact,
    CheckKind.NUMBER: _number,
    CheckKind.CHOICE: _choice,
    CheckKind.REGEX: _regex,
    CheckKind.JSON: _json,
}


def _equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; a boolean is no number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    return bool(one == other)


def _calls_match(reference: Any, calls: Sequence[ToolCall]) -> bool:
    """Return whether these are the calls, in any order."""
    left = list(calls)
    if len(left) != len(reference):
        return False
    for wanted in reference:
        ((name, accepted),) = wanted.items()
        match = next((call for call in left if _call_matches(name, accepted, call)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _call_matches(name: str, accepted: dict[str, Any], call: ToolCall) -> bool:
    if call.name != name:
        return False
    given = msgspec.json.decode(call.arguments)
    if not isinstance(given, dict) or not given.keys() <= accepted.keys():
        return False
    return all(
        any(_accepts(value, given[key]) for value in values) if key in given else "" in values
        for key, values in accepted.items()
    )


def _accepts(accepted: Any, given: Any) -> bool:
    """Return whether a value is the accepted one; of texts, letters and figures count.

    In an object each key has a list of accepted values again, as in the Berkeley function calling
    leaderboard.
    """
    if isinstance(accepted, str) and isinstance(given, str):
        return _bare(accepted) == _bare(given)
    if isinstance(accepted, dict) and isinstance(given, dict):
        return given.keys() <= accepted.keys() and all(
            any(_accepts(value, given[key]) for value in values) if key in given else "" in values
            for key, values in accepted.items()
        )
    if isinstance(accepted, list) and isinstance(given, list):
        return len(accepted) == len(given) and all(map(_accepts, accepted, given))
    return _equal(accepted, given)


def _bare(text: str) -> str:
    return re.sub(r"[ ,./\-_*^'\"()]", "", _normal(text)).casefold()


def _bad_text(reference: Any) -> str:
    return "" if isinstance(reference, str) and reference.strip() else "it is no text"


def _bad_number(reference: Any) -> str:
    try:
        fine = not isinstance(reference, bool) and math.isfinite(
            float(str(reference).replace(",", ""))
        )
    except ValueError:
        fine = False
    return "" if fine else "it is no number"


def _bad_choice(reference: Any) -> str:
    one_word = isinstance(reference, str) and re.fullmatch(r"\s*\w+\s*", reference)
    return "" if one_word else "it is no single word"


def _bad_pattern(reference: Any) -> str:
    if not isinstance(reference, str) or not 0 < len(reference) <= _PATTERN_CHARACTERS_MAX:
        return f"it is no pattern of 1 to {_PATTERN_CHARACTERS_MAX} characters"
    try:
        re.compile(reference)
    except re.error as error:
        return f"it is no regular expression ({error})"
    return ""


def _bad_calls(reference: Any) -> str:
    if not isinstance(reference, list) or not reference:
        return "it is no list of calls"
    for call in reference:
        if not isinstance(call, dict) or len(call) != 1:
            return "a call is an object with one key, its name"
        (arguments,) = call.values()
        if not isinstance(arguments, dict) or not all(
            isinstance(values, list) and values for values in arguments.values()
        ):
            return "each argument has a list of accepted values"
    return ""


_REFERENCES: Final[dict[CheckKind, Callable[[Any], str]]] = {
    CheckKind.EXACT: _bad_text,
    CheckKind.NUMBER: _bad_number,
    CheckKind.CHOICE: _bad_choice,
    CheckKind.REGEX: _bad_pattern,
    CheckKind.JSON: lambda _reference: "",
    CheckKind.CALL: _bad_calls,
}
