"""The map from placeholders to what they stand for. It exists in memory, on this device, only."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from typing import Any, NoReturn

from edgewise.errors import ResourceError, UnsupportedError
from edgewise.route.minimise.folding import fold
from edgewise.route.minimise.forms import Key, places, written
from edgewise.route.minimise.spans import Kind

__all__ = ["PLACEHOLDERS_MAX", "Entry", "PlaceholderMap"]

PLACEHOLDERS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Entry:
    """What a placeholder stands for.

    Attributes:
        value: The text that was replaced.
        number: Whether it was a number in JSON, and not a text.
    """

    value: str = field(repr=False)
    number: bool = False


class PlaceholderMap:
    """The placeholders of one conversation.

    The same identifier has the same number wherever it appears; each other spelling of it has a
    spelling number of its own, so that what comes back is what was there. Numbers that a user's
    own text uses in something that reads as a placeholder are never given.

    The map shows no value when it is printed, and cannot be pickled, copied or encoded: what it
    holds leaves the process by :meth:`value_of` alone. It may be used from several threads.
    """

    __slots__ = (
        "_entries",
        "_identities",
        "_keys",
        "_links",
        "_lock",
        "_numbers",
        "_reserved",
        "_spellings",
    )

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.forget()

    def forget(self) -> None:
        """Drop every value. What was given out can no longer be restored."""
        with self._lock:
            self._entries: dict[Key, Entry] = {}
            self._keys: dict[tuple[Kind, str, bool], Key] = {}
            self._identities: dict[tuple[Kind, str], int] = {}
            self._spellings: dict[tuple[Kind, int], int] = {}
            self._numbers: dict[Kind, int] = {}
            self._reserved: set[Key] = set()
            self._links: set[tuple[bytes, Key]] = set()

    def placeholder_for(
        self, kind: Kind, value: str, *, identity: str = "", number: bool = False
    ) -> str:
        """Return the placeholder of a value, a new one where it has none.

        Args:
            kind: What it is.
            value: The text to be replaced, exactly.
            identity: Its plain form, equal for all spellings; empty where there is none.
            number: Whether it is a number in JSON.

        Raises:
            ResourceError: the conversation has :data:`PLACEHOLDERS_MAX` (``placeholders-full``).
        """
        with self._lock:
            key = self._keys.get((kind, value, number))
            if key is None:
                key = self._new_key(kind, identity or f"\0{value}")
                self._keys[kind, value, number] = key
                self._entries[key] = Entry(value, number)
            return written(key)

    def _new_key(self, kind: Kind, identity: str) -> Key:
        if len(self._entries) >= PLACEHOLDERS_MAX:
            raise ResourceError(
                "placeholders-full",
                f"this conversation has {PLACEHOLDERS_MAX} placeholders, and no more are given",
                hint="start a new conversation, or send less at once",
            )
        number = self._identities.get((kind, identity))
        if number is None:
            number = self._numbers.get(kind, 0) + 1
            while (kind, number, 0) in self._reserved:
                number += 1
            self._numbers[kind] = number
            self._identities[kind, identity] = number
        spelling = self._spellings.get((kind, number), 0) + 1
        while (kind, number, spelling) in self._reserved:
            spelling += 1
        self._spellings[kind, number] = spelling
        return kind, number, spelling

    def reserve(self, text: str) -> None:
        """Never give the numbers that a text of the user's uses by itself."""
        with self._lock:
            for place in places(text):
                kind, number, _ = place.key
                if place.key not in self._entries:
                    self._reserved |= {place.key}
                    if (kind, number) not in self._spellings:
                        self._reserved |= {(kind, number, 0)}  # the number as a whole

    def is_reserved(self, key: Key) -> bool:
        """Return whether a user's own text had such a string."""
        return key in self._reserved

    def value_of(self, key: Key) -> Entry | None:
        """Return what a placeholder stands for, or ``None`` when it was never given."""
        return self._entries.get(key)

    def link(self, before: str, key: Key) -> None:
        """Remember that a placeholder stood in a link of the user's, after this part of it."""
        with self._lock:
            self._links.add((_digest(before), key))

    def was_linked(self, before: str, key: Key) -> bool:
        """Return whether the user had this link with this placeholder in it."""
        return (_digest(before), key) in self._links

    def known(self) -> tuple[tuple[Key, str, str], ...]:
        """Return key, value and identity of each value, for finding them again."""
        with self._lock:
            identities = {(kind, n): text for (kind, text), n in self._identities.items()}
            return tuple(
                (key, entry.value, identities[key[0], key[1]])
                for key, entry in self._entries.items()
            )

    def folded_values(self) -> tuple[tuple[Key, str], ...]:
        """Return each value in its folded form."""
        return tuple((key, fold(value).text) for key, value, _ in self.known())

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return True  # an empty map is a map

    def __repr__(self) -> str:
        return f"<PlaceholderMap of {len(self._entries)} values, which are not shown>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UnsupportedError(
            "placeholder-map-private",
            "a map of placeholders stays in the memory of its process; it cannot be copied, "
            "pickled or encoded",
            hint="keep the map itself as long as the conversation lasts",
        )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
