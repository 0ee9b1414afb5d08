"""The reference tiers load, name themselves, and say where every number comes from."""

# mypy: allow-untyped-defs, no-check-untyped-defs, allow-untyped-calls, allow-incomplete-defs

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from edgewise.core.quantity import Declared, Estimated, Unknown
from edgewise.core.tier import Tier

FOLDER = Path(str(files("edgewise.planner"))) / "reference_tiers"
PATHS = sorted(FOLDER.glob("*.toml"))
NAMES = {
    "android-mid",
    "browser-tab",
    "laptop",
    "phone-flagship",
    "phone-two-years",
    "raspberry-pi",
}
QUANTITIES = (
    "memory_total_bytes",
    "memory_budget_bytes",
    "memory_bandwidth_bytes_s",
    "compute_gflops",
)


def load(path: Path) -> Tier:
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), type=Tier)


def test_the_six_reference_tiers_are_there():
    assert {path.stem for path in PATHS} == NAMES


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
class TestTier:
    def test_tomllib_and_msgspec_read_the_same_tier(self, path):
        tier = load(path)
        assert tier == msgspec.toml.decode(path.read_bytes(), type=Tier)
        assert tier.name == path.stem
        assert msgspec.json.decode(msgspec.json.encode(tier), type=Tier) == tier

    @pytest.mark.parametrize("field", QUANTITIES)
    def test_a_quantity_is_positive_or_says_what_is_missing(self, path, field):
        quantity = getattr(load(path), field)
        if isinstance(quantity, Unknown):
            assert quantity.reason
            return
        assert isinstance(quantity, Declared | Estimated)  # a class of devices was never measured
        assert quantity.number > 0
        if field.endswith("_bytes"):
            assert isinstance(quantity.value, int)

    def test_an_assumption_is_not_passed_off_as_a_declaration(self, path):
        tier = load(path)
        for field in QUANTITIES:
            quantity = getattr(tier, field)
            if isinstance(quantity, Declared):
                assert "assum" not in quantity.source

    def test_a_peak_is_called_a_peak(self, path):
        assert "theoretical peak" in load(path).memory_bandwidth_bytes_s.source

    def test_a_source_other_than_the_definition_or_an_assumption_has_a_year(self, path):
        tier = load(path)
        for field in QUANTITIES:
            quantity = getattr(tier, field)
            if isinstance(quantity, Unknown):
                continue
            exempt = ("defined as", "assumption of this project", "tier)", "documentation")
            dated = re.search(r"\b20[12]\d\b", quantity.source) is not None
            assert dated or any(word in quantity.source for word in exempt), field

    def test_the_budget_fits_and_the_text_is_whole(self, path):
        tier = load(path)
        assert tier.memory_budget_bytes.number < tier.memory_total_bytes.number
        assert tier.page_bytes in {4096, 16384, 65536}
        assert tier.title
        assert tier.os
        assert tier.abi
        assert tier.notes.endswith(".")
        assert "  " not in tier.notes
        assert "\n" not in tier.notes
        assert "://" not in path.read_text(encoding="utf-8")
