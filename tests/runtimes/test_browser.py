"""The driven browser: answers, streams, cancels, never leaves the machine, and always ends."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgewise.runtimes.browser.chromium import find_browser
from edgewise.runtimes.launch import interpreter, look_for
from edgewise.runtimes.wllama import adapter

SRC = Path(__file__).parents[2] / "src"
SCENARIOS = Path(__file__).with_name("browser_scenarios.py")
TIMEOUT_S = 600

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium-class browser"),
]


def command(name: str, folder: Path, *more: str) -> list[str]:
    if look_for(adapter).absent:
        pytest.skip("not installed: edgewise runtime install wllama")
    return [interpreter(adapter), "-P", str(SCENARIOS), str(SRC), name, str(folder), *more]


def scenario(name: str, folder: Path, *more: str) -> dict[str, Any]:
    done = subprocess.run(
        command(name, folder, *more), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_it_answers_and_streams(tmp_path: Path) -> None:
    found = scenario("answers", tmp_path)
    assert found["load"] == {"got": {"a": 1}}
    assert found["info"]["cross_origin_isolated"] is True
    assert found["shared"] == 16
    assert found["result"] == {"text": "aé😀", "finish": "stop"}
    assert found["pieces"] == ["a", "é", "😀"]
    assert found["missing"]["code"] == "browser-call-missing"
    assert found["reject"]["code"] == "browser-call-failed"
    assert "bad words" in found["reject"]["message"]
    assert found["memory"]["code"] == "browser-out-of-memory"
    assert found["allocate"]["code"] == "browser-out-of-memory"
    assert found["again"] == {"got": {"b": 2}}
    assert found["resident"] > 50e6
    assert found["shot"] > 1000
    assert found["closed"]["code"] == "browser-closed"
    assert found["left"] == []


def test_it_cancels_from_another_thread_and_from_the_stream(tmp_path: Path) -> None:
    found = scenario("cancels", tmp_path)
    assert found["first"] == "cancelled"
    assert found["raised"] == "'x'"
    assert found["after"] == {"got": {"c": 3}}


def test_it_never_leaves_the_machine(tmp_path: Path) -> None:
    found = scenario("stays_home", tmp_path)
    own = [address for address, said in found["tried"].items() if said == "reached"]
    assert [address.rsplit("/", 1)[1] for address in own] == ["absent"]
    assert found["socket"] == "no"
    assert len(found["refused"]) >= 3


def test_the_driver_holds_without_the_pages_policy(tmp_path: Path) -> None:
    found = scenario("stays_home_without_policy", tmp_path)
    assert "reached" not in found["tried"]
    assert found["socket"] == "no"
    refused = " ".join(found["refused"])
    assert "https://example.org/x" in refused
    assert "http://10.255.255.1/" in refused
    assert "ws://example.org/" in refused


def test_trouble_is_an_error_and_leaves_no_process(tmp_path: Path) -> None:
    found = scenario("troubles", tmp_path)
    assert found["hang"]["code"] == "browser-timeout"
    assert found["stray"]["code"] == "browser-page-error"
    assert found["stray"]["seconds"] < 4
    assert found["crash"]["code"] == "browser-page-crashed"
    assert found["killed"]["code"] in {"browser-died", "browser-page-crashed"}
    for name in found:
        assert found[name]["after"]["code"] == found[name]["code"]
    assert all(found[name]["left"] == [] for name in found)


def test_a_page_that_is_not_ready(tmp_path: Path) -> None:
    found = scenario("not_ready", tmp_path)
    assert found["rejected"]["code"] in {"browser-page-not-ready", "browser-page-error"}
    assert "no adapter" in found["rejected"]["message"]
    assert found["broken"]["code"] == "browser-page-error"
    assert "broken script" in found["broken"]["message"]
    assert found["left"] == []


def test_the_browser_ends_when_its_worker_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(command("orphan", tmp_path), stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pids = json.loads(worker.stdout.readline())["pids"]
        worker.kill()
    deadline = time.monotonic() + 60
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
