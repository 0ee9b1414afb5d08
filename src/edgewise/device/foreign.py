"""Systems other than Linux: the few readings that macOS and psutil give honestly.

Invariant: what cannot be read is absent from the mapping or ``None``; nothing is made up.
Never run on hardware by this project's own tests: the readers are tested on recorded text.
"""

from __future__ import annotations

import subprocess
from types import ModuleType

from edgewise.device.tree import key_values

__all__ = ["psutil_module", "sysctl"]

_SYSCTL = "/usr/sbin/sysctl"
_TIMEOUT_S = 2.0


def sysctl() -> dict[str, str]:
    """Return what macOS's ``sysctl`` says under hw, machdep.cpu, kern and vm, by name."""
    try:
        done = subprocess.run(
            [_SYSCTL, "hw", "machdep.cpu", "kern.osversion", "vm.swapusage"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return {}
    return key_values(done.stdout, ":")


def psutil_module() -> ModuleType | None:
    """Return psutil, imported on first use, or ``None`` where it does not load."""
    try:
        import psutil  # noqa: PLC0415 - keeps imports quick
    except ImportError:
        return None
    module: ModuleType = psutil
    return module
