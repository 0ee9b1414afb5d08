"""From the bytes of a body to a typed value, refusing by name whatever would be ignored.

Strict JSON: UTF-8, no key twice, no NaN, a bounded depth. Then the shape: a parameter that does
not exist is ``parameter-unknown``, one that exists in OpenAI's API and has no effect here is
``parameter-unsupported``, one of the wrong type or range is ``parameter-invalid``.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

import msgspec

from edgewise.errors import EdgewiseError, InputError, UnsupportedError
from edgewise.serve.bodies import Body

__all__ = ["decode", "parse", "unsupported"]

B = TypeVar("B", bound=Body)

_PATH = re.compile(r" - at `\$\.?(.*)`\Z")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_INDEX = re.compile(r"\[\d+\]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def decode(data: bytes, kind: type[B], *, nesting_max: int) -> B:
    """Return the body as a value of a type.

    Raises:
        InputError: it is no JSON, or a parameter is unknown, missing or wrong.
        UnsupportedError: a parameter is OpenAI's and cannot be honoured here.
    """
    value = parse(data, nesting_max=nesting_max)
    if not isinstance(value, dict):
        raise _not_json("it is no object")
    for name in kind.REFUSED & value.keys():
        if value.pop(name) is not None:
            raise unsupported(name, "this parameter is not supported")
    kind.complete(value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), kind) from None


def parse(data: bytes, *, nesting_max: int) -> Any:
    """Return the value of strict JSON.

    Raises:
        InputError: it is none, holds a key twice, or is nested too deep.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            "body-not-utf8",
            f"the body is not valid UTF-8 at byte {error.start}",
            context={"offset_bytes": error.start},
            hint="encode it as UTF-8",
        ) from None
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float
        )
    except RecursionError:
        raise _too_deep(nesting_max) from None
    except ValueError as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise _not_json(f"{_reason(error)}{where}") from None
    _check_depth(value, nesting_max)
    if _SURROGATE.search(text):
        _check_text(value)
    return value


def unsupported(name: str, why: str, hint: str = "leave it out") -> UnsupportedError:
    """Return the error for a parameter that cannot be honoured."""
    return UnsupportedError(
        "parameter-unsupported", f"{name}: {why}", context={"param": name}, hint=hint
    )


def _invalid(message: str, kind: type[Body]) -> EdgewiseError:
    found = _PATH.search(message)
    path = found[1] if found else ""
    general = _INDEX.sub("[]", path)
    if general in kind.NEUTRAL or re.split(r"[.\[]", path)[0] in kind.NEUTRAL:
        return unsupported(path, "only the value that changes nothing is supported")
    what = message[: found.start()] if found else message
    unknown = _UNKNOWN.fullmatch(what)
    if unknown:
        name = f"{path}.{unknown[1]}" if path else unknown[1]
        return InputError(
            "parameter-unknown",
            f"there is no parameter called {name[:200]!r}",
            context={"param": name[:200]},
            hint="leave it out; /openapi.json lists the parameters",
        )
    if what.startswith(("Invalid value ", "Invalid enum value ")) and path.endswith(
        (".type", ".role")
    ):
        return unsupported(path, what[0].lower() + what[1:200], "use a kind that is supported")
    return InputError(
        "parameter-invalid",
        f"{path or 'the body'}: {what[0].lower()}{what[1:300]}",
        context={"param": path or None},
        hint="/openapi.json describes the parameters",
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InputError(
            "body-key-twice",
            f"the body has the key {twice[:200]!r} twice in one object",
            context={"param": twice[:200]},
            hint="leave one of them out",
        )
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg[0].lower() + error.msg[1:]
    return str(error) if str(error).endswith(("no JSON", "too large")) else "a number is too long"


def _check_depth(value: Any, nesting_max: int) -> None:
    level, depth = [value], 0
    while level:
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        depth += 1
        if depth > nesting_max:
            raise _too_deep(nesting_max)


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _not_json("a text holds half of a surrogate pair") from None


def _not_json(why: str) -> InputError:
    return InputError("body-not-json", f"the body is no JSON that can be used: {why}")


def _too_deep(nesting_max: int) -> InputError:
    return InputError(
        "body-too-deep",
        f"the body is nested more than {nesting_max} levels deep",
        hint="flatten it",
    )
