"""Whether there are cases enough to prove anything, told from their number before one is asked."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Final

from edgewise.errors import InputError
from edgewise.route.calibrate.bounds import least_cases
from edgewise.route.calibrate.cases import Case, slice_of, split
from edgewise.route.calibrate.report import CalibrateSettings
from edgewise.route.calibrate.thresholds import shared_delta

__all__ = ["CLASS_MIN", "FIT_MIN", "require_enough"]

FIT_MIN: Final = 20
CLASS_MIN: Final = 5


def require_enough(cases: Sequence[Case], settings: CalibrateSettings) -> None:
    """Refuse cases of which so few prove nothing, whatever comes out; verdicts are not looked at.

    Raises:
        InputError: there are too few (``too-few-cases``).
    """
    fit, rest = split(
        tuple(cases), fit_share=settings.fit_share, seed=settings.seed, key=settings.slice_by
    )
    names = {slice_of(case, settings.slice_by) or "" for case in cases}
    kept = Counter(slice_of(case, settings.slice_by) or "" for case in rest)
    sizes = {name: kept[name] for name in names}
    delta = shared_delta(sizes, target=settings.target_error, confidence=settings.confidence)
    least = least_cases(settings.target_error, delta)
    largest = max((size for name, size in sizes.items() if name), default=0)
    if len(fit) >= FIT_MIN and largest >= least:
        return
    where = "" if settings.slice_by is None else " in one slice"
    raise InputError(
        "too-few-cases",
        f"{len(cases)} cases give {len(fit)} to fit on and {largest}{where} to calibrate on; it "
        f"takes at least {FIT_MIN} and {least}{where}",
        context={
            "cases": len(cases),
            "fit": {"have": len(fit), "least": FIT_MIN},
            "calibrate": {"have": largest, "least": least},
        },
        hint=f"nothing was asked; take {_least_total(settings, least)} cases or more{where}, or "
        "another target, confidence or --fit-share",
    )


def _least_total(settings: CalibrateSettings, least: int) -> int:
    """Return the least number of cases that the split makes enough of on both sides."""
    share = settings.fit_share

    def enough(total: int) -> bool:
        fitted = round(total * share)
        return fitted >= FIT_MIN and total - fitted >= least

    return next(filter(enough, itertools.count(FIT_MIN)))
