"""Proof that a request stays on the device: sockets, names, programs, files, output, crash dumps.

A prompt carries a canary, a text that cannot be anywhere by chance. What runs is watched, and
afterwards everything that was written is searched for it.

>>> from edgewise.testing.egress import Canary, run_isolated
>>> canary = Canary.mint()
>>> report = run_isolated("my_app.requests:ask", canary.text, canary=canary)  # doctest: +SKIP
>>> report.verdict  # doctest: +SKIP
<EgressVerdict.PASS: 'pass'>

:func:`run_isolated` runs a function, a script or a command in a process of its own, where native
code is watched too and has no network. :func:`watch` watches code of this process, as far as an
audit hook can. A report never takes what was not looked at for clean.
"""

from __future__ import annotations

from edgewise.testing.egress.canary import Canary
from edgewise.testing.egress.isolated import ALL_WALLS, run_isolated
from edgewise.testing.egress.report import (
    CanaryHit,
    EgressCheck,
    EgressReport,
    EgressVerdict,
    Sighting,
    Wall,
    WatchedProcess,
)
from edgewise.testing.egress.watching import Watch, watch

__all__ = [
    "ALL_WALLS",
    "Canary",
    "CanaryHit",
    "EgressCheck",
    "EgressReport",
    "EgressVerdict",
    "Sighting",
    "Wall",
    "Watch",
    "WatchedProcess",
    "run_isolated",
    "watch",
]
