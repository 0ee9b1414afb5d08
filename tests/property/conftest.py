"""What the properties of the cloud tier share with its tests."""

from tests.unit.route.cloud.conftest import desk

__all__ = ["desk"]
