"""Processor and memory on fake trees, and on this machine."""

# mypy: allow-untyped-defs, no-check-untyped-defs, allow-untyped-calls, allow-incomplete-defs

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgewise.core.quantity import Declared, Measured, Unknown
from edgewise.device import cpu as cpu_module
from edgewise.device import memory as memory_module
from edgewise.device.cpu import read_cpu, usable_cpus
from edgewise.device.memory import available_now, hugetlb_tunable, read_memory
from edgewise.device.tree import cpu_list

X86 = """processor\t: {n}
vendor_id\t: GenuineIntel
model name\t: Xeon Test
physical id\t: 0
core id\t\t: {core}
flags\t\t: fpu sse4_2 avx avx2 fma f16c avx512f avx512_vnni amx_int8
"""
ARM = """processor\t: {n}
Features\t: fp asimd {more}
CPU implementer\t: 0x41
CPU part\t: {part}
"""
MEMINFO = "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def caches(cpus: int, shared: list[str]) -> dict[str, str]:
    files: dict[str, str] = {}
    for cpu in range(cpus):
        base = f"sys/devices/system/cpu/cpu{cpu}/cache"
        for index, (level, size, who) in enumerate(
            [(2, "512K", str(cpu)), (3, "16M", shared[cpu])]
        ):
            files |= {
                f"{base}/index{index}/level": str(level),
                f"{base}/index{index}/type": "Unified",
                f"{base}/index{index}/size": size,
                f"{base}/index{index}/shared_cpu_list": who,
            }
    return files


def test_x86_with_two_last_level_caches_and_smt(tmp_path):
    blocks = "\n".join(X86.format(n=n, core=n // 2) for n in range(4))
    shared = ["0-1", "0-1", "2-3", "2-3"]
    plant(tmp_path, {"proc/cpuinfo": blocks, "sys/devices/system/cpu/online": "0-3\n"})
    plant(tmp_path, caches(4, shared))
    info = read_cpu(tmp_path, system="linux", mask=frozenset({0, 1, 2, 3}))
    assert info.model.value == "Xeon Test"
    assert (info.cores_logical.value, info.cores_physical.value) == (4, 2)
    assert info.cores_usable.value == 4
    assert {"avx512_vnni", "amx_int8", "f16c"} <= set(info.instruction_sets.value)
    assert info.simd_bits.value == 512
    assert info.l2_bytes.value == 512 << 10
    assert (info.l3_bytes.value, info.l3_total_bytes.value) == (16 << 20, 32 << 20)
    # Bound to one cluster, only its cache is reached.
    bound = read_cpu(tmp_path, system="linux", mask=frozenset({2, 3}))
    assert bound.l3_total_bytes.value == 16 << 20
    assert bound.cores_usable.value == 2


def test_arm_big_little_shares_only_common_sets(tmp_path):
    blocks = [ARM.format(n=0, more="asimddp i8mm sve", part="0xd05")]
    blocks += [ARM.format(n=1, more="asimddp", part="0xd0b")]
    plant(tmp_path, {
        "proc/cpuinfo": "\n".join(blocks),
        "sys/firmware/devicetree/base/model": "Board Model 5\0",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "2400000",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "1200000",
    })  # fmt: skip
    info = read_cpu(tmp_path, system="linux", mask=frozenset({0, 1}))
    assert info.model.value == "ARM part 0xd05 + 0xd0b"
    assert info.vendor.value == "ARM"
    assert info.soc.value == "Board Model 5"
    assert info.instruction_sets.value == ("asimd", "asimddp", "neon")
    assert info.simd_bits.value == 128
    assert info.frequency_max_hz == Declared(
        value=2_400_000_000, source="cpufreq cpuinfo_max_freq, cpu0"
    )
    assert info.frequency_limit_ratio.value == 0.5


@pytest.mark.parametrize(("quota", "usable"), [("150000 100000", 1.5), ("max 100000", 2)])
def test_usable_is_the_least_of_mask_and_quota(tmp_path, quota, usable):
    plant(tmp_path, {
        "proc/self/cgroup": "0::/a\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu",
        "sys/fs/cgroup/a/cpu.max": quota,
    })  # fmt: skip
    assert usable_cpus(tmp_path, mask=frozenset({0, 1})).value == usable


def test_an_empty_tree_is_unknown_with_reasons(tmp_path):
    info = read_cpu(tmp_path, system="linux", mask=frozenset({0}))
    for name in ("model", "vendor", "cores_logical", "cores_physical", "instruction_sets",
                 "simd_bits", "l2_bytes", "l3_bytes", "frequency_max_hz"):  # fmt: skip
        assert isinstance(getattr(info, name), Unknown), name
    memory = read_memory(tmp_path, system="linux")
    assert isinstance(memory.total_bytes, Unknown)
    assert isinstance(memory.budget_bytes, Unknown)
    assert isinstance(memory.transparent_huge_pages, Unknown)


def test_mac_reads_recorded_sysctl(tmp_path, monkeypatch):
    recorded = {
        "machdep.cpu.brand_string": "Apple M3", "hw.physicalcpu": "8", "hw.l2cachesize": "4194304",
        "hw.optional.arm64": "1", "hw.optional.arm.FEAT_I8MM": "1", "hw.model": "Mac15,3",
    }  # fmt: skip
    monkeypatch.setattr(cpu_module, "sysctl", lambda: recorded)
    info = read_cpu(tmp_path, system="darwin")
    assert info.model.value == "Apple M3"
    assert info.cores_physical.value == 8
    assert info.instruction_sets.value == ("asimd", "i8mm", "neon")
    assert info.frequency_limit_ratio == Unknown(reason="not read on darwin")


def test_budget_is_the_least_of_available_headroom_and_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_module, "process_limit", lambda: Unknown(reason="no limit set"))
    plant(tmp_path, {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/a\n",
        "sys/fs/cgroup/cgroup.controllers": "memory",
        "sys/fs/cgroup/a/memory.max": str(1 << 30),
        "sys/fs/cgroup/a/memory.current": str(1 << 29),
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/kernel/mm/transparent_hugepage/hpage_pmd_size": "2097152\n",
    })  # fmt: skip
    memory = read_memory(tmp_path, system="linux")
    assert memory.limit_bytes.value == 1 << 30
    assert memory.budget_bytes.value == 1 << 29
    assert memory.transparent_huge_pages.value == "madvise"
    assert memory.huge_page_bytes.value == 2 << 20
    assert available_now(tmp_path, system="linux").value == 1 << 29
    monkeypatch.setattr(memory_module, "process_limit", lambda: Measured(value=99, source="t"))
    assert read_memory(tmp_path, system="linux").budget_bytes.value == 99


def test_no_limit_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_module, "process_limit", lambda: Unknown(reason="no limit set"))
    plant(tmp_path, {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cgroup.controllers": "memory",
    })  # fmt: skip
    memory = read_memory(tmp_path, system="linux")
    assert memory.limit_bytes == Unknown(reason="no limit set")
    assert memory.budget_bytes.value == 4_000_000 * 1024


@pytest.mark.parametrize(
    ("libc", "supported"),
    [
        (("glibc", "2.34"), False),
        (("glibc", "2.35"), True),
        (("glibc", "3.0"), True),
        (("musl", "1.2"), False),
        (("glibc", "x"), None),
        (None, None),
    ],
)
def test_hugetlb_tunable(libc, supported):
    found = hugetlb_tunable(libc)
    assert isinstance(found, Unknown) if supported is None else found.value is supported


def test_cpu_lists():
    assert cpu_list("0-3,7\n") == {0, 1, 2, 3, 7}
    assert cpu_list("x,1-y,") == set()
    assert cpu_list(None) == set()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_this_machine():
    info, memory = read_cpu(), read_memory()
    assert 1 <= info.cores_logical.value <= (os.cpu_count() or 1)
    assert 0 < info.cores_usable.value <= info.cores_logical.value
    assert 0 < memory.budget_bytes.value <= memory.total_bytes.value


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_affinity_bounds_the_usable_cores():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from pathlib import Path; from edgewise.device import probe\n"
        "print(probe(storage_path=Path('.'), measure=False).cpu.cores_usable.value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) <= 1
