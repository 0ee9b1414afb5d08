"""What `edgewise route` is told to assume, and what nobody can assume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewise.cli import _run
from edgewise.cli.assuming import assumed_of
from edgewise.core.state import LinkState, MemoryState, PowerState, StorageState, ThermalState
from edgewise.errors import InputError
from edgewise.workflow.assuming import Assumed

POLICY = """
name = "careful"
require_signature = false
[[tasks]]
name = "chat"
escalate = true
[device]
when_battery_low = false
when_memory_short = false
thermal_max = "fair"
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("battery=12%", Assumed(power=PowerState.LOW)),
        ("battery=20%", Assumed(power=PowerState.LOW)),
        ("battery=21%", Assumed(power=PowerState.NORMAL)),
        ("battery=charging", Assumed(power=PowerState.CHARGING)),
        ("thermal=serious", Assumed(thermal=ThermalState.SERIOUS)),
        ("memory=pressure", Assumed(memory=MemoryState.PRESSURE)),
        ("memory=512MiB", Assumed(memory_available_bytes=512 << 20)),
        ("storage=low", Assumed(storage=StorageState.LOW)),
        ("link=captive", Assumed(link=LinkState.CAPTIVE)),
        ("doubt=unsure", Assumed(unsure=True)),
        ("doubt=sure", Assumed(unsure=False)),
    ],
)
def test_what_can_be_assumed(text: str, found: Assumed) -> None:
    assert assumed_of((text,), None) == found


@pytest.mark.parametrize(
    ("texts", "hint"),
    [
        (("battery",), "battery, thermal, memory, storage, link, doubt"),
        (("mood=good",), "battery, thermal, memory, storage, link, doubt"),
        (("battery=101%",), "battery is one of: mains, charging"),
        (("battery=-3%",), "battery is one of"),
        (("battery=nan%",), "battery is one of"),
        (("battery=",), "battery is one of"),
        (("thermal=hot",), "thermal is one of: nominal, fair, serious"),
        (("memory=-1MiB",), "memory is one of: normal, pressure"),
        (("memory=1e400GiB",), "memory is one of"),
        (("doubt=maybe",), "doubt is one of: unsure, sure"),
        (("battery=low", "battery=12%"), "say it once"),
        (("link=online", "link=online"), "say it once"),
    ],
)
def test_what_cannot(texts: tuple[str, ...], hint: str) -> None:
    with pytest.raises(InputError) as caught:
        assumed_of(texts, None)
    assert caught.value.code == "assumption-invalid"
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_link_is_not_said_in_two_ways() -> None:
    assert assumed_of((), "weak") == Assumed(link=LinkState.WEAK)
    with pytest.raises(InputError):
        assumed_of(("link=online",), "weak")


def test_the_decision_is_made_by_it_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.toml").write_text(POLICY, "utf-8")
    words = ["route", "hello", "--policy", str(tmp_path / "p.toml"), "--json"]
    for name, value in (
        ("battery", "12%"),
        ("thermal", "critical"),
        ("memory", "pressure"),
        ("doubt", "unsure"),
    ):
        words += ["--assume", f"{name}={value}"]
    assert _run(words) == 10
    told = json.loads(capsys.readouterr().out)
    rules = {one["rule"]: one["verdict"] for one in told["decision"]["rules"]}
    names = ("battery", "thermal", "memory-pressure", "doubt")
    assert [rules[name] for name in names] == ["denies"] * 4
    assert told["assumed"] == {
        "battery": "low",
        "thermal": "critical",
        "memory": "pressure",
        "doubt": "unsure",
    }
    assert told["state"]["sources"]["thermal"] == "assumed"
