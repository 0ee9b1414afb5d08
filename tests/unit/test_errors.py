"""The error tree: what a caller, another process and the shell see of an error."""

from __future__ import annotations

import ast
import functools
import pickle
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import edgewise
from edgewise import errors
from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    ExitCode,
    InputError,
    IntegrityError,
    RemoteError,
    ResourceError,
    UnsupportedError,
    error_from_dict,
)

EXIT_CODES: dict[type[EdgewiseError], int] = {
    InputError: 2,
    UnsupportedError: 3,
    IntegrityError: 4,
    ResourceError: 5,
    RemoteError: 6,
    AdapterError: 7,
}
SOURCE = Path(edgewise.__file__).parent


def sample(kind: type[EdgewiseError]) -> EdgewiseError:
    context = {"path": "/x", "size_bytes": 3, "list": [1, None]}
    return kind("some-code", "It broke.", context=context, hint="mend it", retryable=True)


@pytest.mark.parametrize("kind", EXIT_CODES)
def test_dict_and_pickle_round_trip(kind: type[EdgewiseError]) -> None:
    error = sample(kind)
    for again in (error_from_dict(error.to_dict()), pickle.loads(pickle.dumps(error))):
        assert type(again) is kind
        assert again.to_dict() == error.to_dict()
        assert str(again) == "some-code: It broke."
        assert again.args == error.args


@pytest.mark.parametrize("kind", EXIT_CODES)
def test_exit_code(kind: type[EdgewiseError]) -> None:
    assert int(kind.exit_code) == EXIT_CODES[kind]


def test_the_tree_is_complete() -> None:
    public = {
        value
        for name in errors.__all__
        if isinstance(value := getattr(errors, name), type) and issubclass(value, EdgewiseError)
    }
    assert public == {*EXIT_CODES, EdgewiseError}
    assert all(kind.__bases__ == (EdgewiseError,) for kind in EXIT_CODES)


def test_exit_codes_of_the_house() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "BUG": 1,
        "INPUT": 2,
        "UNSUPPORTED": 3,
        "INTEGRITY": 4,
        "RESOURCE": 5,
        "REMOTE": 6,
        "ADAPTER": 7,
        "NEGATIVE": 10,
        "INTERRUPT": 130,
    }
    assert EdgewiseError.exit_code is ExitCode.BUG


def test_defaults() -> None:
    error = InputError("some-code", "It broke.")
    assert (error.context, error.hint, error.retryable) == ({}, None, False)
    other = InputError("some-code", "It broke.")
    error.context["x"] = 1
    assert other.context == {}


@pytest.mark.parametrize("name", ["ValueError", "", None, 7, "EdgewiseError", "inputerror"])
def test_unknown_type_came_from_a_worker(name: Any) -> None:
    error = error_from_dict({"type": name, "code": "c", "message": "m"})
    assert type(error) is AdapterError
    assert (error.code, error.message) == ("c", "m")


def test_missing_fields() -> None:
    error = error_from_dict({})
    assert type(error) is AdapterError
    assert error.to_dict() == {
        "type": "AdapterError",
        "code": "unknown",
        "message": "",
        "context": {},
        "hint": None,
        "retryable": False,
    }


@functools.cache
def raised() -> tuple[tuple[str, str, str], ...]:
    """Return (class, code, place) of every error that the source makes with a literal code."""
    names = {kind.__name__ for kind in EXIT_CODES} | {"FetchCancelledError"}
    found: list[tuple[str, str, str]] = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            first = node.args[0]
            if name in names and isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.append((name, first.value, f"{path.relative_to(SOURCE)}:{node.lineno}"))
    return tuple(found)


def test_codes_are_kebab_case() -> None:
    found = raised()
    assert len(found) > 60  # else the walk above sees nothing
    bad = [
        (code, place)
        for _, code, place in found
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)
    ]
    assert bad == []


def test_a_code_means_one_kind_of_error() -> None:
    kinds: dict[str, dict[str, str]] = defaultdict(dict)
    for kind, code, place in raised():
        kinds[code][kind] = place
    known: set[str] = set()
    shared = {code: places for code, places in kinds.items() if len(places) > 1}
    assert {code: places for code, places in shared.items() if code not in known} == {}
