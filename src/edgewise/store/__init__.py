"""The home on disk."""

from edgewise.store.bundles import BundleStore
from edgewise.store.evidence import EvidenceStore
from edgewise.store.home import Home

__all__ = ["BundleStore", "EvidenceStore", "Home"]
