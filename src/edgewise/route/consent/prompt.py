"""The question to the user: what would be sent where, and why; and what the answer is recorded as.

The value holds all that a command line, an application or a web page shows. It holds names, kinds
and counts, and none of the request's content. Its texts are raw; whoever shows them makes them
harmless: :func:`render` does it for a terminal, and a page has to escape and isolate them.
"""

from __future__ import annotations

import datetime as dt
import re
import textwrap
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from edgewise.core.canonical import digest_of
from edgewise.core.shown import plain, quoted
from edgewise.errors import InputError
from edgewise.route.consent.ledger import ConsentLedger
from edgewise.route.consent.scopes import ConsentScope, Origin, require_consentable
from edgewise.route.destinations import Basis, Destination, Price, Terms

__all__ = [
    "Choice",
    "ConsentPrompt",
    "Recipient",
    "Replacement",
    "SentField",
    "consent_prompt",
    "record_choice",
    "render",
]

_KIND = re.compile(r"[a-z][a-z0-9-]{0,39}")
_LABEL_WIDTH = 12


class Choice(StrEnum):
    """What the user may answer. ``NO`` sends nothing, and stands until it is taken back."""

    ONCE = "once"
    UNTIL = "until"
    NO = "no"


class SentField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One field of the request that would be sent.

    Attributes:
        name: Its name in the policy's declaration.
        characters: Its length as it would be sent.
    """

    name: str
    characters: int


class Replacement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Identifiers of one kind that placeholders stand for; never which.

    Attributes:
        kind: The kind, such as ``email``.
        count: How many.
    """

    kind: str
    count: int

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind) or self.count < 1:
            raise _invalid("a replacement has a kind in kebab-case and a count of 1 or more")


class Recipient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who would get it, as the policy declares: see :class:`~edgewise.route.destinations`.

    ``fields`` are all that the policy lets leave for it, whether this request has them or not.
    """

    name: str
    url: str
    origin: str
    model: str
    purpose: str
    region: str
    retention_days: int | None
    basis: Basis
    fields: tuple[str, ...]
    price: Price | None = None

    @property
    def terms(self) -> Terms:
        """Return what of it a yes is recorded for."""
        return Terms(**{name: getattr(self, name) for name in Terms.__struct_fields__})


class ConsentPrompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The question.

    Attributes:
        scope: What a yes is recorded for.
        reasons: Why this device does not answer, as the route decision says.
        benefit: What the user gets by it.
        recipient: Where it would go.
        sent: The fields that would be sent; no others are.
        withheld: Names of fields that stay here.
        replaced: What placeholders stand for in the fields that are sent.
        caveats: What finding identifiers cannot guarantee; what matters most comes first.
        choices: What may be answered.
        until_at_most: The latest date of a standing consent, where one is allowed.
    """

    schema_version: int = 1
    scope: ConsentScope
    reasons: tuple[str, ...]
    benefit: str
    recipient: Recipient
    sent: tuple[SentField, ...]
    withheld: tuple[str, ...] = ()
    replaced: tuple[Replacement, ...] = ()
    caveats: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = (Choice.ONCE, Choice.NO)
    until_at_most: dt.datetime | None = None

    def __post_init__(self) -> None:
        require_consentable(self.scope)
        if self.scope.destination != self.recipient.name:
            raise _invalid("its scope names another destination than its recipient")
        if self.recipient.basis is Basis.NONE:
            raise _invalid("its recipient declares no basis, and nothing is sent there")
        if not self.reasons or not self.sent:
            raise _invalid("it does not say why, or what is sent")
        if Choice.NO not in self.choices or len(set(self.choices)) != len(self.choices):
            raise _invalid("its choices lack a no, or hold one twice")
        if (Choice.UNTIL in self.choices) is not (self.until_at_most is not None):
            raise _invalid("consent until a date and the latest date go together")
        if not {one.name for one in self.sent} <= set(self.recipient.fields):
            raise _invalid("a field is sent that its recipient's terms do not name")
        if self.until_at_most is not None and self.until_at_most.tzinfo is None:
            raise _invalid("the latest date has no time zone")

    @property
    def later(self) -> tuple[str, ...]:
        """Return the fields that a standing yes lets leave besides, once a request has them."""
        if Choice.UNTIL not in self.choices:
            return ()
        sent = {one.name for one in self.sent}
        return tuple(name for name in self.recipient.fields if name not in sent)

    @property
    def id(self) -> str:
        """Return the digest of the question, by which an answer names it."""
        return digest_of(self)


def consent_prompt(
    scope: ConsentScope,
    destination: Destination,
    *,
    fields: tuple[str, ...],
    reasons: tuple[str, ...],
    benefit: str,
    sent: tuple[SentField, ...],
    withheld: tuple[str, ...] = (),
    replaced: tuple[Replacement, ...] = (),
    caveats: tuple[str, ...] = (),
    until_at_most: dt.datetime | None = None,
) -> ConsentPrompt:
    """Return the question for a scope and a destination of the policy.

    Args:
        scope: What a yes is recorded for.
        destination: Where it would go.
        fields: What the policy lets leave for it, of any request.
        reasons: Why this device does not answer.
        benefit: What the user gets by it.
        sent: The fields that would be sent, as they are after minimisation.
        withheld: Names of fields that stay here.
        replaced: What placeholders stand for.
        caveats: What finding identifiers cannot guarantee.
        until_at_most: The latest date of a standing consent; ``None`` where the policy allows
            consent for one use only.

    Raises:
        InputError: the data is local-only (``consent-local-only``), or the parts do not fit
            together (``consent-prompt-invalid``).
    """
    standing = () if until_at_most is None else (Choice.UNTIL,)
    return ConsentPrompt(
        scope=scope,
        reasons=reasons,
        benefit=benefit,
        recipient=Recipient(
            name=destination.name,
            url=destination.url,
            origin=destination.origin,
            model=destination.model,
            purpose=destination.purpose,
            region=destination.region,
            retention_days=destination.retention_days,
            basis=destination.basis,
            fields=tuple(sorted(fields)),
            price=destination.price,
        ),
        sent=sent,
        withheld=withheld,
        replaced=replaced,
        caveats=caveats,
        choices=(Choice.ONCE, *standing, Choice.NO),
        until_at_most=until_at_most,
    )


def record_choice(
    ledger: ConsentLedger,
    prompt: ConsentPrompt,
    choice: Choice,
    *,
    origin: Origin,
    until: dt.datetime | None = None,
) -> str:
    """Record the answer to a question that was asked; return the decision's name.

    The prompt is the one that was made here. One that comes back from an application is not: look
    it up by its :attr:`ConsentPrompt.id`.

    Args:
        ledger: Where.
        prompt: The question.
        choice: The answer.
        origin: Through what it came.
        until: The date, for ``until``.

    Raises:
        InputError: it was not among the choices, or the date is missing, out of place, or later
            than was offered (``consent-choice-invalid``); or what :meth:`ConsentLedger.grant`
            raises.
    """
    if choice not in prompt.choices:
        offered = ", ".join(prompt.choices)
        raise _choice_invalid(f"{str(choice)!r} was not offered; offered were: {offered}", prompt)
    if choice is Choice.UNTIL and until is None:
        raise _choice_invalid(f"`until` needs a date, {_latest(prompt)}", prompt)
    if choice is not Choice.UNTIL and until is not None:
        raise _choice_invalid(f"a date belongs to the choice `until`, not to `{choice}`", prompt)
    if choice is Choice.NO:
        return ledger.deny(prompt.scope, origin=origin)
    terms = prompt.recipient.terms
    if until is None:
        return ledger.grant(prompt.scope, terms, origin=origin).id
    latest = prompt.until_at_most
    if until.tzinfo is None:
        raise _choice_invalid("the date has no time zone: write it like +02:00 or Z", prompt)
    if latest is None or until > latest:
        raise _choice_invalid(
            f"{until.isoformat()} is later than was offered, which is {_latest(prompt)}", prompt
        )
    grant = ledger.grant(
        prompt.scope, terms, origin=origin, once=False, expires_at=until, standing_allowed=True
    )
    return grant.id


def render(prompt: ConsentPrompt, *, width: int = 80, details: bool = True) -> str:
    """Return the question as plain text, for a terminal.

    Every text in it that somebody else wrote is on lines of its own label, quoted where it is
    prose, and cannot act on the terminal or on the lines around it.

    Args:
        prompt: The question.
        width: Columns of the terminal.
        details: Whether every caveat is shown; otherwise the first, and how many more there are,
            for a caller that shows them when it is asked for `details`.
    """
    lines = ["This request would leave this device. Do you agree?", ""]
    for label, texts in _parts(prompt, details=details):
        for number, text in enumerate(texts):
            lines += _labelled(label if number == 0 else "", text, max(width, 40))
    return "\n".join(lines) + "\n"


def _parts(prompt: ConsentPrompt, *, details: bool) -> Iterator[tuple[str, list[str]]]:
    to = prompt.recipient
    yield "Why", [quoted(reason) for reason in prompt.reasons]
    yield "Benefit", [quoted(prompt.benefit)] if prompt.benefit.strip() else ["nobody states one"]
    yield "Feature", [plain(prompt.scope.feature)]
    yield "Data class", [plain(prompt.scope.data_class)]
    yield "Is sent", [f"{plain(f.name)} ({f.characters} characters)" for f in prompt.sent]
    yield "Stays here", [plain(name) for name in prompt.withheld] or ["what is not listed above"]
    yield "Replaced", _replaced(prompt)
    yield "Not sure", _caveats(prompt.caveats, details=details)
    yield "Goes to", [f"{plain(to.name)} at {plain(to.origin)}", f"model {plain(to.model)}"]
    yield "Purpose", [quoted(text) for text in _purposes(prompt)]
    yield "Region", [f"{quoted(to.region)}, as declared" if to.region else "nobody declared one"]
    yield "Kept for", [_retention(to.retention_days)]
    yield "Basis", [str(to.basis)]
    yield "Price", [] if to.price is None else [_price(to.price)]
    yield "With until", [f"{plain(n)} as well, where a later request has it" for n in prompt.later]
    yield "You may say", [_choice(choice, prompt) for choice in prompt.choices]


def _purposes(prompt: ConsentPrompt) -> list[str]:
    """The purpose that is agreed to, and the destination's own where it says another."""
    own = prompt.recipient.purpose
    return [prompt.scope.purpose, *([own] if own not in {"", prompt.scope.purpose} else [])]


def _replaced(prompt: ConsentPrompt) -> list[str]:
    if not prompt.replaced:
        return ["nothing was found to replace"]
    kinds = ", ".join(f"{one.kind} ({one.count})" for one in prompt.replaced)
    return [kinds, "placeholders are sent, and put back on this device"]


def _caveats(caveats: tuple[str, ...], *, details: bool) -> list[str]:
    if details or len(caveats) < 3:
        return [quoted(caveat) for caveat in caveats]
    return [quoted(caveats[0]), f"and {len(caveats) - 1} more: answer `details` to read them"]


def _retention(days: int | None) -> str:
    if days is None:
        return "nobody declared how long"
    return "not kept, as declared" if days == 0 else f"{days} days, as declared"


def _price(price: Price) -> str:
    return (
        f"{price.input_per_million:g} {plain(price.currency)} per million tokens sent, "
        f"{price.output_per_million:g} per million received, as declared"
    )


def _choice(choice: Choice, prompt: ConsentPrompt) -> str:
    if choice is Choice.ONCE:
        return "once    this one time"
    if choice is Choice.NO:
        return "no      nothing is sent, now or later, until you take it back"
    return f"until   for every such request, until a date; {prompt.until_at_most:%Y-%m-%d} at most"


def _labelled(label: str, text: str, width: int) -> list[str]:
    # A line that goes on is indented deeper, so that it cannot pass for one with a label.
    wrapped = textwrap.wrap(
        text,
        width=width,
        initial_indent=f"{label:<{_LABEL_WIDTH}}",
        subsequent_indent=" " * (_LABEL_WIDTH + 2),
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
        expand_tabs=False,
    )
    return wrapped or [label]


def _invalid(why: str) -> InputError:
    return InputError(
        "consent-prompt-invalid",
        f"this question cannot be put to the user: {why}",
        hint="make it with consent_prompt from the route decision, the policy and what is sent",
    )


def _latest(prompt: ConsentPrompt) -> str:
    latest = prompt.until_at_most
    return "and none was offered" if latest is None else f"{latest.isoformat()} at most"


def _choice_invalid(why: str, prompt: ConsentPrompt) -> InputError:
    latest = prompt.until_at_most
    return InputError(
        "consent-choice-invalid",
        f"this answer cannot be recorded: {why}",
        context={
            "choices": [str(one) for one in prompt.choices],
            "until_at_most": None if latest is None else latest.isoformat(),
        },
        hint="answer with one of the prompt's choices",
    )
