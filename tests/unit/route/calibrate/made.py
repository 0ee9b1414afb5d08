"""Cases whose error rate is known, since it was made."""

from __future__ import annotations

import numpy as np

from edgewise.route.calibrate import Case

# An answer with uncertainty u, uniform on 0 to 1, is wrong with probability SLOPE * u * u. So of
# those with at most t, SLOPE * t * t / 3 are wrong.
SLOPE = 0.9


def true_rate(t: float) -> float:
    """Return the error rate of all answers with an uncertainty of at most t."""
    return SLOPE * min(max(t, 0.0), 1.0) ** 2 / 3


def made_cases(
    n: int,
    seed: int,
    *,
    noise: int = 0,
    grid: int = 0,
    wrong_at: float | None = None,
    **fields,
) -> tuple[Case, ...]:
    """Return n cases.

    Args:
        n: How many.
        seed: Of all draws.
        noise: Signals that tell nothing, besides ``u``.
        grid: Round ``u`` to so many values, so that there are ties; 0 does not round.
        wrong_at: Error rate that does not depend on ``u``.
        fields: Of every case.
    """
    random = np.random.default_rng(seed)
    cases = []
    for number in range(n):
        u = float(random.random())
        if grid:
            u = round(u * grid) / grid
        rate = SLOPE * u * u if wrong_at is None else wrong_at
        signals: dict[str, float | bool] = {"u": u}
        signals |= {f"noise_{k}": float(random.normal()) for k in range(noise)}
        correct = bool(random.random() >= rate)
        cases.append(Case(id=f"{seed}-{number}", signals=signals, correct=correct, **fields))
    return tuple(cases)
