"""Qualification: whether an artifact may be activated on this device."""

from edgewise.qualify.smoke import SmokeReport, smoke

__all__ = ["SmokeReport", "smoke"]
