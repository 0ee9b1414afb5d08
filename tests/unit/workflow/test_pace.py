"""How long an answer is expected to take: from what was measured of this very deployment here."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.unit.core.values import DEPLOYMENT
from tests.unit.workflow.test_route_records import unqualified

from edgewise.bench.tuner import Trial, Tuning
from edgewise.core.outcome import RuleResult
from edgewise.core.quantity import Estimated, Measured, Unknown
from edgewise.core.recipe import RunConfig
from edgewise.core.request import Message, Request
from edgewise.route.policy import Policy, TaskRule
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.pace import Pace
from edgewise.workflow.routing import explain_route

CONFIG = DEPLOYMENT.compute.run_config
OTHER = msgspec.structs.replace(CONFIG, threads=CONFIG.threads + 1)


def asked(max_tokens: int | None = 100, deadline_s: float | None = None) -> Request:
    message = Message(role="user", content="x" * 400)
    return Request(messages=(message,), max_tokens=max_tokens, deadline_s=deadline_s)


def trial(config: RunConfig, decode: float, prefill: float = 100.0) -> Trial:
    return Trial(
        run_config=config,
        prefill_tok_s=Measured(value=prefill, source="a test"),
        decode_tok_s=Measured(value=decode, source="a test"),
        reference_ms=1.0,
    )


def measured(context: Context, *trials: Trial) -> None:
    subject = context.bundles.active().deployment.artifact.sha256
    context.record("tuning", subject, Tuning(chosen=CONFIG, trials=trials))


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return unqualified(Home(tmp_path / "home"))


def test_it_is_estimated_from_the_rates_of_this_configuration(context: Context) -> None:
    measured(context, trial(OTHER, 1000.0), trial(CONFIG, 20.0))
    found = Pace(context, context.bundles.active())(asked())
    assert isinstance(found, Estimated)
    assert found.value == pytest.approx(100 / 20 + 100 / 100)
    assert "up to 100 tokens at 20 tok/s" in found.source


def test_where_nobody_measured_it_is_unknown(context: Context) -> None:
    def unknown(request: Request, bundle: object) -> str:
        found = Pace(context, bundle)(request)  # type: ignore[arg-type]
        assert isinstance(found, Unknown)
        return found.reason

    active = context.bundles.active()
    assert unknown(asked(), None) == "no deployment is active"
    assert "nobody measured" in unknown(asked(), active)
    measured(context, trial(OTHER, 1000.0), trial(CONFIG, 0.0))
    assert "nobody measured" in unknown(asked(), active)
    measured(context, trial(CONFIG, 20.0))
    assert "how long its answer may be" in unknown(asked(None), active)


@pytest.mark.parametrize("rates", [(1e-320, 100.0), (20.0, 1e-320), (1e300, 100.0)])
def test_a_rate_that_no_device_has_makes_it_unknown(
    context: Context, rates: tuple[float, float]
) -> None:
    measured(context, trial(CONFIG, *rates))
    found = Pace(context, context.bundles.active())(asked())
    assert isinstance(found, Unknown)
    assert "plausible" in found.reason


@pytest.mark.parametrize(
    ("request_s", "task_s", "verdict"),
    [
        (None, 5.9, "denies"),
        (None, 6.1, "allows"),
        (5.9, 60.0, "denies"),
        (60.0, 5.9, "denies"),
        (6.1, None, "allows"),
        (None, None, "not-applicable"),
    ],
)
def test_the_rule_holds_it_against_both_deadlines(
    context: Context, tmp_path: Path, request_s: float | None, task_s: float | None, verdict: str
) -> None:
    policy = Policy(name="p", tasks=(TaskRule(name="chat", deadline_s=task_s),))
    file = tmp_path / "p.json"
    file.write_bytes(msgspec.json.encode(policy))

    def rule() -> RuleResult:
        found = explain_route(context, asked(deadline_s=request_s), policy=file)
        return next(one for one in found.decision.rules if one.rule == "deadline")

    if verdict != "not-applicable":
        assert rule().verdict == "not-applicable"
        assert "nobody measured this deployment on this device" in rule().reason
    measured(context, trial(CONFIG, 20.0))
    assert rule().verdict == verdict
    if verdict != "not-applicable":
        assert "expected to take 6 seconds" in rule().reason
        assert "20 tok/s" in rule().reason
