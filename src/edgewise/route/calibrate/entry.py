"""The way into what needs numpy, which the core install does not have."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

from edgewise.errors import UnsupportedError
from edgewise.route.calibrate.cases import Case
from edgewise.route.calibrate.report import CalibrateSettings, CalibrationReport

__all__ = ["calibrate_cases", "require_numpy"]


def calibrate_cases(
    cases: Sequence[Case],
    settings: CalibrateSettings,
    *,
    dataset_sha256: str,
    sections: Mapping[str, str] | None = None,
) -> CalibrationReport:
    """Return what the cases prove about answers that are kept.

    A no is in the report: every slice has a threshold or the reasons why it has none.

    Args:
        cases: At least one, each with an id of its own.
        settings: What is asked.
        dataset_sha256: Digest of where the cases come from.
        sections: Digest of each section of the deployment that answered.

    Raises:
        UnsupportedError: numpy is not installed (``numpy-missing``).
        InputError: a setting has no value that can be used.
    """
    require_numpy()
    from edgewise.route.calibrate.learning import learn  # noqa: PLC0415 - it needs numpy

    return learn(cases, settings, dataset_sha256=dataset_sha256, sections=sections)


def require_numpy() -> None:
    """Refuse early what could not be finished.

    Raises:
        UnsupportedError: numpy is not installed (``numpy-missing``).
    """
    if importlib.util.find_spec("numpy") is None:
        raise UnsupportedError(
            "numpy-missing",
            "fitting a score takes numpy, which is not installed",
            hint="pip install 'edgewise[llamacpp]', or numpy by itself",
        )
