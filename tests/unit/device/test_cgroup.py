"""Control-group limits on fake trees of both versions, and one real v1 group."""

# mypy: allow-untyped-defs, no-check-untyped-defs, allow-untyped-calls, allow-incomplete-defs

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgewise.core.quantity import Unknown
from edgewise.device.cgroup import (
    cpu_quota,
    cpu_throttle,
    find_group,
    memory_headroom,
    memory_limit,
    pressure_some_ratio,
    read_container,
    under_oom,
)

V2_MOUNT = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
CONTROLLERS = {"sys/fs/cgroup/cgroup.controllers": "cpu memory io"}


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(root: Path, files: dict[str, str], group: str = "/a/b") -> Path:
    base = {"proc/self/cgroup": f"0::{group}\n", "proc/self/mountinfo": V2_MOUNT}
    return plant(root, base | CONTROLLERS | {f"sys/fs/cgroup/{k}": t for k, t in files.items()})


def v1(root: Path, files: dict[str, str], inside: str = "/") -> Path:
    base = {
        "proc/self/cgroup": "4:memory:/pod/app\n3:cpu,cpuacct:/pod/app\n0::/x\n",
        "proc/self/mountinfo": (
            f"33 31 0:30 {inside} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            f"36 31 0:33 {inside} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        ),
    }
    return plant(root, base | {f"sys/fs/cgroup/{k}": t for k, t in files.items()})


def test_v2_takes_the_tightest_of_nested_groups(tmp_path):
    root = v2(
        tmp_path,
        {
            "a/b/memory.max": "max\n",
            "a/b/memory.high": "4000000\n",
            "a/b/memory.current": "1500000\n",
            "a/b/memory.stat": "anon 1\ninactive_file 500000\n",
            "a/memory.max": "3000000\n",
            "a/memory.current": "2900000\n",
            "a/memory.stat": "inactive_file 100000\n",
        },
    )
    assert memory_limit(root).value == 3_000_000
    assert memory_headroom(root).value == 200_000
    assert memory_headroom(root).source.startswith("cgroup v2")


@pytest.mark.parametrize(
    ("inner", "outer", "cores"),
    [
        ("150000 100000", "max 100000", 1.5),
        ("max 100000", "50000 100000", 0.5),
        ("400000 100000", "200000 50000", 4.0),
        ("max 100000", "max 100000", None),
        ("garbage", "", None),
    ],
)
def test_v2_cpu_quota(tmp_path, inner, outer, cores):
    root = v2(tmp_path, {"a/b/cpu.max": inner, "a/cpu.max": outer})
    quota = cpu_quota(root)
    assert quota == Unknown(reason="no limit set") if cores is None else quota.value == cores


def test_v2_without_the_controller_is_no_group(tmp_path):
    root = v2(tmp_path, {"cgroup.controllers": "pids"})
    assert find_group(root, "memory") is None
    assert "no control group" in memory_limit(root).reason


def test_v2_group_outside_the_namespace_reads_the_mount(tmp_path):
    root = v2(tmp_path, {"memory.max": "77"}, group="/../../other")
    assert memory_limit(root).value == 77


def test_v1_quota_limit_and_headroom(tmp_path):
    root = v1(
        tmp_path,
        {
            "cpu,cpuacct/pod/app/cpu.cfs_quota_us": "-1",
            "cpu,cpuacct/pod/app/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/pod/cpu.cfs_quota_us": "150000",
            "cpu,cpuacct/pod/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/pod/cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 9\n",
            "memory/pod/app/memory.limit_in_bytes": "9223372036854771712",
            "memory/pod/memory.limit_in_bytes": "1000",
            "memory/pod/memory.usage_in_bytes": "900",
            "memory/pod/memory.stat": "total_inactive_file 300\n",
            "memory/pod/app/memory.oom_control": "oom_kill_disable 0\nunder_oom 1\noom_kill 0",
        },
    )
    assert cpu_quota(root).value == 1.5
    assert memory_limit(root).value == 1000
    assert memory_headroom(root).value == 400
    assert under_oom(root) is True
    throttle = cpu_throttle(root)
    assert throttle is not None
    assert (throttle.periods, throttle.throttled) == (10, 4)


def test_v1_container_mount_hides_the_outer_path(tmp_path):
    root = v1(tmp_path, {"memory/app/memory.limit_in_bytes": "5000"}, inside="/pod")
    assert memory_limit(root).value == 5000
    # The usage file is missing: room is unknown, not the whole limit.
    assert isinstance(memory_headroom(root), Unknown)


def test_usage_above_the_limit_leaves_zero_not_negative(tmp_path):
    root = v2(tmp_path, {"a/b/memory.max": "10", "a/b/memory.current": "50"})
    assert memory_headroom(root).value == 0


def test_absent_files_say_why(tmp_path):
    for read in (memory_limit, memory_headroom, cpu_quota):
        assert read(tmp_path).reason
    assert cpu_throttle(tmp_path) is None
    assert under_oom(tmp_path) is None
    assert "cannot be read" in read_container(tmp_path).cgroup_version.reason


@pytest.mark.parametrize(
    ("lines", "version"), [("0::/\n", "v2"), ("1:cpu:/\n", "v1"), ("1:cpu:/\n0::/\n", "hybrid")]
)
def test_version_names(tmp_path, lines, version):
    plant(tmp_path, {"proc/self/cgroup": lines})
    assert read_container(tmp_path).cgroup_version.value == version


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"run/systemd/container": "lxc\n"}, "lxc"),
        ({"proc/self/cgroup": "0::/kubepods/pod1\n"}, "kubepods"),
        ({}, "none"),
    ],
)
def test_container_markers(tmp_path, files, kind):
    assert read_container(plant(tmp_path, files)).container.value == kind


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        ("some avg10=12.50 avg60=0 avg300=0 total=1\nfull avg10=90.0", 0.125),
        ("some avg10=nan avg60=0", None),
        ("some avg10=x", None),
        ("full avg10=1", None),
        ("", None),
        (None, None),
    ],
)
def test_pressure_files(text, ratio):
    assert pressure_some_ratio(text) == ratio


@pytest.mark.root
@pytest.mark.slow
def test_a_real_v1_memory_group_limits_the_budget():
    parent = Path("/sys/fs/cgroup/memory")
    if os.geteuid() != 0 or not (parent / "memory.limit_in_bytes").exists():
        pytest.skip("needs root and a writable cgroup v1 memory hierarchy")
    folder = parent / f"edgewise-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"the hierarchy cannot be written: {error.strerror}")
    code = (
        "import os, sys; from pathlib import Path\n"
        "Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
        "from edgewise.device.memory import read_memory\n"
        "m = read_memory(); print(m.limit_bytes.value, m.budget_bytes.value)"
    )
    limit = 256 << 20
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit))
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found, budget = map(int, done.stdout.split())
        assert found == limit
        assert limit // 2 < budget < limit
    finally:
        folder.rmdir()
