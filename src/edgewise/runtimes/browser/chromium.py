"""Finding a Chromium-class browser on this machine, and the switches it is started with."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from edgewise.errors import UnsupportedError

__all__ = ["BROWSER_VARIABLE", "find_browser", "require_browser", "switches"]

BROWSER_VARIABLE = "CHROMIUM"
_COMMANDS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "microsoft-edge",
)
_MAC_APPLICATIONS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)

# A browser asks its vendor's servers for many things at every start. None of them is wanted:
# names do not resolve, and whatever is not loopback is sent to a proxy that is not there.
_QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-pings",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=127.0.0.1",
)


def find_browser() -> Path | None:
    """Return the browser that ``CHROMIUM`` names, else the first known one on this machine."""
    named = os.environ.get(BROWSER_VARIABLE)
    if named:
        found = shutil.which(named)
        return Path(found) if found else None
    for command in _COMMANDS:
        found = shutil.which(command)
        if found:
            return Path(found)
    if sys.platform == "darwin":
        return next((Path(path) for path in _MAC_APPLICATIONS if Path(path).is_file()), None)
    return None


def require_browser() -> Path:
    """Return the browser.

    Raises:
        UnsupportedError: there is none, or ``CHROMIUM`` names no program.
    """
    found = find_browser()
    if found is None:
        named = os.environ.get(BROWSER_VARIABLE)
        what = f"{BROWSER_VARIABLE} names {named!r}, which is no program" if named else "none found"
        raise UnsupportedError(
            "browser-missing",
            f"a Chromium-class browser is needed: {what}",
            hint="install Chromium or Chrome (Debian: apt-get install chromium), or set "
            f"{BROWSER_VARIABLE} to its path",
        )
    return found


def switches(*, webgpu: bool) -> list[str]:
    """Return the command-line switches of a headless browser.

    Args:
        webgpu: Whether the page needs WebGPU; without it the GPU process is left out.
    """
    chosen = list(_QUIET)
    chosen += ["--enable-unsafe-webgpu"] if webgpu else ["--disable-gpu"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        chosen.append("--no-sandbox")  # Chromium refuses root with a sandbox
    return chosen
