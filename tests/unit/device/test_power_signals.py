"""Battery, temperature, live signals, storage and page cache."""

# mypy: allow-untyped-defs, no-check-untyped-defs, allow-untyped-calls, allow-incomplete-defs

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from edgewise.core.quantity import Measured, Unknown
from edgewise.core.state import MemoryState, PowerState, StorageState, ThermalState
from edgewise.device.page_cache import page_cache_ratio
from edgewise.device.power import power_state, read_power, read_thermal, thermal_state
from edgewise.device.signals import memory_state, read_state, storage_state
from edgewise.device.storage import read_storage
from edgewise.device.system import read_accelerators, read_os

BAT = "sys/class/power_supply/BAT0"
ZONE = "sys/class/thermal/thermal_zone0"
MEMINFO = "MemTotal: 1000 kB\nMemAvailable: {kb} kB\n"


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def known(value: object) -> Measured:
    return Measured(value=value, source="test")  # type: ignore[arg-type]


WRITABLE, READ_ONLY = known(value=False), known(value=True)


@pytest.mark.parametrize(
    ("percent", "status", "state"),
    [
        ("80", "Discharging", PowerState.NORMAL),
        ("12", "Discharging", PowerState.LOW),
        ("12", "Charging", PowerState.CHARGING),
        ("100", "Full", PowerState.CHARGING),
        ("bad", "Discharging", PowerState.UNKNOWN),
        ("130", "Unknown", PowerState.UNKNOWN),
    ],
)
def test_battery(tmp_path, percent, status, state):
    plant(
        tmp_path, {f"{BAT}/type": "Battery\n", f"{BAT}/capacity": percent, f"{BAT}/status": status}
    )
    power = read_power(tmp_path, system="linux")
    assert power.battery_present.value is True
    assert power_state(power)[0] is state


def test_a_mouse_is_not_our_battery(tmp_path):
    mouse = "sys/class/power_supply/hidpp"
    plant(
        tmp_path, {f"{mouse}/type": "Battery", f"{mouse}/scope": "Device", f"{mouse}/capacity": "3"}
    )
    power = read_power(tmp_path, system="linux")
    assert power.battery_present.value is False
    assert power.battery_ratio == Unknown(reason="no battery")
    assert power_state(power)[0] is PowerState.MAINS


def test_no_sysfs_is_unknown_not_mains(tmp_path):
    assert power_state(read_power(tmp_path, system="linux"))[0] is PowerState.UNKNOWN
    assert thermal_state(tmp_path, system="linux")[0] is ThermalState.UNKNOWN
    assert isinstance(read_thermal(tmp_path, system="linux").highest_c, Unknown)
    assert isinstance(read_thermal(tmp_path, system="win32").highest_c, Unknown)
    assert thermal_state(tmp_path, system="win32")[0] is ThermalState.UNKNOWN


@pytest.mark.parametrize(
    ("temperature", "state"),
    [
        (40_000, ThermalState.NOMINAL),
        (81_000, ThermalState.FAIR),
        (96_000, ThermalState.SERIOUS),
        (101_000, ThermalState.CRITICAL),
    ],
)
def test_thermal_trip_points(tmp_path, temperature, state):
    plant(tmp_path, {
        f"{ZONE}/type": "cpu", f"{ZONE}/temp": str(temperature),
        f"{ZONE}/trip_point_0_type": "critical", f"{ZONE}/trip_point_0_temp": "100000",
        f"{ZONE}/trip_point_1_type": "passive", f"{ZONE}/trip_point_1_temp": "80000",
    })  # fmt: skip
    assert thermal_state(tmp_path, system="linux")[0] is state
    thermal = read_thermal(tmp_path, system="linux")
    assert thermal.highest_c.value == temperature / 1000
    assert thermal.sensors.value == ("thermal_zone0:cpu",)


def test_throttling_shows_although_the_sensor_is_cool(tmp_path):
    cooler = "sys/class/thermal/cooling_device0"
    plant(tmp_path, {
        f"{ZONE}/type": "skin", f"{ZONE}/temp": "35000",
        f"{cooler}/type": "Processor", f"{cooler}/cur_state": "5", f"{cooler}/max_state": "10",
    })  # fmt: skip
    state, source = thermal_state(tmp_path, system="linux")
    assert state is ThermalState.SERIOUS
    assert "throttles" in source


def test_hwmon_and_impossible_readings(tmp_path):
    plant(tmp_path, {
        "sys/class/hwmon/hwmon0/name": "k10temp",
        "sys/class/hwmon/hwmon0/temp1_input": "90000",
        "sys/class/hwmon/hwmon0/temp2_input": "-273000",
        "sys/class/hwmon/hwmon0/temp3_input": "junk",
        "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "7",
    })  # fmt: skip
    thermal = read_thermal(tmp_path, system="linux")
    assert thermal.highest_c.value == 90.0
    assert len(thermal.sensors.value) == 1
    assert thermal.throttle_count.value == 7
    assert thermal_state(tmp_path, system="linux")[0] is ThermalState.SERIOUS


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"proc/meminfo": MEMINFO.format(kb=900)}, MemoryState.NORMAL),
        ({"proc/meminfo": MEMINFO.format(kb=20)}, MemoryState.PRESSURE),
        ({"proc/pressure/memory": "some avg10=30.0 total=1"}, MemoryState.PRESSURE),
        ({"proc/pressure/memory": "some avg10=0.0 total=1"}, MemoryState.NORMAL),
        (
            {
                "proc/self/cgroup": "0::/a",
                "sys/fs/cgroup/cgroup.controllers": "memory",
                "sys/fs/cgroup/a/memory.pressure": "some avg10=55.0",
                "proc/pressure/memory": "some avg10=0.0",
            },
            MemoryState.PRESSURE,
        ),
        ({}, MemoryState.UNKNOWN),
    ],
)
def test_memory_pressure(tmp_path, files, state):
    plant(tmp_path, files)
    live = read_state(tmp_path, tmp_path, system="linux")
    assert live.memory is state
    assert live.sources["memory"]


def test_memory_state_elsewhere():
    assert memory_state(known(5), system="win32")[0] is MemoryState.UNKNOWN


@pytest.mark.parametrize(
    ("free", "total", "read_only", "state"),
    [
        (known(100 << 30), known(200 << 30), WRITABLE, StorageState.NORMAL),
        (known(5 << 30), known(200 << 30), WRITABLE, StorageState.LOW),
        (known(400 << 20), known(1 << 30), WRITABLE, StorageState.LOW),
        (known(100 << 30), known(200 << 30), READ_ONLY, StorageState.LOW),
        (Unknown(reason="x"), known(1), Unknown(reason="y"), StorageState.UNKNOWN),
    ],
)
def test_storage_state(free, total, read_only, state):
    assert storage_state(free, total, read_only)[0] is state


def test_storage_of_a_folder_that_is_not_there_yet(tmp_path):
    info = read_storage(tmp_path / "not" / "yet")
    assert info.path.value == str(tmp_path)
    assert 0 <= info.free_bytes.value <= info.total_bytes.value
    assert info.read_only.value is False


def test_live_state_is_cheap(tmp_path):
    read_state(tmp_path)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        state = read_state(tmp_path)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.005
    assert state.storage in (StorageState.NORMAL, StorageState.LOW)
    assert set(state.sources) == {"memory", "storage", "power", "thermal"}


def test_accelerator_nodes_are_seen_not_usable(tmp_path):
    plant(tmp_path, {
        "dev/dri/renderD128": "", "dev/nvidia0": "", "dev/null": "",
        "sys/bus/pci/devices/0000:01:00.0/class": "0x030000",
        "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
        "sys/bus/pci/devices/0000:01:00.0/device": "0x2684",
        "sys/bus/pci/devices/0000:02:00.0/class": "0x020000",
    })  # fmt: skip
    info = read_accelerators(tmp_path, system="linux")
    assert info.device_nodes.value == ("/dev/dri/renderD128", "/dev/nvidia0")
    assert info.pci_devices.value == ("10de:2684",)
    assert "not shown to be usable" in info.device_nodes.source


def test_os_release(tmp_path):
    plant(tmp_path, {
        "etc/os-release": 'ID=fedora\nVERSION_ID="41"\nBUILD_ID=41.7\n',
        "proc/version": "Linux version 6.1.0-arm64 (gcc)",
    })  # fmt: skip
    info = read_os(tmp_path, system="linux")
    assert [info.name.value, info.version.value, info.build.value] == ["fedora", "41", "41.7"]
    assert info.kernel.value == "Linux 6.1.0-arm64"
    assert isinstance(read_os(tmp_path / "none", system="linux").name, Unknown)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mincore of Linux")
class TestPageCache:
    def test_a_file_just_written_is_resident(self, tmp_path):
        path = tmp_path / "warm.bin"
        path.write_bytes(os.urandom(1 << 20) + b"x")
        ratio = page_cache_ratio(path)
        assert isinstance(ratio, Measured)
        assert ratio.value == 1.0

    def test_a_sparse_file_is_not(self, tmp_path):
        path = tmp_path / "cold.bin"
        with path.open("wb") as stream:
            stream.truncate(1 << 20)
        assert page_cache_ratio(path).value == 0.0

    def test_absent_empty_and_folder_say_why(self, tmp_path):
        (tmp_path / "empty").touch()
        assert page_cache_ratio(tmp_path / "empty") == Unknown(reason="the file is empty")
        assert "cannot be mapped" in page_cache_ratio(tmp_path / "absent").reason
        assert "cannot be mapped" in page_cache_ratio(tmp_path).reason
