"""Settings that the family's engines refuse before anything native is loaded."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from edgewise.core.recipe import KvType, RunConfig
from edgewise.errors import UnsupportedError
from edgewise.runtimes import pages
from edgewise.runtimes.llamacpp.engine import LlamaCppEngine


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (RunConfig(hints=(("repack", "1"),)), "hint-unknown"),
        (RunConfig(kv_type=KvType.U8), "kv-type-unsupported"),
        (RunConfig(kv_type=KvType.F32), "kv-type-unsupported"),
    ],
)
def test_a_setting_it_does_not_have(config: RunConfig, code: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        LlamaCppEngine(Path("absent.gguf"), config)
    assert caught.value.code == code


def test_huge_pages_keep_the_users_tunables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert pages.environment(RunConfig()) == {}
    wanted = RunConfig(huge_pages=True)
    assert pages.environment(wanted) == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    assert pages.environment(wanted)["GLIBC_TUNABLES"].startswith("glibc.malloc.check=1:")


@pytest.mark.parametrize(
    ("found", "expected"),
    [(("glibc", "2.36"), True), (("glibc", "2.34"), False), (("musl", "1.2"), False)],
)
def test_huge_pages_need_a_new_enough_allocator(
    monkeypatch: pytest.MonkeyPatch, found: tuple[str, str], *, expected: bool
) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: found)
    assert pages.possible() is expected
