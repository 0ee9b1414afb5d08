"""Keys from a real keyring: GNOME's, behind the Secret Service, on a bus of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from edgewise.route.cloud.secrets import secret_variable

NEEDED = ("dbus-run-session", "gnome-keyring-daemon")
MISSING = [name for name in NEEDED if shutil.which(name) is None]
KEY = "canary-key-4c1d-8f"
RUNNER = Path(__file__).with_name("keyring_runner.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.keyring,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


def run(case: str, folder: Path, key: str = KEY) -> tuple[dict[str, Any], str]:
    """Run one case; return what it found, and all else that was said or is left in files."""
    home = folder / "user"
    home.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    # The keyring's socket lies in it, and a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ew-", dir="/tmp", ignore_cleanup_errors=True) as short:
        done = subprocess.run(
            ["dbus-run-session", "--", sys.executable, str(RUNNER), case, key, f"{folder}/home"],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=folder,
            env={
                **kept,
                "HOME": str(home),
                "XDG_RUNTIME_DIR": short,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_a_key_is_read_and_only_the_server_gets_it(tmp_path: Path) -> None:
    told, log = run("asked", tmp_path)
    assert told["error"] is None, told
    assert told["authorized"] == [f"Bearer {KEY}"]
    assert KEY not in log + told["shown"]
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("absent", "secret-missing", "there is no secret"),
        ("locked", "keyring-unavailable", "it is locked"),
        ("killed", "keyring-unavailable", "cannot be read"),  # the bus starts it again, locked
        ("no-bus", "keyring-unavailable", "this system has none"),
    ],
)
def test_what_a_keyring_cannot_give(tmp_path: Path, case: str, code: str, words: str) -> None:
    told, log = run(case, tmp_path)
    assert told["code"] == code, (told, log)
    assert words in told["message"]
    assert secret_variable("far-key") in told["hint"]
    assert KEY not in log + json.dumps(told)


@pytest.mark.parametrize("key", [f"{KEY}\\n", f"{KEY}\\r\\nX-More: 1", f"{KEY} {KEY}", "\\xe9"])
def test_a_key_that_no_header_carries_is_refused_and_not_shown(tmp_path: Path, key: str) -> None:
    told, log = run("stored", tmp_path, key)
    assert told["code"] == "secret-invalid"
    assert KEY not in log + json.dumps(told)


def test_a_keyring_that_waits_for_its_user_ends_with_the_ask(tmp_path: Path) -> None:
    told, log = run("waits", tmp_path)
    assert told["error"]["code"] == "cloud-deadline", (told, log)
    assert told["connections"] == 0
    assert told["seconds"] >= 2.0
    assert KEY not in log + told["shown"]
