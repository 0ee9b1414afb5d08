"""What is sent and told about consent over the API."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edgewise.route.consent import Choice, ConsentPrompt, LedgerEntry
from edgewise.serve.bodies import Body

__all__ = ["ChoiceBody", "ChoiceReply", "ConsentQuestion", "DecisionList", "RevokeReply"]


class ConsentQuestion(ConsentPrompt, frozen=True, kw_only=True):
    """A question of consent, with all that an application needs to show it and to answer it.

    Attributes:
        id: Its name.
        expires_at: Until when it can be answered.
        page: Path of the page that asks it, for a browser on this machine.
        answer: Path that takes the answer: ``POST`` a :class:`ChoiceBody`.
    """

    id: str
    expires_at: dt.datetime
    page: str
    answer: str


class ChoiceBody(Body, frozen=True, kw_only=True):
    """The user's answer to a question; ``until`` goes with the choice ``until`` only."""

    choice: Choice
    until: Annotated[dt.datetime, Meta(tz=True)] | None = None


class ChoiceReply(msgspec.Struct, frozen=True, kw_only=True):
    """What was recorded: ``decision`` is its name in the ledger."""

    choice: Choice
    decision: str
    question: str
    until: dt.datetime | None = None
    object: Literal["edgewise.consent.answer"] = "edgewise.consent.answer"


class DecisionList(msgspec.Struct, frozen=True, kw_only=True):
    """Every decision of the ledger, oldest first, with what became of it."""

    data: list[LedgerEntry]
    object: Literal["list"] = "list"


class RevokeReply(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken back: 0 where the decision was over already."""

    id: str
    revoked: int
    object: Literal["edgewise.consent.revoked"] = "edgewise.consent.revoked"
