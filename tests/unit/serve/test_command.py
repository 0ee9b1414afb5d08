"""``edgewise serve`` as a command: what it refuses, and what it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.unit.serve.fakes import FINGERPRINT, MODEL

from edgewise.cli import serve as command
from edgewise.cli.serve import _curl, _show, _show_json, _token
from edgewise.errors import InputError
from edgewise.serve.server import Ready

READY = Ready(url="http://127.0.0.1:8080", model=MODEL, fingerprint=FINGERPRINT, prewarm_ms=12.5)


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "edgewise.cli", "serve", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=60,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--host", "0.0.0.0"), "token-required"),
        (("--host", "192.168.0.1"), "token-required"),
        (("--token-file", "/no/such/file"), "token-file-unusable"),
        (("--allow-origin", "*"), "origin-invalid"),
        (("--policy", "/no/such/file.toml"), "policy-unreadable"),
        (("--max-body", "lots"), "size-invalid"),
        (("--max-body", "0"), "size-invalid"),
        (("--port", "70000"), "usage"),
        (("--queue", "0"), "usage"),
        (("--release-after", "0"), "usage"),
        (("--release-after", "nan"), "usage"),
        (("--token", "never-in-arguments"), "usage"),
    ],
)
def test_what_it_refuses(arguments: tuple[str, ...], code: str) -> None:
    assert f"{code}: " in run(*arguments)[1]


def test_a_weak_token_and_a_missing_model_are_said() -> None:
    assert "token-weak" in run(EDGEWISE_API_TOKEN="short")[1]
    status, said = run("--port", "0")
    assert status == 2
    assert "error" in said


def test_a_library_that_is_missing_is_named() -> None:
    code = (
        "import sys\nsys.modules['uvicorn'] = None\nfrom edgewise.cli import main\n"
        "main(['serve', '--port', '0'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 3
    assert "serve-not-installed" in done.stderr
    assert "edgewise[serve]" in done.stderr


def test_the_token_comes_from_a_file_or_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGEWISE_API_TOKEN", raising=False)
    assert _token(None) is None
    monkeypatch.setenv("EDGEWISE_API_TOKEN", "from-the-environment")
    assert _token(None) == "from-the-environment"
    file = tmp_path / "token"
    file.write_text("  from-the-file\n")
    assert _token(str(file)) == "from-the-file"


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"p\xc3\xa4ss", b"x" * 5000])
def test_a_file_without_one_token_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        _token(str(file))
    assert caught.value.code == "token-file-unusable"


def test_what_it_prints_when_it_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    _show(READY, with_token=True)
    out, err = capsys.readouterr()
    assert out == "http://127.0.0.1:8080\n"
    assert MODEL in err
    assert FINGERPRINT in err
    assert "$EDGEWISE_API_TOKEN" in err
    _show_json(READY)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out)["url"] == "http://127.0.0.1:8080"


def test_the_curl_line_holds_a_body_that_the_server_takes() -> None:
    body = _curl(READY, "").partition("-d '")[2].removesuffix("'")
    assert json.loads(body)["model"] == MODEL


def test_importing_the_command_loads_no_server() -> None:
    code = (
        f"import sys, {command.__name__}\n"
        "assert not {'uvicorn', 'starlette', 'h11'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.model
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_the_active_model_until_a_signal(ready_home: Path, number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "edgewise.cli", "serve", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "EDGEWISE_HOME": str(ready_home)},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        ready = json.loads(line)
        assert ready["prewarm_ms"] > 0
        assert ready["load_ms"]["kind"] == "measured"
        reply = httpx.post(
            f"{ready['url']}/v1/chat/completions",
            json={
                "model": ready["model"],
                "messages": [{"role": "user", "content": "Say hello."}],
                "max_tokens": 4,
            },
            timeout=60,
        )
        assert reply.status_code == 200
        assert reply.headers["x-edgewise-fingerprint"] == ready["fingerprint"]
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "POST /v1/chat/completions 200" in errors
    assert "Traceback" not in errors
