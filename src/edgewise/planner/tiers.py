"""Reference tiers, shipped as data with a source beside every number."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import msgspec

from edgewise.core.tier import Tier
from edgewise.errors import InputError

__all__ = ["THIS_DEVICE", "load_tier", "tier_names"]

THIS_DEVICE = "this-device"


def tier_names() -> tuple[str, ...]:
    """Return the names of the reference tiers, sorted."""
    folder = files("edgewise.planner") / "reference_tiers"
    return tuple(
        sorted(e.name.removesuffix(".toml") for e in folder.iterdir() if e.name.endswith(".toml"))
    )


def load_tier(name: str) -> Tier:
    """Return a reference tier.

    Raises:
        InputError: there is no such tier.
    """
    if name not in tier_names():
        raise InputError(
            "tier-unknown",
            f"there is no tier called {name!r}",
            context={"tiers": [THIS_DEVICE, *tier_names()]},
            hint=f"choose one of: {THIS_DEVICE}, {', '.join(tier_names())}",
        )
    text = (files("edgewise.planner") / "reference_tiers" / f"{name}.toml").read_text(
        encoding="utf-8"
    )
    return msgspec.convert(tomllib.loads(text), type=Tier)
