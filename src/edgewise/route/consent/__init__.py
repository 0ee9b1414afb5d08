"""Consent: what the user agreed to, recorded, used, taken back and erased."""

from edgewise.route.consent.checking import AuditCheck
from edgewise.route.consent.ledger import STANDING_DAYS_MAX, ConsentLedger, Erasure
from edgewise.route.consent.prompt import (
    Choice,
    ConsentPrompt,
    Recipient,
    Replacement,
    SentField,
    consent_prompt,
    record_choice,
    render,
)
from edgewise.route.consent.scopes import (
    ConsentScope,
    ConsentState,
    ConsentVerdict,
    Grant,
    Origin,
)
from edgewise.route.consent.telling import ConsentExport, EntryState, LedgerEntry

__all__ = [
    "STANDING_DAYS_MAX",
    "AuditCheck",
    "Choice",
    "ConsentExport",
    "ConsentLedger",
    "ConsentPrompt",
    "ConsentScope",
    "ConsentState",
    "ConsentVerdict",
    "EntryState",
    "Erasure",
    "Grant",
    "LedgerEntry",
    "Origin",
    "Recipient",
    "Replacement",
    "SentField",
    "consent_prompt",
    "record_choice",
    "render",
]
