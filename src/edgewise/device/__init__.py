"""What this machine is and how it is doing: profile, live signals, page cache.

``probe`` describes the machine once; ``read_state`` reads the live signals before a request.
Nothing here decides what fits or what runs.
"""

from edgewise.device.contention import detect_contention
from edgewise.device.page_cache import page_cache_ratio
from edgewise.device.probe import probe
from edgewise.device.profile import DeviceProfile, RuntimePresence
from edgewise.device.signals import read_state

__all__ = [
    "DeviceProfile",
    "RuntimePresence",
    "detect_contention",
    "page_cache_ratio",
    "probe",
    "read_state",
]
