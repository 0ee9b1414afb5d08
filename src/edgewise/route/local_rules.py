"""Rules about this device: whether the deployment can answer here, now."""

from __future__ import annotations

from collections.abc import Iterator

from edgewise.core.outcome import RuleResult
from edgewise.core.quantity import Unknown
from edgewise.core.request import Request
from edgewise.core.state import DeviceState, MemoryState, PowerState, StorageState, ThermalState
from edgewise.core.units import binary
from edgewise.route.facts import RouteEvidence
from edgewise.route.policy import Policy, TaskRule

__all__ = ["local_rules", "rule"]

_HEAT = {
    state: at
    for at, state in enumerate(
        (ThermalState.NOMINAL, ThermalState.FAIR, ThermalState.SERIOUS, ThermalState.CRITICAL)
    )
}


def rule(name: str, allows: bool, why: str, why_not: str) -> RuleResult:
    """Return a rule's result with the words for it."""
    return RuleResult(
        rule=name, verdict="allows" if allows else "denies", reason=why if allows else why_not
    )


def idle(name: str, reason: str) -> RuleResult:
    """Return the result of a rule that says nothing here."""
    return RuleResult(rule=name, verdict="not-applicable", reason=reason)


def local_rules(
    request: Request,
    state: DeviceState,
    policy: Policy,
    evidence: RouteEvidence,
    task: TaskRule | None,
) -> Iterator[RuleResult]:
    """Try every rule about answering on this device."""
    yield rule(
        "deployment-active",
        evidence.fingerprint is not None,
        "a deployment is active",
        "no deployment is active on this device",
    )
    yield rule(
        "deployment-qualified",
        evidence.qualified,
        "the active deployment is qualified on this device",
        "the active deployment has no evidence of qualification",
    )
    yield _evidence(evidence, task)
    yield _capability(evidence)
    yield _context(request, evidence)
    yield _deadline(request, evidence, task)
    yield _memory(state, policy, evidence)
    yield from _signals(state, policy)


def _evidence(evidence: RouteEvidence, task: TaskRule | None) -> RuleResult:
    needed = () if task is None else task.evidence
    if not needed:
        return idle("evidence", "the policy asks for no other evidence")
    missing = ", ".join(kind for kind in needed if kind not in evidence.kinds)
    return rule(
        "evidence",
        not missing,
        f"the deployment has the evidence {', '.join(needed)}",
        f"the deployment lacks evidence that the policy asks for: {missing}",
    )


def _capability(evidence: RouteEvidence) -> RuleResult:
    return rule(
        "capability",
        not evidence.unsupported,
        "the local runtime has what the request needs",
        f"the local runtime cannot do this: {'; '.join(evidence.unsupported)}",
    )


def _context(request: Request, evidence: RouteEvidence) -> RuleResult:
    prompt, length = evidence.prompt_tokens, evidence.context_length
    if prompt is None or length is None:
        return idle("context", "the prompt's tokens are counted when it runs")
    needed = prompt + (request.max_tokens or 1)
    return rule(
        "context",
        needed <= length,
        f"{needed} tokens fit into a context of {length}",
        f"{needed} tokens do not fit into a context of {length}",
    )


def _deadline(request: Request, evidence: RouteEvidence, task: TaskRule | None) -> RuleResult:
    limits = (request.deadline_s, None if task is None else task.deadline_s)
    known = [limit for limit in limits if limit is not None]
    if not known:
        return idle("deadline", "there is no deadline")
    expected = evidence.expected_s
    if isinstance(expected, Unknown):
        why = f"how long an answer takes here is not known ({expected.reason})"
        return idle("deadline", f"{why}, so {min(known):g} s cannot be checked")
    told = f"an answer is expected to take {expected.number:.3g} seconds"
    return rule(
        "deadline",
        expected.number <= min(known),
        f"{told} of {min(known):g} allowed ({expected.source})",
        f"{told}, and there are {min(known):g} ({expected.source})",
    )


def _memory(state: DeviceState, policy: Policy, evidence: RouteEvidence) -> RuleResult:
    if evidence.resident:
        return rule("memory", True, "the model is already loaded", "")
    if evidence.memory is None:
        return rule("memory", False, "", "no memory plan exists")
    needed, available = evidence.memory.worker_bytes, state.memory_available_bytes
    if isinstance(needed, Unknown):
        return rule("memory", False, "", f"memory need {needed.reason}")
    if isinstance(available, Unknown):
        why = f"available memory is not known ({available.reason}); it cannot be checked"
        return _unread("memory", why, policy)
    shortfall = int(needed.number - available.number)
    told = f"{binary(needed.number)} are needed"
    return rule(
        "memory",
        shortfall <= 0,
        f"{told}, {binary(available.number)} are available",
        f"{told} and {binary(available.number)} are available: {binary(shortfall)} short",
    )


def _signals(state: DeviceState, policy: Policy) -> Iterator[RuleResult]:
    limits = policy.device
    hottest = _HEAT.get(limits.thermal_max)
    if hottest is None or hottest == len(_HEAT) - 1:
        yield idle("thermal", "the policy does not ask about the thermal state")
    elif state.thermal is ThermalState.UNKNOWN:
        yield _unread("thermal", "the thermal state is not known; it cannot be checked", policy)
    else:
        yield rule(
            "thermal",
            _HEAT[state.thermal] <= hottest,
            f"the thermal state is {state.thermal}",
            f"the device is in the {state.thermal} thermal state",
        )
    yield _signal("battery", state.power, PowerState.LOW, limits.when_battery_low, policy)
    yield _signal(
        "memory-pressure", state.memory, MemoryState.PRESSURE, limits.when_memory_short, policy
    )
    yield _signal("storage", state.storage, StorageState.LOW, limits.when_storage_low, policy)


def _signal(
    name: str,
    found: PowerState | MemoryState | StorageState,
    bad: PowerState | MemoryState | StorageState,
    tolerated: bool,
    policy: Policy,
) -> RuleResult:
    """Return what a signal says; one that the policy ignores or nobody read allows nothing."""
    if tolerated:
        return idle(name, f"the policy does not ask about the {name} state")
    if found == "unknown":
        return _unread(name, f"the {name} state is not known; it cannot be checked", policy)
    words = f"the {name} state is {found}"
    return rule(name, found != bad, words, words)


def _unread(name: str, why: str, policy: Policy) -> RuleResult:
    if policy.device.unknown_counts_as_bad:
        return rule(name, False, "", f"{why}, and the policy takes that for bad")
    return idle(name, why)
