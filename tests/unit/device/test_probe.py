"""Bandwidth, contention and the whole probe."""

# mypy: allow-untyped-defs, no-check-untyped-defs, allow-untyped-calls, allow-incomplete-defs

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from edgewise import device
from edgewise.core.quantity import Declared, Estimated, Measured, Unknown
from edgewise.device import bandwidth
from edgewise.device.bandwidth import buffer_bytes, huge_bytes_given, measure_bandwidth
from edgewise.device.contention import detect_contention, spin_share
from edgewise.device.kernels import summarise
from edgewise.device.probe import probe
from edgewise.device.profile import DeviceProfile, RuntimePresence
from edgewise.device.sections import BandwidthPoint

GIB = 1 << 30


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def known(value: float) -> Measured:
    return Measured(value=value, source="test")


def stat(*, busy: int = 0, idle: int = 0, steal: int = 0) -> str:
    return "".join(f"cpu{n} {busy} 0 0 {idle} 0 0 0 {steal} 0 0\n" for n in range(2))


class TestContention:
    def detect(self, root, before, after, share=1.0, **files):
        plant(root, {"proc/stat": before, "proc/loadavg": "0.1 0.1 0.1 1/80 99\n"} | files)
        ticks = itertools.count()
        return detect_contention(
            root,
            system="linux",
            mask=frozenset({0, 1}),
            sleep=lambda _: (
                plant(root, after if isinstance(after, dict) else {"proc/stat": after}) and None
            ),
            clock=lambda: next(ticks) * 0.2,
            spin=lambda _: share,
        )

    def test_quiet(self, tmp_path):
        info = self.detect(tmp_path, stat(), stat(busy=0, idle=20))
        assert info.contended is False
        assert info.reasons == ()
        assert info.others_busy_cores.value == 0

    def test_a_busy_neighbour(self, tmp_path):
        info = self.detect(tmp_path, stat(), stat(busy=10, idle=10))
        assert info.contended is True
        assert info.others_busy_cores.value == pytest.approx(1.0, abs=0.1)
        assert "other processes use" in info.reasons[0]

    def test_steal(self, tmp_path):
        info = self.detect(tmp_path, stat(), stat(idle=15, steal=5))
        assert info.steal_ratio.value == 0.25
        assert "hypervisor" in info.reasons[0]

    def test_pressure_and_runnable(self, tmp_path):
        info = self.detect(
            tmp_path, stat(), stat(idle=20),
            **{"proc/pressure/cpu": "some avg10=40.0", "proc/loadavg": "5.0 1 1 6/80 9"},
        )  # fmt: skip
        assert len(info.reasons) == 2
        assert info.load_1min.value == 5.0
        assert info.runnable_others.value == 5

    def test_throttled_by_the_quota(self, tmp_path):
        group = {"proc/self/cgroup": "0::/a", "sys/fs/cgroup/cgroup.controllers": "cpu"}
        path = "sys/fs/cgroup/a/cpu.stat"
        info = self.detect(
            tmp_path,
            stat(),
            {"proc/stat": stat(idle=20), path: "nr_periods 12\nnr_throttled 4"},
            **group,
            **{path: "nr_periods 10\nnr_throttled 3"},
        )
        assert info.throttled_ratio.value == 0.5
        assert "quota throttled us in 50%" in info.reasons[0]

    def test_a_thread_that_gets_half_a_core(self, tmp_path):
        info = self.detect(tmp_path, stat(), stat(idle=20), share=0.5)
        assert info.reasons == ("a spinning thread of ours got only 50% of a core",)

    def test_blind_is_not_quiet(self, tmp_path):
        info = detect_contention(
            tmp_path, system="linux", sleep=lambda _: None, spin=lambda _: None
        )
        assert info.contended is None
        assert isinstance(info.others_busy_cores, Unknown)

    @pytest.mark.slow
    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/stat")
    def test_a_real_busy_process_is_seen(self):
        with subprocess.Popen(
            [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
        ) as child:
            try:
                assert child.stdout is not None
                child.stdout.readline()
                info = detect_contention()
            finally:
                child.kill()
        assert info.contended is True
        assert info.others_busy_cores.value > 0.3

    def test_spin_share_is_a_ratio(self):
        share = spin_share(1, duration_s=0.01)
        assert share is None or 0 < share <= 1


class TestBuffer:
    @pytest.mark.parametrize(
        ("available", "cache", "size"),
        [
            (16 * GIB, 32 << 20, 128 << 20),
            (16 * GIB, 8 << 20, 128 << 20),
            (16 * GIB, 100 << 20, 400 << 20),
            (16 * GIB, 200 << 20, 512 << 20),
            (512 << 20, 8 << 20, 64 << 20),
        ],
    )
    def test_size(self, available, cache, size):
        assert buffer_bytes(available_bytes=known(available), l3_total_bytes=known(cache)) == size

    @pytest.mark.parametrize(
        ("available", "cache"), [(256 << 20, 32 << 20), (16 * GIB, 384 << 20), (0, 0)]
    )
    def test_too_little_memory_is_unknown(self, available, cache):
        size = buffer_bytes(available_bytes=known(available), l3_total_bytes=known(cache))
        assert isinstance(size, Unknown)

    def test_unknown_memory(self):
        gap = Unknown(reason="x")
        assert isinstance(buffer_bytes(available_bytes=gap, l3_total_bytes=gap), Unknown)
        info = measure_bandwidth(threads=1, available_bytes=gap, l3_total_bytes=gap)
        assert isinstance(info.read_base_bytes_s, Unknown)
        assert info.base_points == ()

    def test_huge_bytes_of_the_right_mapping(self):
        smaps = (
            "1000-2000 rw-p 00000000 00:00 0\nAnonHugePages:      2048 kB\nVmFlags: rd wr\n"
            "2000-3000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:      4096 kB\n"
        )
        assert huge_bytes_given(smaps, 0x2000) == 4096 << 10
        assert huge_bytes_given(smaps, 0x1FFF) == 2048 << 10
        assert huge_bytes_given(smaps, 0x9000) == 0

    def test_pages_not_given_are_unknown(self, monkeypatch):
        monkeypatch.setattr(bandwidth, "huge_bytes_given", lambda *_: 0)
        monkeypatch.setattr(bandwidth, "_MIN_BUFFER_BYTES", 4 << 20)
        info = measure_bandwidth(
            threads=1, available_bytes=known(GIB), l3_total_bytes=known(1 << 20)
        )
        assert "0 of 4194304 bytes in huge pages" in info.read_huge_bytes_s.reason

    def test_out_of_time_is_unknown(self, monkeypatch):
        monkeypatch.setattr(bandwidth, "_MIN_BUFFER_BYTES", 4 << 20)
        monkeypatch.setattr(bandwidth, "_BUDGET_S", 0.0)
        info = measure_bandwidth(
            threads=2, available_bytes=known(GIB), l3_total_bytes=known(1 << 20)
        )
        assert "in the time allowed" in info.read_base_bytes_s.reason
        assert [p.threads for p in info.base_points] == [1, 2]

    def test_summary_is_median_and_half_the_quartile_range(self):
        value = summarise([1.0, 2.0, 3.0, 4.0, 100.0], "test")
        assert (value.value, value.n) == (3.0, 5)
        assert value.spread == pytest.approx((52.0 - 1.5) / 2)
        assert summarise([7.0], "test").spread == 0


@pytest.mark.slow
def test_probe_of_this_machine(tmp_path):
    said = []
    presence = RuntimePresence(name="fake", version="1", can_run=False, reason="a test")
    start = time.perf_counter()
    profile = probe(storage_path=tmp_path, runtimes=lambda: [presence], progress=said.append)
    assert time.perf_counter() - start < 5
    assert said[0] == "reading the system"
    assert profile.runtimes == (presence,)
    for point in (*profile.bandwidth.base_points, *profile.bandwidth.huge_points):
        if isinstance(point.read_bytes_s, Measured):
            assert point.read_bytes_s.n >= 5
            assert 1e8 < point.read_bytes_s.number < 1e13
            assert point.read_bytes_s.device == profile.digest
    assert_leaves_are_quantities(profile)
    raw = msgspec.json.encode(profile)
    assert msgspec.json.decode(raw, type=DeviceProfile) == profile


def assert_leaves_are_quantities(node: object) -> None:
    plain = (bool, int, str, type(None))
    if isinstance(node, Measured | Estimated | Declared):
        assert not isinstance(node.value, float) or math.isfinite(node.value)
        assert node.source
    elif isinstance(node, Unknown):
        assert node.reason
    elif isinstance(node, tuple):
        for item in node:
            assert_leaves_are_quantities(item)
    elif isinstance(node, msgspec.Struct):
        for name in node.__struct_fields__:
            value = getattr(node, name)
            free = isinstance(node, RuntimePresence | BandwidthPoint)
            free = free or name in ("contended", "reasons", "schema_version")
            assert free or not isinstance(value, plain), name
            assert_leaves_are_quantities(value)


def test_probe_that_only_reads_says_so(tmp_path):
    profile = probe(storage_path=tmp_path, measure=False)
    assert profile.contention.contended is None
    assert "only to read" in profile.bandwidth.read_base_bytes_s.reason


@pytest.mark.parametrize("system", ["linux", "darwin", "win32", "freebsd14"])
def test_probe_of_an_empty_tree_never_raises(tmp_path, system):
    profile = probe(storage_path=tmp_path, measure=False, root=tmp_path, system=system)
    assert_leaves_are_quantities(profile)
    assert len(profile.digest) == 64


def test_digest_covers_identity_only(tmp_path):
    profile = probe(storage_path=tmp_path, measure=False)
    again = probe(storage_path=tmp_path.parent, measure=False)
    assert profile.digest == again.digest

    def memory(total):
        changed = msgspec.structs.replace(profile.memory, total_bytes=known(total))
        return msgspec.structs.replace(profile, memory=changed)

    assert memory(8 * GIB).digest == memory(8 * GIB - (3 << 20)).digest
    assert memory(8 * GIB).digest != memory(4 * GIB).digest
    cpu = msgspec.structs.replace(profile.cpu, cores_usable=known(0.5))
    assert msgspec.structs.replace(profile, cpu=cpu).digest == profile.digest


def test_unknown_fields_are_refused(tmp_path):
    raw = msgspec.to_builtins(probe(storage_path=tmp_path, measure=False))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(raw | {"extra": 1}, DeviceProfile)


def test_public_names_are_real_and_imports_are_light():
    assert sorted(device.__all__) == list(device.__all__)
    assert all(hasattr(device, name) for name in device.__all__)
    code = "import sys, edgewise.device; print({'numpy', 'psutil', 'rfc8785'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.stdout.strip() == "set()"
