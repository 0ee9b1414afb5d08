"""Building: from a checkpoint and a recipe to an artifact with its receipt."""

from edgewise.build.builder import BuildReceipt, build

__all__ = ["BuildReceipt", "build"]
