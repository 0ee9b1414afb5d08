"""Battery and temperature, read from sysfs; psutil elsewhere.

Invariants: peripherals' batteries (a mouse) are not this machine's; a sensor that shows an
impossible temperature is left out; no battery is a reading, an unreadable battery is unknown.
"""

from __future__ import annotations

import sys
from pathlib import Path

from edgewise.core.quantity import Quantity, Unknown
from edgewise.core.state import PowerState, ThermalState
from edgewise.device.foreign import psutil_module
from edgewise.device.sections import PowerInfo, ThermalInfo, fact
from edgewise.device.tree import entries, read_int, read_text

__all__ = ["power_state", "read_power", "read_thermal", "thermal_state"]

_SUPPLIES = "sys/class/power_supply"
_LOW_RATIO = 0.20  # specified here: the level at which phones offer to save power
_PLAUSIBLE_C = (-30.0, 150.0)
# Specified here, for machines whose zones state no trip points: usual laptop and phone limits.
_DEFAULT_TRIPS_C = {"fair": 75.0, "serious": 88.0, "critical": 98.0}
_ORDER = (
    ThermalState.UNKNOWN,
    ThermalState.NOMINAL,
    ThermalState.FAIR,
    ThermalState.SERIOUS,
    ThermalState.CRITICAL,
)


def read_power(root: Path = Path("/"), *, system: str = sys.platform) -> PowerInfo:
    """Return the battery section.

    Args:
        root: Root of the tree that holds ``/sys``.
        system: ``sys.platform`` of the machine.
    """
    if not system.startswith("linux"):
        return _psutil(system)
    supplies = entries(root, _SUPPLIES)
    if supplies is None:
        gap = Unknown(reason=f"/{_SUPPLIES} is absent")
        return PowerInfo(battery_present=gap, battery_ratio=gap, charging=gap)
    batteries = [s for s in supplies if _is_own_battery(s)]
    if not batteries:
        none = Unknown(reason="no battery")
        present = fact(value=False, source=f"/{_SUPPLIES} lists no battery")
        return PowerInfo(battery_present=present, battery_ratio=none, charging=none)
    levels = [
        level
        for battery in batteries
        if (level := read_int(battery, "capacity")) is not None and 0 <= level <= 100
    ]
    states = {read_text(battery, "status") or "" for battery in batteries} - {"", "Unknown"}
    online = any(
        read_int(s, "online") == 1 for s in supplies if read_text(s, "type") in ("Mains", "USB")
    )
    charging: Quantity = Unknown(reason="the battery tells no status")
    if states or online:
        value = online or bool(states & {"Charging", "Full", "Not charging"})
        charging = fact(value=value, source=f"/{_SUPPLIES} status and online")
    return PowerInfo(
        battery_present=fact(value=True, source=f"/{_SUPPLIES} type Battery"),
        battery_ratio=fact(sum(levels) / len(levels) / 100, f"/{_SUPPLIES} capacity")
        if levels
        else Unknown(reason="the battery tells no capacity"),
        charging=charging,
    )


def _is_own_battery(supply: Path) -> bool:
    return (
        read_text(supply, "type") == "Battery"
        and read_text(supply, "scope") != "Device"
        and read_int(supply, "present") != 0
    )


def _psutil(system: str) -> PowerInfo:
    gap = Unknown(reason=f"not read on {system}")
    module = psutil_module()
    if module is None or not hasattr(module, "sensors_battery"):
        return PowerInfo(battery_present=gap, battery_ratio=gap, charging=gap)
    battery = module.sensors_battery()
    if battery is None:
        none = Unknown(reason="no battery")
        present = fact(value=False, source="psutil sensors_battery")
        return PowerInfo(battery_present=present, battery_ratio=none, charging=none)
    plugged = battery.power_plugged
    return PowerInfo(
        battery_present=fact(value=True, source="psutil sensors_battery"),
        battery_ratio=fact(battery.percent / 100, "psutil sensors_battery"),
        charging=gap if plugged is None else fact(bool(plugged), "psutil sensors_battery"),
    )


def power_state(power: PowerInfo) -> tuple[PowerState, str]:
    """Return the battery state and where it came from."""
    present, ratio, charging = power.battery_present, power.battery_ratio, power.charging
    if isinstance(present, Unknown):
        return PowerState.UNKNOWN, present.reason
    if not present.value:
        return PowerState.MAINS, present.source
    if not isinstance(charging, Unknown) and charging.value:
        return PowerState.CHARGING, charging.source
    if isinstance(ratio, Unknown):
        return PowerState.UNKNOWN, ratio.reason
    low = ratio.number <= _LOW_RATIO
    return (PowerState.LOW if low else PowerState.NORMAL), f"{ratio.source}, low at {_LOW_RATIO}"


def _sensors(root: Path) -> dict[str, tuple[float, dict[str, float]]]:
    """Return temperature and trip points by sensor name, in degrees Celsius."""
    found: dict[str, tuple[float, dict[str, float]]] = {}
    for zone in entries(root, "sys/class/thermal", "thermal_zone*") or ():
        trips = {
            kind: value
            for path in entries(zone, "", "trip_point_*_type") or ()
            if (kind := read_text(path.parent, path.name) or "")
            and (value := _celsius(zone, path.name.replace("_type", "_temp"))) is not None
            and value > 0
        }
        name = f"{zone.name}:{read_text(zone, 'type') or '?'}"
        if (value := _celsius(zone, "temp")) is not None:
            found[name] = (value, trips)
    for chip in entries(root, "sys/class/hwmon", "hwmon*") or ():
        for path in entries(chip, "", "temp*_input") or ():
            stem = path.name.removesuffix("_input")
            critical = _celsius(chip, f"{stem}_crit")
            trips = {"critical": critical} if critical and critical > 0 else {}
            label = read_text(chip, f"{stem}_label") or stem
            if (value := _celsius(chip, path.name)) is not None:
                found[f"{chip.name}:{read_text(chip, 'name') or '?'}:{label}"] = (value, trips)
    return found


def _celsius(folder: Path, name: str) -> float | None:
    raw = read_int(folder, name)
    if raw is None or not _PLAUSIBLE_C[0] <= raw / 1000 <= _PLAUSIBLE_C[1]:
        return None
    return raw / 1000


def read_thermal(root: Path = Path("/"), *, system: str = sys.platform) -> ThermalInfo:
    """Return the temperature section.

    Args:
        root: Root of the tree that holds ``/sys``.
        system: ``sys.platform`` of the machine.
    """
    if not system.startswith("linux"):
        gap = Unknown(reason=f"not read on {system}")
        return ThermalInfo(sensors=gap, highest_c=gap, throttle_count=gap)
    sensors = _sensors(root)
    none = Unknown(reason="no temperature sensor under /sys/class/thermal or /sys/class/hwmon")
    counts = [
        count
        for folder in entries(root, "sys/devices/system/cpu", "cpu[0-9]*") or ()
        if (count := read_int(folder, "thermal_throttle/core_throttle_count")) is not None
    ]
    return ThermalInfo(
        sensors=fact(tuple(sensors), "/sys/class/thermal, /sys/class/hwmon") if sensors else none,
        highest_c=fact(max(t for t, _ in sensors.values()), "/sys/class/thermal, /sys/class/hwmon")
        if sensors
        else none,
        throttle_count=fact(sum(counts), "thermal_throttle/core_throttle_count since boot")
        if counts
        else Unknown(reason="the kernel counts no thermal throttling"),
    )


def thermal_state(
    root: Path = Path("/"), *, system: str = sys.platform
) -> tuple[ThermalState, str]:
    """Return the thermal state and where it came from: the worst of all sensors.

    A sensor is ``critical`` at its critical trip, ``serious`` at its hot trip or 5 degrees
    below critical, ``fair`` at its passive trip or 15 below critical. A processor cooling
    device that is active makes the state at least ``fair``, half-way ``serious``, whatever the
    sensors say: throttling shows there first.

    Args:
        root: Root of the tree that holds ``/sys``.
        system: ``sys.platform`` of the machine.
    """
    if not system.startswith("linux"):
        return ThermalState.UNKNOWN, f"not read on {system}"
    worst, source = ThermalState.UNKNOWN, "no temperature sensor and no cooling device"
    for name, (value, trips) in _sensors(root).items():
        state, why = _judge(value, trips)
        if _ORDER.index(state) > _ORDER.index(worst):
            worst, source = state, f"{name} at {value:.1f} C; {why}"
    for device in entries(root, "sys/class/thermal", "cooling_device*") or ():
        kind = (read_text(device, "type") or "").lower()
        now, top = read_int(device, "cur_state"), read_int(device, "max_state")
        if not now or not top or not ("processor" in kind or "cpu" in kind):
            continue
        state = ThermalState.SERIOUS if 2 * now >= top else ThermalState.FAIR
        if _ORDER.index(state) > _ORDER.index(worst):
            worst, source = state, f"{device.name} throttles the processor, step {now} of {top}"
    return worst, source


def _judge(value: float, trips: dict[str, float]) -> tuple[ThermalState, str]:
    critical = trips.get("critical")
    if critical is None and not trips:
        limits, why = _DEFAULT_TRIPS_C, "the sensor states no trip points, usual limits"
    else:
        top = critical if critical is not None else max(trips.values()) + 15
        limits = {
            "critical": top,
            "serious": min(trips.get("hot", top - 5), top),
            "fair": min(trips.get("passive", top - 15), top),
        }
        why = f"trip points {sorted(limits.values())}"
    for state in (ThermalState.CRITICAL, ThermalState.SERIOUS, ThermalState.FAIR):
        if value >= limits[state.value]:
            return state, why
    return ThermalState.NOMINAL, why
