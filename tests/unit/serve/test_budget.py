"""How often an engine may fail."""

from __future__ import annotations

from edgewise.serve.budget import FailureBudget


def test_the_budget_runs_out_and_comes_back_with_time() -> None:
    now = [0.0]
    budget = FailureBudget(3, 60.0, clock=lambda: now[0])
    for second in (0.0, 10.0):
        now[0] = second
        budget.failed(now[0])
        assert budget.left_s() == 0
    now[0] = 20.0
    budget.failed(now[0])
    assert budget.left_s() == 40.0
    now[0] = 60.0
    assert budget.left_s() == 0
    budget.failed(now[0])  # the window is that of the last three
    assert budget.left_s() == 10.0


def test_requests_that_fail_together_are_one_failure() -> None:
    now = [100.0]
    budget = FailureBudget(2, 60.0, clock=lambda: now[0])
    began = budget.now()
    now[0] = 105.0
    for _ in range(3):
        budget.failed(began)
    assert budget.left_s() == 0
    began = budget.now()  # the next request, on a new engine
    now[0] = 106.0
    budget.failed(began)
    assert budget.left_s() == 59.0
