"""What of a request would leave for a destination, and the question that asks the user for it."""

from __future__ import annotations

import datetime as dt
import json
import re

import msgspec

from edgewise.core.outcome import Event, Route, RouteDecision
from edgewise.core.request import ContextPolicy, Message, Request
from edgewise.core.tools import ToolCall
from edgewise.errors import UnsupportedError
from edgewise.route.cloud import CloudPayload, require_sound
from edgewise.route.cloud_rules import CONSENT
from edgewise.route.consent import (
    ConsentPrompt,
    ConsentScope,
    Replacement,
    SentField,
    consent_prompt,
)
from edgewise.route.destinations import Destination
from edgewise.route.minimise import (
    PLACEHOLDER_NOTE,
    Detector,
    Kind,
    Minimised,
    PlaceholderMap,
    Restorer,
    leftovers,
    minimise,
    restore_json,
)
from edgewise.route.policy import Policy

__all__ = ["Outgoing", "prepare", "question_for", "stays", "unanswerable", "unreplaced"]

_KINDS = {
    Kind.SECRET: "secret",
    Kind.URL: "url",
    Kind.IBAN: "iban",
    Kind.CARD: "card",
    Kind.NATIONAL_ID: "national-id",
    Kind.EMAIL: "email",
    Kind.PHONE: "phone",
    Kind.MAC: "mac-address",
    Kind.IP: "ip-address",
    Kind.PERSON: "contact",
    Kind.TEXT: "text-like-a-placeholder",
}
_NAME_MARKS = re.compile(r"[_.\-]+")


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A request in the form in which it would leave.

    Attributes:
        destination: Where to.
        payload: What is sent.
        minimised: What was done to it.
        placeholders: What the placeholders stand for; it stays here.
        deadline_s: Deadline of the answer, seconds.
    """

    destination: Destination
    payload: CloudPayload
    minimised: Minimised
    placeholders: PlaceholderMap
    deadline_s: float | None

    def restorer(self) -> Restorer:
        """Return what restores the answer: text, or JSON where the request asks for JSON."""
        return Restorer(self.placeholders, json_text=self.payload.structure is not None)

    def restored_calls(
        self, calls: tuple[ToolCall, ...]
    ) -> tuple[tuple[ToolCall, ...], tuple[Event, ...]]:
        """Return the calls of an answer with their arguments restored, and what happened."""
        restored: list[ToolCall] = []
        events: list[Event] = []
        for call in calls:
            arguments, happened = restore_json(call.arguments, self.placeholders)
            restored.append(msgspec.structs.replace(call, arguments=arguments))
            events += happened
        return tuple(restored), tuple(events)


def prepare(
    policy: Policy, request: Request, destination: str, detectors: tuple[Detector, ...]
) -> Outgoing:
    """Minimise a request for a destination of the policy.

    Raises:
        UnsupportedError: the request needs a field that the policy does not let leave, or one
            that cannot be minimised holds an identifier (``cloud-request-unsupported``).
        InputError: a value cannot be sent, or the destination not be asked so
            (``cloud-ask-invalid``).
    """
    place = policy.places[destination]
    rule = policy.minimises(destination)
    declared = () if rule is None else rule.fields
    given = _fields(request)
    missing = [name for name in given if name not in declared]
    if missing:
        raise _unsupported(
            f"the policy does not let {' and '.join(missing)} leave, and the request needs them"
        )
    placeholders = PlaceholderMap()
    found = minimise(given, declared, detectors, placeholders)
    for name, value in given.items():
        if name != "messages" and found.fields[name] != value:
            raise _unsupported(
                f"{name} holds an identifier, which cannot be replaced there",
                hint=f"take the identifier out of {name}",
            )
    messages = found.fields["messages"]
    if isinstance(messages, str):  # it was given as messages, and comes back so
        raise _unsupported("messages are no conversation")
    if found.replaced:
        messages = _with_note(messages)
    payload = CloudPayload.of(msgspec.structs.replace(request, messages=messages), place)
    _check_beside(payload, detectors, placeholders)
    require_sound(place, payload, request.deadline_s)
    return Outgoing(
        destination=place,
        payload=payload,
        minimised=found,
        placeholders=placeholders,
        deadline_s=request.deadline_s,
    )


def unreplaced(payload: CloudPayload, detectors: tuple[Detector, ...]) -> dict[str, int]:
    """Return how many identifiers of which kind are in what was minimised before.

    Raises:
        InputError, ResourceError: it cannot be read for them.
    """
    found = leftovers({"messages": payload.messages, **_beside(payload)}, detectors)
    return {_KINDS[kind]: count for kind, count in found.items()}


def question_for(
    policy: Policy, decision: RouteDecision, outgoing: Outgoing
) -> ConsentPrompt | None:
    """Return what to ask the user; ``None`` for a decision that lacks no consent."""
    needed = decision.consent
    if needed is None:
        return None
    days = policy.asks(needed.data_class, needed.destination).standing_days
    found = outgoing.minimised
    # That consent is missing is why it is asked for, and no reason to give it.
    missing = {one.reason for one in decision.rules if one.rule.partition("@")[0] == CONSENT}
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(days=days) if days else None
    return consent_prompt(
        ConsentScope(
            feature=needed.feature,
            data_class=needed.data_class,
            destination=needed.destination,
            purpose=needed.purpose,
        ),
        outgoing.destination,
        fields=policy.terms(needed.destination).fields,
        reasons=tuple(reason for reason in decision.reasons if reason not in missing),
        benefit=f"an answer by {outgoing.destination.model}",
        sent=tuple(
            SentField(name=name, characters=_length(_as_sent(outgoing, name)))
            for name in found.fields
        ),
        withheld=found.dropped,
        replaced=tuple(
            Replacement(kind=_KINDS[kind], count=count) for kind, count in found.replaced.items()
        ),
        caveats=found.not_guaranteed,
        until_at_most=ends,
    )


def unanswerable(decision: RouteDecision, why: str) -> RouteDecision:
    """Return the decision to decline, where what would leave cannot leave."""
    return msgspec.structs.replace(
        decision, route=Route.DECLINE, destination="", consent=None, reasons=(why,)
    )


def stays(decision: RouteDecision) -> RouteDecision:
    """Return the decision to decline, where a destination was to be asked and the route is none.

    The consent that is missing for it stays in it, and so does what was made of a doubt.
    """
    doubt = tuple(
        f"doubt: {one.reason}"
        for one in decision.rules
        if one.rule == "doubt" and one.verdict != "denies"
    )
    reasons = ("nothing is asked elsewhere", *decision.reasons, *doubt)
    return msgspec.structs.replace(decision, route=Route.DECLINE, destination="", reasons=reasons)


def _fields(request: Request) -> dict[str, str | tuple[Message, ...]]:
    """Return what a request says, by the names that policies declare."""
    found: dict[str, str | tuple[Message, ...]] = {"messages": request.messages}
    if request.prompt is not None:
        raise _unsupported(
            "a prompt without messages does not leave", hint="ask with messages instead"
        )
    if request.context_policy is not ContextPolicy.REJECT:
        raise _unsupported(
            f"the context policy {request.context_policy.value} is this device's, and nobody "
            "applies it at a destination",
            hint="leave the context policy out of a request that may leave",
        )
    if request.tools:
        found["tools"] = msgspec.json.encode(request.tools).decode()
    if request.structure is not None:
        found["structure"] = msgspec.json.encode(request.structure).decode()
    if request.stop:
        found["stop"] = "\n".join(request.stop)
    return found


def _check_beside(
    payload: CloudPayload, detectors: tuple[Detector, ...], placeholders: PlaceholderMap
) -> None:
    """Refuse a payload with an identifier in what cannot be replaced: all but what is said.

    Raises:
        UnsupportedError: it has one (``cloud-request-unsupported``).
        InputError: it cannot be sent, or cannot be read for them.
    """
    beside = _beside(payload)
    found = minimise(beside, tuple(beside), detectors, placeholders)
    for name, value in beside.items():
        if found.fields[name] != value:
            raise _unsupported(
                f"{name} holds an identifier, which cannot be replaced there",
                hint=f"take the identifier out of {name}",
            )


def _beside(payload: CloudPayload) -> dict[str, tuple[Message, ...]]:
    """Return what is sent beside what is said, read from the very bytes that are sent.

    Each part is JSON in which the schemas are no text any more: what was escaped in them is not.
    Of names the words are given, too, since ``ask_anna`` is one word to a detector.
    """
    body = json.loads(payload.body)
    calls = [call for one in body["messages"] for call in one.get("tool_calls", ())]
    parts = {
        "tools": [body.get("tools"), body.get("tool_choice")],
        "structure": [body.get("response_format")],
        "stop": [body.get("stop")],
        "the name of a call": [[call["function"]["name"] for call in calls]],
    }
    names = {
        "tools": [tool["function"]["name"] for tool in body.get("tools", ())],
        "the name of a call": parts["the name of a call"][0],
    }
    found = {}
    for part, values in parts.items():
        texts = [json.dumps(value, ensure_ascii=False) for value in values if value]
        texts += [_NAME_MARKS.sub(" ", name) for name in names.get(part, ())]
        if texts:
            found[part] = tuple(Message(role="tool", content=text) for text in texts)
    return found


def _with_note(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    first = messages[0]
    if first.role != "system":
        return (Message(role="system", content=PLACEHOLDER_NOTE), *messages)
    told = msgspec.structs.replace(first, content=f"{first.content}\n\n{PLACEHOLDER_NOTE}")
    return (told, *messages[1:])


def _as_sent(outgoing: Outgoing, name: str) -> str | tuple[Message, ...]:
    """Return a field with what was added to it: a note that tells what placeholders are."""
    return outgoing.payload.messages if name == "messages" else outgoing.minimised.fields[name]


def _length(value: str | tuple[Message, ...]) -> int:
    if isinstance(value, str):
        return len(value)
    said = sum(len(one.content) for one in value)
    return said + sum(len(call.arguments) for one in value for call in one.tool_calls)


def _unsupported(why: str, *, hint: str | None = None) -> UnsupportedError:
    return UnsupportedError(
        "cloud-request-unsupported",
        f"this request cannot be sent: {why}",
        hint=hint
        or "declare the field in the policy's [[minimise]], or leave it out of the request",
    )
