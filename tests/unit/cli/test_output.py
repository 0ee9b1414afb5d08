"""What is printed, where, and in which colour."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from edgewise.cli.output import (
    StepPrinter,
    paint,
    print_error,
    print_json,
    print_table,
    show_quantity,
)
from edgewise.core.quantity import Declared, Estimated, Measured, Quantity, Unknown
from edgewise.core.units import mib
from edgewise.errors import AdapterError, InputError
from edgewise.workflow.context import Step


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize(
    ("value", "coloured"), [(None, True), ("", True), ("1", False), ("0", False)]
)
def test_no_color(monkeypatch: pytest.MonkeyPatch, value: str | None, coloured: bool) -> None:
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    expected = "\x1b[31mx\x1b[0m" if coloured else "x"
    assert paint("x", "red", stream=Terminal()) == expected
    assert paint("x", "red", stream=io.StringIO()) == "x"


def test_errors_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(InputError("some-code", "It broke.", hint="mend it"), as_json=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: some-code: It broke.\nhint: mend it\n"


def test_an_error_without_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(InputError("some-code", "It broke."), as_json=False)
    assert capsys.readouterr().err == "error: some-code: It broke.\n"


def test_an_error_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    context = {"path": Path("/x"), "name": "\ud800"}
    error = InputError("some-code", "It broke.", context=context, hint="mend it")
    print_error(error, as_json=True)
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert set(data) == {"error"}
    assert data["error"]["type"] == "InputError"
    assert data["error"]["code"] == "some-code"
    assert data["error"]["context"] == {"path": "/x", "name": "\ud800"}
    assert data["error"]["hint"] == "mend it"
    assert "mend it" in err


def test_the_last_native_lines_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    log = ["one", "two", "three", "four"]
    print_error(AdapterError("worker-died", "It died.", context={"native_log": log}), as_json=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == ["  native: two", "  native: three", "  native: four"]


def test_json_is_utf8_and_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "\u00e9", "rate": float("nan")})
    out, err = capsys.readouterr()
    assert json.loads(out, parse_constant=pytest.fail) == {"name": "\u00e9", "rate": None}
    assert err == ""


@pytest.mark.parametrize(
    ("quantity", "unit", "text"),
    [
        (Estimated(value=98304000, source="x"), "bytes", "93.8 MiB (estimated)"),
        (Measured(value=12.34e9, source="x"), "bytes/s", "12.3 GB/s (measured)"),
        (Declared(value=1234567.5, source="x"), "tok/s", "1,234,567.5 tok/s (declared)"),
        (Declared(value=0, source="x"), "", "0 (declared)"),
        (Declared(value=True, source="x"), "", "yes (declared)"),
        (Declared(value=False, source="x"), "", "no (declared)"),
        (Declared(value=("avx2", "fma"), source="x"), "", "avx2 fma (declared)"),
        (Declared(value="arm", source="x"), "", "arm (declared)"),
        (Unknown(reason="no sensor"), "bytes", "unknown: no sensor"),
    ],
)
def test_a_quantity_says_its_kind(quantity: Quantity, unit: str, text: str) -> None:
    assert show_quantity(quantity, unit) == text


def test_mib() -> None:
    assert mib(1 << 20) == "1.0 MiB"
    assert mib(1 << 40) == "1,048,576.0 MiB"


def test_a_table_off_a_terminal_is_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a", "b"], [["x" * 90, "[bold]\u00e9"], ["", "z"]])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["x" * 90, "[bold]\u00e9"]


def step(status: str, **fields: Any) -> Step:
    return Step(stage="fetch", status=status, message="m", **fields)


def test_steps_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    printer = StepPrinter()
    for status in ("start", "progress", "note", "done", "reused"):
        printer(step(status, done=5, total=10, unit="bytes"))
    printer.clear()
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split() for line in err.splitlines()] == [
        ["..", "fetch", "m"],
        ["--", "fetch", "m"],
        ["ok", "fetch", "m"],
        ["ok", "fetch", "m", "(already", "there)"],
    ]
    assert "\x1b" not in err


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    printer = StepPrinter()
    printer(step("progress", done=1 << 20, total=2 << 20, unit="bytes"))
    assert "1.0 MiB of 2.0 MiB" in terminal.getvalue()
    printer(step("progress", done=3, total=4))
    assert "3/4" in terminal.getvalue()
    printer(step("done"))
    assert terminal.getvalue().endswith("\r\x1b[Kok fetch     m\n")
