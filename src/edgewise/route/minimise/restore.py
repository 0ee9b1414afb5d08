"""Placeholders back into what they stand for, in a stream or in a whole.

What is fed may be cut anywhere: ``feed`` holds back only what may still become a placeholder.
Restoring any split of a text gives the same as restoring the whole.

A restored answer is shown, and what is shown may fetch: an image whose address holds a
placeholder would carry the value to whoever wrote the address. So inside a link or a host name a
placeholder is restored only where the user's own text had that very one; elsewhere it stays, with
an event.
"""

from __future__ import annotations

import json

from edgewise.core.outcome import Event
from edgewise.route.minimise.forms import Place, first_partial, places, written
from edgewise.route.minimise.hosts import after, undecided
from edgewise.route.minimise.jsontext import replace_tokens
from edgewise.route.minimise.links import Link
from edgewise.route.minimise.placeholders import PlaceholderMap

__all__ = ["Restorer", "record_links", "restore", "restore_json"]

_EVENTS_MAX = 100


class Restorer:
    """Restores one answer.

    Attributes:
        restored: How many placeholders were replaced so far.
        events: ``placeholder-unknown`` for one that was never given, ``placeholder-in-link`` for
            one that was left inside a link or a host name; the first hundred.

    A placeholder that does not come back is no error, and neither is one that comes back often.
    """

    def __init__(
        self, placeholder_map: PlaceholderMap, *, json_text: bool = False, links: bool = False
    ) -> None:
        """Begin with an answer.

        Args:
            placeholder_map: The map that the request was minimised with.
            json_text: Whether the answer is JSON text, where values are escaped.
            links: Whether to restore inside every link. Only for a text that nothing renders
                and no program follows.
        """
        self._map = placeholder_map
        self._json = json_text
        self._links = links
        self._link = Link()
        self._pending = ""
        self._before = ""
        self.restored = 0
        self.events: list[Event] = []

    def feed(self, chunk: str) -> str:
        """Return what is safe to show after one more piece of the answer."""
        self._pending += chunk
        return self._take(final=False)

    def flush(self) -> str:
        """Return the rest. The answer is over; another can be fed."""
        rest = self._take(final=True)
        self._pending = self._before = ""
        self._link = Link()
        return rest

    def _take(self, *, final: bool) -> str:
        text = self._before + self._pending
        at = len(self._before)
        hold = len(text) if final else first_partial(text, at)
        out: list[str] = []
        for place in places(text, at):
            if place.end > hold or (not final and undecided(text, place.end)):
                hold = min(hold, place.start)
                break
            out.append(self._pass(text[at : place.start]))
            out.append(self._replace(text, place))
            at = place.end
        out.append(self._pass(text[at:hold]))
        # One character stays visible to the rule that a bare placeholder begins a word.
        self._before = text[max(0, hold - 1) : hold]
        self._pending = text[hold:]
        return "".join(out)

    def _pass(self, text: str) -> str:
        if text:
            self._link.follow(text)
        return text

    def _replace(self, whole: str, place: Place) -> str:
        text = whole[place.start : place.end]
        inside, before = self._link.inside, self._link.before
        self._link.follow(written(place.key))  # however the model wrote it
        entry = self._map.value_of(place.key)
        if entry is None:
            if place.bracketed and not self._map.is_reserved(place.key):
                self._tell(_unknown(text))
            return text
        host = after(whole, place.end)
        foreign = inside and not self._map.was_linked(before, place.key)
        foreign = foreign or (bool(host) and not self._map.was_linked(_host(host), place.key))
        if foreign and not self._links:
            self._tell(_in_link(text))
            return text
        self.restored += 1
        return json.dumps(entry.value, ensure_ascii=False)[1:-1] if self._json else entry.value

    def _tell(self, event: Event) -> None:
        if len(self.events) < _EVENTS_MAX:
            self.events.append(event)


def _unknown(text: str) -> Event:
    return Event(
        code="placeholder-unknown",
        message="the answer has a placeholder that was never given; it stands as it came",
        context={"placeholder": text},
    )


def _in_link(text: str) -> Event:
    return Event(
        code="placeholder-in-link",
        message="a placeholder inside a link or a host name was not restored: its owner would be "
        "sent the value when it is opened",
        context={"placeholder": text},
    )


def restore(text: str, placeholder_map: PlaceholderMap) -> str:
    """Return a whole text with its placeholders restored."""
    restorer = Restorer(placeholder_map)
    return restorer.feed(text) + restorer.flush()


def restore_json(
    arguments: str, placeholder_map: PlaceholderMap, *, links: bool = False
) -> tuple[str, tuple[Event, ...]]:
    """Return JSON text with the placeholders in its strings restored, and what happened.

    Everything else of the text stays as it is, byte for byte. A string that is nothing but a
    placeholder which stood for a number becomes that number again. Text that is no JSON is
    restored as text inside of which values are escaped.
    """
    events: list[Event] = []

    def string(text: str, _: str) -> str | None:
        whole = [p for p in places(text) if (p.start, p.end) == (0, len(text))]
        entry = placeholder_map.value_of(whole[0].key) if whole else None
        if entry is not None and entry.number:
            return entry.value
        restored = _whole(placeholder_map, text, events, links=links)
        return None if restored == text else json.dumps(restored, ensure_ascii=False)

    done = replace_tokens(arguments, string=string, number=lambda _text, _key: None)
    if done is None:
        restorer = Restorer(placeholder_map, json_text=True, links=links)
        done = restorer.feed(arguments) + restorer.flush()
        events = restorer.events
    return done, tuple(events)


def _whole(placeholder_map: PlaceholderMap, text: str, events: list[Event], *, links: bool) -> str:
    restorer = Restorer(placeholder_map, links=links)
    restored = restorer.feed(text) + restorer.flush()
    events.extend(restorer.events)
    return restored


def _host(after_it: str) -> str:
    """Return how a host name is remembered: no part of a link has this character."""
    return f"\n{after_it}"


def record_links(text: str, placeholder_map: PlaceholderMap) -> None:
    """Remember the links and host names of a minimised text that have placeholders in them."""
    link, at = Link(), 0
    for place in places(text):
        link.follow(text[at : place.start])
        if link.inside and placeholder_map.value_of(place.key) is not None:
            placeholder_map.link(link.before, place.key)
        host = after(text, place.end)
        if host and placeholder_map.value_of(place.key) is not None:
            placeholder_map.link(_host(host), place.key)
        link.follow(written(place.key))
        at = place.end
