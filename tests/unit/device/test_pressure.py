"""How short memory is, on fake trees of both kinds of control groups, and one real trigger."""

# mypy: allow-untyped-defs, no-check-untyped-defs, allow-untyped-calls, allow-incomplete-defs

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tests.unit.device.test_cgroup import plant, v1, v2

from edgewise.device.pressure import (
    PressureGauge,
    PressureLevel,
    PressureReader,
    Reading,
)
from edgewise.device.pressure_alarm import PressureAlarm

CALM, TIGHT, CRITICAL = PressureLevel.CALM, PressureLevel.TIGHT, PressureLevel.CRITICAL
MIB = 1 << 20


def meminfo(total=8192, available=6000, free=2000, active=2000, inactive=2000, swap=0) -> str:
    lines = {
        "MemTotal": total,
        "MemFree": free,
        "MemAvailable": available,
        "Active(file)": active,
        "Inactive(file)": inactive,
        "SReclaimable": 0,
        "SwapFree": swap,
    }
    return "".join(f"{key}:  {mib * 1024} kB\n" for key, mib in lines.items())


def stall(some: float = 0.0, full: float = 0.0) -> str:
    rest = "avg60=0.00 avg300=0.00 total=1"
    return f"some avg10={some:.2f} {rest}\nfull avg10={full:.2f} {rest}\n"


def machine(root: Path, pressure: str | None = None, **mib) -> Reading:
    files = {"proc/meminfo": meminfo(**mib)}
    if pressure is not None:
        files["proc/pressure/memory"] = pressure
    return PressureReader(plant(root, files), system="linux").read()


@pytest.mark.parametrize(
    ("mib", "level"),
    [
        ({}, CALM),
        ({"available": 820}, CALM),
        ({"available": 819}, TIGHT),  # a tenth of 8 GiB
        ({"available": 0, "free": 0, "active": 200, "inactive": 5}, TIGHT),
        ({"available": 0, "free": 0, "active": 200, "inactive": 4}, CRITICAL),  # a fortieth
        ({"available": 0, "free": 1, "active": 0, "inactive": 0, "swap": 4000}, TIGHT),
        ({"total": 512 << 10, "available": 1024, "free": 1024}, CALM),  # not 51 GiB of it
        ({"total": 512 << 10, "available": 1023, "free": 1023}, TIGHT),
        ({"total": 512 << 10, "available": 9, "free": 255, "active": 0, "inactive": 0}, CRITICAL),
        ({"total": 300, "available": 15, "free": 15, "active": 0, "inactive": 0}, CRITICAL),
    ],
)
def test_levels_of_a_machine(tmp_path, mib, level):
    reading = machine(tmp_path, **mib)
    assert reading.level is level, reading
    assert reading.easing >= level
    assert reading.watched
    assert reading.available_bytes == mib.get("available", 6000) * MIB


@pytest.mark.parametrize(
    ("some", "full", "level"),
    [
        (0.0, 0.0, CALM),
        (9.99, 0.0, CALM),
        (10.0, 0.0, TIGHT),
        (90.0, 39.9, TIGHT),
        (90.0, 40.0, CRITICAL),
    ],
)
def test_levels_by_the_time_tasks_wait(tmp_path, some, full, level):
    reading = machine(tmp_path, stall(some, full))
    assert reading.level is level
    if level is not CALM:
        assert "/proc/pressure/memory" in reading.reason


@pytest.mark.parametrize(
    "text", ["", "some", "some avg10=x\nfull avg10=y\n", "full avg10=900", "\0"]
)
def test_a_malformed_pressure_file_says_nothing(tmp_path, text):
    assert machine(tmp_path, text).level is CALM


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "MemTotal: many kB\nMemAvailable: 5 kB\n",
        "MemTotal: 0 kB\nMemAvailable: 0 kB",
    ],
)
def test_without_figures_it_is_said_that_nobody_watches(tmp_path, text):
    reading = PressureReader(plant(tmp_path, {"proc/meminfo": text}), system="linux").read()
    assert not reading.watched
    assert reading.level is CALM
    assert reading.available_bytes is None
    assert reading.reason


def test_stalls_count_where_nothing_else_can_be_read(tmp_path):
    root = plant(tmp_path, {"proc/pressure/memory": stall(50.0, 45.0)})
    assert PressureReader(root, system="linux").read().level is CRITICAL


def group_v1(limit=400, used=100, inactive=0, active=0, **more) -> dict[str, str]:
    return {
        "memory/pod/app/memory.limit_in_bytes": f"{limit * MIB}\n",
        "memory/pod/app/memory.usage_in_bytes": f"{used * MIB}\n",
        "memory/pod/app/memory.stat": (
            f"total_inactive_file {inactive * MIB}\ntotal_active_file {active * MIB}\n"
        ),
        **{f"memory/pod/app/memory.{name}": text for name, text in more.items()},
    }


def group_v2(limit="400", used=100, inactive=0, active=0, **more) -> dict[str, str]:
    return {
        "a/b/memory.max": limit if limit == "max" else f"{int(limit) * MIB}\n",
        "a/b/memory.current": f"{used * MIB}\n",
        "a/b/memory.stat": f"inactive_file {inactive * MIB}\nactive_file {active * MIB}\n",
        **{f"a/b/memory.{name}": text for name, text in more.items()},
    }


@pytest.mark.parametrize(("tree", "group"), [(v1, group_v1), (v2, group_v2)])
@pytest.mark.parametrize(
    ("mib", "level"),
    [
        ({"used": 100}, CALM),
        ({"used": 400, "inactive": 40}, CALM),  # cache that is not in use is no shortage
        ({"used": 361}, TIGHT),
        ({"used": 400, "active": 300}, TIGHT),  # the kernel need not kill, but has to take cache
        ({"used": 384}, TIGHT),
        ({"used": 385}, CRITICAL),  # 16 MiB at least
        ({"used": 900}, CRITICAL),  # the limit was lowered
    ],
)
def test_levels_of_a_control_group(tmp_path, tree, group, mib, level):
    plant(tmp_path, {"proc/meminfo": meminfo()})
    reading = PressureReader(tree(tmp_path, group(**mib)), system="linux").read()
    assert reading.level is level, reading
    if level is not CALM:
        assert "control group /sys/fs/cgroup" in reading.reason


def test_the_worst_of_the_enclosing_groups_counts(tmp_path):
    plant(tmp_path, {"proc/meminfo": meminfo()})
    outer = {
        "a/memory.max": f"{1000 * MIB}",
        "a/memory.current": f"{990 * MIB}",
        "a/memory.stat": "",
    }
    reading = PressureReader(v2(tmp_path, group_v2(used=10) | outer), system="linux").read()
    assert reading.level is CRITICAL
    assert "cgroup/a:" in reading.reason


def test_a_limit_that_only_slows_down_is_never_critical(tmp_path):
    plant(tmp_path, {"proc/meminfo": meminfo()})
    root = v2(tmp_path, group_v2("max", used=500, high=f"{400 * MIB}\n"))
    assert PressureReader(root, system="linux").read().level is TIGHT


@pytest.mark.parametrize(
    ("swap", "level"),
    [({}, TIGHT), ({"swap.max": "0\n", "swap.current": "0\n"}, CRITICAL)],
)
def test_swap_is_room_where_the_group_may_use_it(tmp_path, swap, level):
    plant(tmp_path, {"proc/meminfo": meminfo(swap=500)})
    root = v2(tmp_path, group_v2(used=399, **swap))
    assert PressureReader(root, system="linux").read().level is level


def test_memory_and_swap_together_bound_a_v1_group(tmp_path):
    plant(tmp_path, {"proc/meminfo": meminfo(swap=500)})
    files = group_v1(used=399)
    reader = PressureReader(v1(tmp_path, files), system="linux")
    assert reader.read().room_bytes == 501 * MIB
    both = {"memsw.limit_in_bytes": f"{400 * MIB}", "memsw.usage_in_bytes": f"{399 * MIB}"}
    v1(tmp_path, group_v1(used=399, **both))
    assert reader.read().room_bytes == 1 * MIB


def test_the_groups_own_stalls_count_not_the_machines(tmp_path):
    plant(tmp_path, {"proc/meminfo": meminfo(), "proc/pressure/memory": stall(99.0, 99.0)})
    root = v2(tmp_path, group_v2(pressure=stall(12.0, 1.0)))
    reader = PressureReader(root, system="linux")
    assert reader.read().level is TIGHT
    assert [path.name for path in reader.pressure_files()] == ["memory", "memory.pressure"]


def counting(tmp_path, tree, files) -> list[PressureLevel]:
    """Return the level after each of several states of a tree."""
    plant(tmp_path, {"proc/meminfo": meminfo()})
    reader = PressureReader(tree(tmp_path, files[0]), system="linux")
    return [(tree(tmp_path, state), reader.read().level)[1] for state in files]


def test_a_limit_that_was_hit_is_tight_when_little_is_left(tmp_path):
    near = [group_v1(used=330, failcnt=text) for text in ("7\n", "7\n", "9\n", "9\n", "2\n", "3\n")]
    assert counting(tmp_path, v1, near) == [CALM, CALM, TIGHT, CALM, CALM, TIGHT]
    far = [group_v1(used=10, failcnt=text) for text in ("3\n", "4\n")]
    assert counting(tmp_path, v1, far) == [CALM, CALM]


@pytest.mark.parametrize("key", ["high", "max"])
def test_events_of_a_v2_group(tmp_path, key):
    states = [group_v2(used=330, events=f"low 0\n{key} {n}\noom 0\n") for n in (1, 2)]
    assert counting(tmp_path, v2, states) == [CALM, TIGHT]


@pytest.mark.parametrize("key", ["oom", "oom_kill"])
def test_memory_that_ran_out_is_critical_while_it_is_tight(tmp_path, key):
    tight = [group_v2(used=370, events=f"{key} {n}\n") for n in (0, 1, 1, 0, 1)]
    assert counting(tmp_path, v2, tight) == [TIGHT, CRITICAL, TIGHT, TIGHT, CRITICAL]
    enough = [group_v2(used=100, events=f"{key} {n}\n") for n in (0, 1)]
    assert counting(tmp_path, v2, enough) == [CALM, CALM]


def test_a_v1_group_that_is_out_of_memory(tmp_path):
    states = [
        group_v1(used=370, oom_control=f"oom_kill_disable 1\nunder_oom {n}\noom_kill 0\n")
        for n in (0, 1)
    ]
    assert counting(tmp_path, v1, states) == [TIGHT, CRITICAL]


@pytest.mark.parametrize("text", ["", "max\n", "oom many\n", "oom -1\n", "\0\0", "x" * 9000])
def test_malformed_counters_say_nothing(tmp_path, text):
    states = [group_v2(used=330, events=t) for t in ("oom 0\nmax 0\n", text, "oom 5\nmax 5\n")]
    assert counting(tmp_path, v2, states) == [CALM, CALM, CALM]


@pytest.mark.parametrize("missing", ["memory.stat", "memory.current", "memory.max"])
def test_a_file_that_vanishes_leaves_the_machine(tmp_path, missing):
    plant(tmp_path, {"proc/meminfo": meminfo()})
    root = v2(tmp_path, group_v2(used=370))
    reader = PressureReader(root, system="linux")
    assert reader.read().level is TIGHT
    (root / "sys/fs/cgroup/a/b" / missing).unlink()
    assert reader.read().level is (TIGHT if missing == "memory.stat" else CALM)


def test_a_process_that_moves_is_found_in_its_new_group(tmp_path):
    plant(tmp_path, {"proc/meminfo": meminfo()})
    now = [100.0]
    root = v2(tmp_path, group_v2(used=370))
    reader = PressureReader(root, system="linux", clock=lambda: now[0])
    assert reader.read().level is TIGHT
    (root / "proc/self/cgroup").write_text("0::/elsewhere\n")
    assert reader.read().level is TIGHT
    now[0] += 5.0
    assert reader.read().level is CALM


def test_the_less_is_left_the_sooner_it_reads_again(tmp_path):
    plant(tmp_path, {"proc/meminfo": meminfo()})
    waits = [
        PressureReader(v1(tmp_path, group_v1(used=used)), system="linux").read().next_s
        for used in (0, 200, 300, 380)
    ]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] == pytest.approx(384 / 1024)
    assert waits[-1] == 0.02
    assert machine(tmp_path / "far").next_s == 0.5


def test_elsewhere_psutil_is_asked(tmp_path):
    reading = PressureReader(tmp_path, system="darwin").read()
    assert reading.watched
    assert reading.available_bytes is not None


def test_elsewhere_without_psutil_nobody_watches(tmp_path, monkeypatch):
    monkeypatch.setattr("edgewise.device.memory_places.psutil_module", lambda: None)
    reader = PressureReader(tmp_path, system="win32")
    assert not reader.read().watched
    assert reader.pressure_files() == []


def reading(level: PressureLevel, easing: PressureLevel | None = None) -> Reading:
    return Reading(
        level=level,
        easing=level if easing is None else easing,
        reason="test",
        available_bytes=0,
        room_bytes=0,
        next_s=0.1,
    )


def test_a_level_rises_at_once_and_falls_after_a_while_with_some_to_spare():
    gauge = PressureGauge(hold_s=5.0)
    story = [
        (0.0, reading(CALM), CALM),
        (1.0, reading(TIGHT), TIGHT),
        (2.0, reading(CALM), TIGHT),
        (6.9, reading(CALM), TIGHT),
        (7.0, reading(CALM), CALM),
        (8.0, reading(CRITICAL), CRITICAL),
        (9.0, reading(CALM), CRITICAL),
        (13.0, reading(CALM, TIGHT), CRITICAL),
        (14.0, reading(CALM, TIGHT), TIGHT),  # never read as calm with enough to spare
        (15.0, reading(CALM, CALM), TIGHT),
        (19.0, reading(CALM, TIGHT), TIGHT),  # and that begins again
        (21.0, reading(CALM, CALM), TIGHT),
        (26.0, reading(CALM, CALM), CALM),
    ]
    for now, seen, level in story:
        assert gauge.take(seen, now) is level, now


def test_a_level_at_its_bound_does_not_flap():
    gauge = PressureGauge(hold_s=5.0)
    levels = {gauge.take(reading((CALM, TIGHT)[n % 2], TIGHT), n * 10.0) for n in range(1, 50)}
    assert levels == {TIGHT}


def test_somebody_who_waits_can_be_woken_and_stays_awake(tmp_path):
    alarm = PressureAlarm([tmp_path / "none"])
    assert alarm.triggers == 0
    assert alarm.wait(0.0)
    threading.Thread(target=alarm.wake).start()
    started = time.perf_counter()
    assert not alarm.wait(30.0)
    assert not alarm.wait(30.0)
    assert time.perf_counter() - started < 10
    alarm.close()
    alarm.wake()  # after the end: nothing to wake, and no descriptor of anybody else's


def test_a_file_that_takes_no_trigger_is_left_out(tmp_path):
    readonly = tmp_path / "pressure"
    readonly.mkdir()
    alarm = PressureAlarm([readonly])
    assert alarm.triggers == 0
    alarm.close()


def test_the_kernel_takes_the_trigger():
    path = Path("/proc/pressure/memory")
    if not path.exists():
        pytest.skip("this kernel has no pressure-stall information")
    alarm = PressureAlarm([path])
    if not alarm.triggers:
        alarm.close()
        pytest.skip("this kernel takes no trigger from this user")
    assert alarm.wait(0.0)
    alarm.close()
    assert alarm.triggers == 0
