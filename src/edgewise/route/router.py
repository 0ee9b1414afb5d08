"""The router: a pure, total function from request, data class, state, policy and evidence.

It performs no I/O and raises nothing. What it cannot establish about the deployment is a reason
to decline; a signal of the device that cannot be read is said to be so (``not-applicable``), never
taken for a good one. There is no cloud tier yet, so no input makes it return ``cloud``; local-only
data could not go there in any case.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from edgewise.core.ledger import MemoryLedger
from edgewise.core.outcome import Route, RouteDecision, RuleResult
from edgewise.core.quantity import Unknown
from edgewise.core.request import DataClass, Request
from edgewise.core.state import DeviceState, PowerState, ThermalState
from edgewise.route.policy import Policy

__all__ = ["RouteEvidence", "decide"]


class RouteEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known about the deployment that would answer.

    Attributes:
        fingerprint: The active deployment, or ``None`` when nothing is active.
        qualified: Whether evidence of qualification stands under this fingerprint.
        memory: The plan's ledger.
        resident: Whether the model is already loaded, so that it needs no new memory.
    """

    fingerprint: str | None = None
    qualified: bool = False
    memory: MemoryLedger | None = None
    resident: bool = False


def decide(
    request: Request,
    data_class: DataClass,
    device_state: DeviceState,
    policy: Policy,
    evidence: RouteEvidence,
) -> RouteDecision:
    """Return where the request runs, with every rule that was tried."""
    rules = tuple(_rules(request, data_class, device_state, policy, evidence))
    denials = tuple(rule.reason for rule in rules if rule.verdict == "denies")
    if denials:
        route, reasons = Route.DECLINE, denials
    else:
        route = Route.LOCAL
        reasons = (f"this device can answer, and {data_class} data may be processed on it",)
    return RouteDecision(route=route, reasons=reasons, rules=rules, policy_version=policy.version)


def _rules(
    request: Request,
    data_class: DataClass,
    state: DeviceState,
    policy: Policy,
    evidence: RouteEvidence,
) -> Iterator[RuleResult]:
    yield _rule(
        "data-stays-local",
        True,
        "no cloud destination exists; the data stays on this device",
        "",
    )
    yield _rule(
        "task-allowed",
        request.task in policy.tasks,
        f"the policy answers {request.task} requests",
        f"the policy does not answer {request.task!r} requests",
    )
    yield _rule(
        "data-class-allowed",
        data_class in policy.data_classes,
        f"the policy takes {data_class} data",
        f"the policy does not take {data_class} data",
    )
    yield _rule(
        "deployment-active",
        evidence.fingerprint is not None,
        "a deployment is active",
        "no deployment is active on this device",
    )
    yield _rule(
        "deployment-qualified",
        evidence.qualified,
        "the active deployment is qualified on this device",
        "the active deployment has no evidence of qualification",
    )
    yield _memory_rule(state, evidence)
    yield _state_rule(
        "thermal",
        state.thermal,
        denied=ThermalState.CRITICAL,
        asked=policy.decline_when_thermal_critical,
        why_not="the device is in the critical thermal state",
    )
    yield _state_rule(
        "battery",
        state.power,
        denied=PowerState.LOW,
        asked=policy.decline_when_battery_low,
        why_not="the battery is low",
    )


def _state_rule(
    name: str,
    state: ThermalState | PowerState,
    *,
    denied: ThermalState | PowerState,
    asked: bool,
    why_not: str,
) -> RuleResult:
    """Return what a signal says; one that the policy ignores or nobody read allows nothing."""
    if not asked:
        reason = f"the policy does not ask about the {name} state"
        return RuleResult(rule=name, verdict="not-applicable", reason=reason)
    if state == "unknown":
        reason = f"the {name} state is not known; it cannot be checked"
        return RuleResult(rule=name, verdict="not-applicable", reason=reason)
    return _rule(name, state is not denied, f"the {name} state is {state}", why_not)


def _memory_rule(state: DeviceState, evidence: RouteEvidence) -> RuleResult:
    if evidence.resident:
        return RuleResult(rule="memory", verdict="allows", reason="the model is already loaded")
    if evidence.memory is None:
        return RuleResult(rule="memory", verdict="denies", reason="no memory plan exists")
    needed, available = evidence.memory.worker_bytes, state.memory_available_bytes
    if isinstance(needed, Unknown):
        return RuleResult(rule="memory", verdict="denies", reason=f"memory need {needed.reason}")
    if isinstance(available, Unknown):
        return RuleResult(
            rule="memory",
            verdict="not-applicable",
            reason=f"available memory is not known ({available.reason}); it cannot be checked",
        )
    shortfall = int(needed.number - available.number)
    return _rule(
        "memory",
        shortfall <= 0,
        f"{int(needed.number)} bytes are needed, {int(available.number)} are available",
        f"{int(needed.number)} bytes are needed and {int(available.number)} are available: "
        f"{shortfall} bytes short",
    )


def _rule(name: str, allows: bool, why: str, why_not: str) -> RuleResult:
    return RuleResult(
        rule=name, verdict="allows" if allows else "denies", reason=why if allows else why_not
    )
