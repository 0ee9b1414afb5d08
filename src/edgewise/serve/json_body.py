"""From the bytes of a body to a typed value, refusing by name whatever would be ignored.

Strict JSON: UTF-8, no key twice, no NaN, a bounded depth. Then the shape: a parameter that does
not exist is ``parameter-unknown``, one that exists in OpenAI's API and has no effect here is
``parameter-unsupported``, one of the wrong type or range is ``parameter-invalid``.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from edgewise.core import strict_json
from edgewise.errors import EdgewiseError, InputError, UnsupportedError
from edgewise.serve.bodies import Body

__all__ = ["decode", "parse", "unsupported"]

B = TypeVar("B", bound=Body)

_PATH = re.compile(r" - at `\$\.?(.*)`\Z")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_INDEX = re.compile(r"\[\d+\]")


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
        return strict_json.parse(text, depth_max=nesting_max)
    except strict_json.StrictJsonError as error:
        raise _refused(error, nesting_max) from None


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


def _refused(error: strict_json.StrictJsonError, nesting_max: int) -> InputError:
    if error.flaw is strict_json.Flaw.DEPTH:
        return InputError(
            "body-too-deep",
            f"the body is nested more than {nesting_max} levels deep",
            hint="flatten it",
        )
    if error.key is not None:
        return InputError(
            "body-key-twice",
            f"the body has the key {error.key[:200]!r} twice in one object",
            context={"param": error.key[:200]},
            hint="leave one of them out",
        )
    return _not_json(error.message)


def _not_json(why: str) -> InputError:
    return InputError(
        "body-not-json",
        f"the body is no JSON that can be used: {why}",
        hint="send one JSON object in UTF-8",
    )
