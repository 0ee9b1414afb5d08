"""What is to be said of a policy before anything runs under it: which, whose, and until when."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import msgspec

from edgewise.core.outcome import Event
from edgewise.route.facts import PolicyTrust
from edgewise.route.policy_file import Force, LoadedPolicy, force_of

__all__ = ["PolicyStanding", "standing", "standing_events"]


class PolicyStanding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which policy decides, and what it is worth now.

    Attributes:
        name: Its name.
        revision: Its revision.
        sha256: Its digest.
        trust: How far it is trusted.
        trust_reason: Why, in words.
        key: Name of the key that it is signed with; empty for none.
        force: Whether it holds.
        issued_at: From when on it holds, RFC 3339; empty for always.
        expires_at: Until when; empty for ever.
        leaves: Whether anything may leave under it at all.
    """

    name: str
    revision: int
    sha256: str
    trust: PolicyTrust
    trust_reason: str
    key: str
    force: Force
    issued_at: str
    expires_at: str
    leaves: bool

    @property
    def text(self) -> str:
        """Return it as one line."""
        return f"{self._which}, {self._signed}, {self._when}"

    @property
    def why(self) -> str:
        """Return it with why it is trusted or not, where that is not said by naming the key."""
        return self.text if self.key else f"{self.text}: {self.trust_reason}"

    @property
    def _which(self) -> str:
        return f"{self.name} revision {self.revision} ({self.sha256[:12]})"

    @property
    def _signed(self) -> str:
        return f"signed with the key {self.key}" if self.key else str(self.trust)

    @property
    def _when(self) -> str:
        if self.force is Force.EXPIRED:
            return f"expired on {self.expires_at}"
        if self.force is Force.NOT_YET:
            return f"in force from {self.issued_at} on"
        return f"in force until {self.expires_at}" if self.expires_at else "in force"


def standing(loaded: LoadedPolicy, now: dt.datetime) -> PolicyStanding:
    """Return what is to be said of a policy at a time."""
    policy, force = loaded.policy, force_of(loaded.policy, now)
    return PolicyStanding(
        name=policy.name,
        revision=policy.revision,
        sha256=policy.digest,
        trust=loaded.trust,
        trust_reason=loaded.reason,
        key=loaded.key,
        force=force,
        issued_at=policy.issued_at,
        expires_at=policy.expires_at,
        leaves=bool(policy.destinations) and force is Force.IN_FORCE and loaded.lets_leave,
    )


def standing_events(loaded: LoadedPolicy, told: PolicyStanding) -> Iterator[Event]:
    """Yield what nobody should have to guess: that it does not hold, or lets nothing leave."""
    facts = msgspec.to_builtins(told)
    if told.force is not Force.IN_FORCE:
        yield Event(
            code="policy-not-in-force",
            message=f"nothing leaves under the policy {told.text}",
            context=facts,
        )
    if loaded.policy.destinations and not loaded.lets_leave:
        yield Event(
            code="policy-not-trusted",
            message=f"nothing leaves under the policy {told.text}: {told.trust_reason}",
            context=facts,
        )
