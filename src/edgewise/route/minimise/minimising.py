"""What leaves: the declared fields, with every identifier that was found replaced.

All texts of a request are read together. A value that is found in one of them is replaced in all
of them, and what stands between the replaced stretches is read again until nothing more is found.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from edgewise.core.outcome import Event
from edgewise.core.request import Message
from edgewise.errors import InputError
from edgewise.route.minimise.credentials import names_secret
from edgewise.route.minimise.folding import fold, readings, require_unicode
from edgewise.route.minimise.forms import places
from edgewise.route.minimise.jsontext import replace_tokens
from edgewise.route.minimise.known import KnownValues
from edgewise.route.minimise.placeholders import PlaceholderMap
from edgewise.route.minimise.restore import record_links, restore
from edgewise.route.minimise.spans import Confidence, Detector, Kind, Span, resolve
from edgewise.route.minimise.texts import Text, gaps, moved, with_backslashes

__all__ = ["PLACEHOLDER_NOTE", "FieldValue", "Minimised", "Replacement", "minimise"]

FieldValue = str | Sequence[Message]

PLACEHOLDER_NOTE = (
    "Words in square brackets such as [EMAIL_1] or [PERSON_2] stand for real values that you do "
    "not see. Use them as they are where the value belongs, and do not explain or change them."
)
_GENERAL_LIMITS = (
    (
        "names of people who are not in the list of contacts, postal addresses, dates of birth "
        "and what a text tells about somebody in other words are not found"
    ),
    "what is written out in words, as in 'one two three at example', is not found",
    "what is left may, taken together, still tell who is meant",
)
_ROUNDS_MAX = 8
_CONTEXT_MAX = 64
# A value of one or two words in JSON says who, and begins no sentence: "Will" is a name there.
_SHORT = re.compile(r"[^\W\d_]{2,40}(?:[ '\-][^\W\d_]{1,40})?")


class Replacement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stretch that was replaced; it says where and what, never which value.

    Attributes:
        place: Where: the field, and within messages which part of which.
        start: First character, in the text as it was given; in JSON, in the string or number.
        end: One past the last.
        kind: What it is.
        placeholder: What stands there now.
        confidence: How sure the detector is.
        checked_by: What was checked.
    """

    place: str
    start: int
    end: int
    kind: Kind
    placeholder: str
    confidence: Confidence
    checked_by: str


class Minimised(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may leave, and what was done to it.

    Attributes:
        fields: The declared fields, minimised; texts or messages, as they were given.
        dropped: Fields that were given and not declared. They do not leave.
        absent: Fields that were declared and not given.
        replaced: How many stretches were replaced, by kind.
        replacements: Each of them, in order.
        events: What was done that nobody asked for.
        not_guaranteed: What the detectors cannot guarantee, in words for the user; what matters
            most comes first.
    """

    fields: dict[str, str | tuple[Message, ...]]
    dropped: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    replaced: dict[Kind, int] = {}
    replacements: tuple[Replacement, ...] = ()
    events: tuple[Event, ...] = ()
    not_guaranteed: tuple[str, ...] = ()


def minimise(
    fields: Mapping[str, FieldValue],
    declared: Sequence[str],
    detectors: Sequence[Detector],
    placeholder_map: PlaceholderMap,
) -> Minimised:
    """Return what may leave of a request's fields.

    Names of fields and of JSON keys count as words beside their values. Names of tools are left
    as they are; a tool's arguments stay valid JSON.

    Args:
        fields: Texts and conversations, by name.
        declared: Names of the fields that may leave at all.
        detectors: What looks for identifiers; see :func:`default_detectors`.
        placeholder_map: The conversation's map; it learns what is replaced.

    Raises:
        InputError: a field is neither text nor messages (``minimise-field-invalid``), holds what
            is no Unicode (``text-not-utf8``), or a detector finds ever more in it
            (``minimise-unsettled``). Nothing leaves then.
        ResourceError: the conversation has too many placeholders (``placeholders-full``).
    """
    chosen = {name: _checked(name, fields[name]) for name in declared if name in fields}
    work = _Work(tuple(detectors), placeholder_map)
    parts = {name: work.add(name, value) for name, value in chosen.items()}
    work.settle()
    out = {name: finish() for name, finish in parts.items()}
    dropped = tuple(sorted(name for name in fields if name not in chosen))
    if dropped:
        work.events.append(
            Event(
                code="fields-dropped",
                message="fields that are not declared were left out of what leaves",
                context={"fields": list(dropped)},
            )
        )
    return Minimised(
        fields=out,
        dropped=dropped,
        absent=tuple(name for name in declared if name not in fields),
        replaced=dict(sorted(Counter(r.kind for r in work.replacements).items())),
        replacements=tuple(work.replacements),
        events=tuple(work.events),
        not_guaranteed=(*_GENERAL_LIMITS, *(d.limits for d in detectors)),
    )


def _checked(name: str, value: object) -> str | tuple[Message, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(m, Message) for m in value):
        return tuple(value)
    raise InputError(
        "minimise-field-invalid",
        f"the field {name!r} is neither text nor a list of messages",
        context={"field": name},
        hint="give a text, or messages of edgewise.Message",
    )


class _Work:
    """The texts of one request, read together."""

    def __init__(self, detectors: tuple[Detector, ...], placeholder_map: PlaceholderMap) -> None:
        self._detectors = detectors
        self._secrets = any(Kind.SECRET in detector.kinds for detector in detectors)
        self._map = placeholder_map
        self._texts: list[Text] = []
        self.replacements: list[Replacement] = []
        self.events: list[Event] = []

    def add(
        self, name: str, value: str | tuple[Message, ...]
    ) -> Callable[[], str | tuple[Message, ...]]:
        """Take a field in; what is returned gives it back minimised, after :meth:`settle`."""
        if isinstance(value, str):
            return self._text(value, name, context=name)
        finishers = [self._message(m, f"{name}[{i}]") for i, m in enumerate(value)]
        return lambda: tuple(finish() for finish in finishers)

    def _message(self, message: Message, place: str) -> Callable[[], Message]:
        content = self._said(message.content, f"{place}.content")
        answers = None
        if message.tool_call_id is not None:
            answers = self._text(message.tool_call_id, f"{place}.tool_call_id")
        calls = []
        for number, call in enumerate(message.tool_calls):
            where = f"{place}.tool_calls[{number}]"
            made = self._text(call.id, f"{where}.id")
            arguments = self._json(call.arguments, f"{where}.arguments")
            calls.append((call, made, arguments))
        return lambda: msgspec.structs.replace(
            message,
            content=content(),
            tool_call_id=answers() if answers else None,
            tool_calls=tuple(
                msgspec.structs.replace(call, id=made(), arguments=arguments())
                for call, made, arguments in calls
            ),
        )

    def _said(self, source: str, place: str) -> Callable[[], str]:
        """Take in a content: text, or JSON; a word or a number alone is no JSON here."""
        if source.lstrip().startswith(("{", "[")):
            return self._json(source, place)
        return self._text(source, place)

    def _text(
        self,
        source: str,
        place: str,
        *,
        context: str = "",
        leaf: bool = False,
        number: bool = False,
    ) -> Callable[[], str]:
        require_unicode(source)
        text = Text(source, place, context[:_CONTEXT_MAX], leaf=leaf, number=number)
        self._texts.append(text)
        return lambda: text.out

    def _json(self, source: str, place: str) -> Callable[[], str]:
        leaves: list[Callable[[], str]] = []

        def string(value: str, key: str) -> None:
            leaves.append(self._text(value, place, context=key, leaf=True))

        def number(value: str, key: str) -> None:
            leaves.append(self._text(value, place, context=key, leaf=True, number=True))

        if replace_tokens(source, string=string, number=number) is None:
            return self._text(source, place)

        def finish() -> str:
            done = iter(leaves)

            def back(value: str, _: str) -> str | None:
                out = next(done)()
                return None if out == value else json.dumps(out, ensure_ascii=False)

            changed = replace_tokens(source, string=back, number=back)
            assert changed is not None
            return changed

        return finish

    def settle(self) -> None:
        """Find all there is, and write what leaves.

        Raises:
            InputError: there is no end of it.
        """
        for text in self._texts:
            self._map.reserve(text.source)
        for _ in range(_ROUNDS_MAX):
            known = KnownValues(self._map)
            for text in self._texts:
                self._read(text, known)
            # Numbers are given in the order of the texts, after all of them were read.
            before = len(self._map)
            for text in self._texts:
                self._write(text)
            if len(self._map) == before and not any(text.fresh for text in self._texts):
                self._report()
                return
        raise InputError(
            "minimise-unsettled",
            "a detector finds more in this text each time it is asked; it cannot be minimised",
            hint="leave out the detector that was added last, or send other fields",
        )

    def _read(self, text: Text, known: KnownValues) -> None:
        found: list[Span] = []
        detectors: tuple[Detector, ...] = (*self._detectors, known) if text.fresh else (known,)
        if not text.begun:
            found += self._in_whole(text)
            text.begun = True
            detectors = (known,) if text.context else detectors
        for start, end in gaps(text):
            found += self._in_piece(text, start, end, detectors)
        spans = with_backslashes(text.source, resolve([*text.spans, *found]))
        if text.number and spans:
            spans = (replace(spans[0], start=0, end=len(text.source)),)
        text.fresh = spans != text.spans
        text.spans = spans

    def _in_whole(self, text: Text) -> Iterator[Span]:
        for place in places(text.source):
            if self._map.value_of(place.key) is not None:
                yield Span(
                    start=place.start,
                    end=place.end,
                    kind=Kind.TEXT,
                    confidence=Confidence.CERTAIN,
                    checked_by="form of a placeholder",
                    identity="",
                )
        if self._secrets and text.source.strip() and names_secret(text.context):
            yield Span(
                start=0,
                end=len(text.source),
                kind=Kind.SECRET,
                confidence=Confidence.POSSIBLE,
                checked_by="the name of its field",
                identity=text.source,
            )
        if text.number:
            yield from self._as_whole_number(text)
        yield from self._in_its_place(text)

    def _in_its_place(self, text: Text) -> Iterator[Span]:
        """Yield what shows by where a text stands: behind its field, or alone as a name."""
        leads = [f"{text.context}: "] if text.context else []
        if text.leaf and _SHORT.fullmatch(text.source):
            leads.append("the ")
        for lead in leads:
            for folded in readings(lead + text.source):
                for detector in self._detectors:
                    for span in detector.find(folded):
                        if span.end > len(lead):
                            yield moved(span, -len(lead))

    def _as_whole_number(self, text: Text) -> Iterator[Span]:
        """Yield what a number is that is whole and was written as another: ``4.1e15``."""
        value = float(text.source)
        if text.source.isdigit() or not value.is_integer():
            return
        folded = fold(f"{text.context}: {abs(value):.0f}")
        for detector in self._detectors:
            for span in detector.find(folded):
                yield replace(span, start=0, end=len(text.source))

    @staticmethod
    def _in_piece(
        text: Text, start: int, end: int, detectors: Sequence[Detector]
    ) -> Iterator[Span]:
        for folded in readings(text.source[start:end]):
            for detector in detectors:
                for span in detector.find(folded):
                    yield moved(span, start)

    def _write(self, text: Text) -> None:
        out, at = [], 0
        for span in text.spans:
            out.append(text.source[at : span.start])
            out.append(self._placeholder(text, span))
            at = span.end
        out.append(text.source[at:])
        text.out = "".join(out)

    def _placeholder(self, text: Text, span: Span) -> str:
        value = text.source[span.start : span.end]
        return self._map.placeholder_for(
            span.kind, value, identity=span.identity, number=text.number
        )

    def _check(self, text: Text) -> None:
        """Refuse a text that would not come back as it was."""
        record_links(text.out, self._map)
        if restore(text.out, self._map) != text.source:
            raise InputError(
                "minimise-ambiguous",
                "what would leave reads as a placeholder in a place where none was put",
                context={"place": text.place},
                hint="change what looks like [EMAIL_1] in this text",
            )

    def _report(self) -> None:
        for text in self._texts:
            self._check(text)
            self.replacements += [
                Replacement(
                    place=text.place,
                    start=span.start,
                    end=span.end,
                    kind=span.kind,
                    placeholder=self._placeholder(text, span),
                    confidence=span.confidence,
                    checked_by=span.checked_by,
                )
                for span in text.spans
            ]
        literal = sum(1 for r in self.replacements if r.kind is Kind.TEXT)
        if literal:
            self.events.append(
                Event(
                    code="placeholder-lookalike",
                    message="text that reads as a placeholder of this conversation was replaced, "
                    "so that it comes back as it was",
                    context={"count": literal},
                )
            )
