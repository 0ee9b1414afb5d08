"""Tiers by name."""

from __future__ import annotations

import pytest

from edgewise.errors import InputError
from edgewise.planner import THIS_DEVICE, load_tier, tier_names


def test_names_are_sorted_and_load() -> None:
    names = tier_names()
    assert names == tuple(sorted(names))
    assert len(names) == 6
    assert THIS_DEVICE not in names
    assert [load_tier(name).name for name in names] == list(names)


@pytest.mark.parametrize(
    "name", ["", "Laptop", "laptop.toml", "../reference_tiers/laptop", THIS_DEVICE, "\ud800"]
)
def test_an_unknown_tier_lists_the_known(name: str) -> None:
    with pytest.raises(InputError) as caught:
        load_tier(name)
    error = caught.value
    assert error.code == "tier-unknown"
    assert error.context == {"tiers": [THIS_DEVICE, *tier_names()]}
    assert all(known in str(error.hint) for known in (THIS_DEVICE, *tier_names()))
    error.message.encode()
