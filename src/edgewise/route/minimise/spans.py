"""What a detector finds: stretches of a text, each with its kind and what speaks for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from edgewise.route.minimise.folding import Folded

__all__ = ["Confidence", "Detector", "Kind", "Span", "resolve"]


class Kind(StrEnum):
    """What an identifier is. The value is the word in its placeholder.

    ``TEXT`` is no identifier: it stands for a text of the user's that looks like a placeholder.
    """

    SECRET = "SECRET"  # noqa: S105 - the word, not one of them
    URL = "URL"
    IBAN = "IBAN"
    CARD = "CARD"
    NATIONAL_ID = "IDNUMBER"
    EMAIL = "EMAIL"
    PHONE = "PHONE"
    MAC = "MACADDR"
    IP = "IPADDR"
    PERSON = "PERSON"
    TEXT = "TEXT"


# Between spans of equal length: what is worse to lose, and better checked, comes first.
_PRIORITY = {kind: rank for rank, kind in enumerate(Kind)}


class Confidence(StrEnum):
    """How sure a detector is, in the order of what speaks for a span.

    ``CERTAIN``: its check digits or its very form say so. ``LIKELY``: its form does, and what
    stands around it or a numbering plan agrees. ``POSSIBLE``: only words around it say so.
    """

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a text that identifies somebody or opens something.

    Attributes:
        start: First character, in the text as it was given.
        end: One past the last.
        kind: What it is.
        confidence: How sure the detector is.
        checked_by: What was checked, such as ``luhn`` or ``phonenumbers``.
        identity: The identifier in its plain form: equal for all spellings of the same one.
    """

    start: int
    end: int
    kind: Kind
    confidence: Confidence
    checked_by: str
    identity: str = field(repr=False)


class Detector(Protocol):
    """Finds identifiers in a text.

    A detector reads the folded text and makes its spans with :meth:`Folded.span`, which leads
    back to the text as it was given. It keeps nothing, opens nothing, and takes time linear in
    the length of the text.
    """

    @property
    def name(self) -> str:
        """Return its name, for reports."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds it finds."""

    @property
    def limits(self) -> str:
        """Return what it cannot guarantee, in words that a user is shown."""

    def find(self, text: Folded) -> Iterator[Span]:
        """Yield what it finds; spans may overlap those of others."""


def resolve(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return spans that do not overlap, in the order of the text.

    The longest wins; between equals, the kind that comes first in :class:`Kind`. Spans that
    overlap in part are joined, so that no end of a loser is left in the text: the whole takes
    the winner's kind and, since it is now another text, an identity of its own.
    """
    cluster: list[Span] = []
    end = -1
    found: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        if cluster and span.start >= end:
            found.append(_winner(cluster, end))
            cluster = []
        cluster.append(span)
        end = span.end if len(cluster) == 1 else max(end, span.end)
    if cluster:
        found.append(_winner(cluster, end))
    return tuple(found)


def _winner(cluster: list[Span], end: int) -> Span:
    best = min(cluster, key=lambda s: (s.start - s.end, _PRIORITY[s.kind], s.start))
    start = cluster[0].start
    if (best.start, best.end) == (start, end):
        return best
    return Span(
        start=start,
        end=end,
        kind=best.kind,
        confidence=best.confidence,
        checked_by=best.checked_by,
        identity="",
    )
