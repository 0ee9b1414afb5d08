"""Finding a browser, its switches, and what a page's answer means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgewise.errors import AdapterError, UnsupportedError
from edgewise.runtimes.browser import calls, chromium


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(chromium.BROWSER_VARIABLE, raising=False)
    path = tmp_path / "chromium"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_browser_on_the_path(program: Path) -> None:
    assert chromium.require_browser() == program


def test_the_named_browser_comes_first(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = program.with_name("other")
    program.rename(other)
    monkeypatch.setenv(chromium.BROWSER_VARIABLE, str(other))
    assert chromium.find_browser() == other


def test_a_name_that_is_no_program_is_not_replaced(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(chromium.BROWSER_VARIABLE, str(program.with_name("absent")))
    with pytest.raises(UnsupportedError, match="absent"):
        chromium.require_browser()


def test_no_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(chromium.BROWSER_VARIABLE, raising=False)
    monkeypatch.setattr(chromium, "_MAC_APPLICATIONS", ())
    with pytest.raises(UnsupportedError) as caught:
        chromium.require_browser()
    assert caught.value.code == "browser-missing"
    assert chromium.BROWSER_VARIABLE in str(caught.value.hint)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there is no root here")
@pytest.mark.parametrize("user", [0, 1000])
def test_only_root_goes_without_a_sandbox(user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ("--no-sandbox" in chromium.switches(webgpu=False)) == (user == 0)


def test_webgpu_needs_the_gpu_process() -> None:
    assert "--enable-unsafe-webgpu" in chromium.switches(webgpu=True)
    assert "--disable-gpu" not in chromium.switches(webgpu=True)
    assert "--disable-gpu" in chromium.switches(webgpu=False)


def test_answers_of_a_page() -> None:
    assert calls.unwrap("load", {"value": {"a": 1}}, ()) == {"a": 1}
    assert calls.unwrap("load", {"value": None}, ()) is None
    with pytest.raises(UnsupportedError, match="no function 'x'"):
        calls.unwrap("x", {"missing": True}, ())


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("no model is loaded", "browser-call-failed"),
        ("WebAssembly.Memory(): could not allocate: Out of memory", "browser-out-of-memory"),
        ("Array buffer allocation failed", "browser-out-of-memory"),
        ("Aborted(OOM)", "browser-out-of-memory"),
    ],
)
def test_a_rejection_is_an_adapter_error(message: str, code: str) -> None:
    answer = {"error": {"name": "Error", "message": message, "stack": "at x"}}
    with pytest.raises(AdapterError) as caught:
        calls.unwrap("load", answer, ("error: boom",))
    assert caught.value.code == code
    assert caught.value.context["console"] == ["error: boom"]
