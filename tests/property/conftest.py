"""A loaded machine is slow, not wrong: no time limit per example."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("edgewise", deadline=None)
settings.load_profile("edgewise")
