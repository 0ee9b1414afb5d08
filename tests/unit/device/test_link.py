"""The state of the link is read from the kernel's files, and no socket is made for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgewise.core.state import LinkState
from edgewise.device import link

WATCHED = """
import sys
made = []
sys.addaudithook(lambda event, _: made.append(event) if event.startswith("socket") else None)
from edgewise.device.link import read_link
read_link()
print(made)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these files are Linux's")


def interface(folder: Path, name: str, flags: str, operstate: str) -> None:
    (folder / name).mkdir()
    (folder / name / "flags").write_text(f"{flags}\n", "ascii")
    (folder / name / "operstate").write_text(f"{operstate}\n", "ascii")


def test_no_socket_is_made() -> None:
    found = subprocess.run(
        [sys.executable, "-c", WATCHED], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("flags", "operstate", "state"),
    [
        ("0x1003", "up", LinkState.ONLINE),
        ("0x1", "unknown", LinkState.ONLINE),
        ("0x1003", "down", LinkState.OFFLINE),
        ("0x1002", "up", LinkState.OFFLINE),
        ("0x1003", "dormant", LinkState.OFFLINE),
        ("not hexadecimal", "up", LinkState.OFFLINE),
    ],
)
def test_what_an_interface_says(
    flags: str, operstate: str, state: LinkState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface(tmp_path, "lo", "0x9", "unknown")
    interface(tmp_path, "eth0", flags, operstate)
    (tmp_path / "bonding_masters").write_text("", "ascii")
    monkeypatch.setattr(link, "_INTERFACES", tmp_path)
    assert link.read_link() is state


def test_where_the_system_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_INTERFACES", tmp_path / "not mounted")
    assert link.read_link() is LinkState.UNKNOWN
