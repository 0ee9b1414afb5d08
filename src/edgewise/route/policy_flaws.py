"""What makes a policy unusable: numbers without a canonical form, names, dates."""

from __future__ import annotations

import datetime as dt
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from edgewise.core.shown import plain
from edgewise.errors import InputError

__all__ = ["ANY", "date_of", "invalid", "numbers", "require_seen", "require_unique", "undefined"]

ANY = "*"


def numbers(where: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers in a part of a policy, each with its place."""
    if isinstance(value, (int, float)):
        yield where, value
    elif isinstance(value, tuple):
        for index, one in enumerate(value):
            yield from numbers(f"{where}[{index}]", one)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from numbers(f"{where}.{name}", getattr(value, name))


def require_seen(name: str) -> None:
    """Refuse a name with characters that act on a terminal.

    Raises:
        InputError: it has some (``policy-invalid``).
    """
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise invalid(f"a name has control characters: {plain(name, longest=100)}")


def require_unique(what: str, names: Iterable[str]) -> None:
    """Refuse two rules of one name, and names that are none.

    Raises:
        InputError: there are (``policy-invalid``).
    """
    seen: set[str] = set()
    for name in names:
        if not name or name == ANY:
            raise invalid(f"a {what} is called {name!r}")
        require_seen(name)
        if name in seen:
            raise invalid(f"two rules are for the {what} {name!r}")
        seen.add(name)


def date_of(text: str) -> dt.datetime | None:
    """Return a date of a policy, in UTC where it names no zone; ``None`` for none.

    Raises:
        InputError: it is no date (``policy-invalid``).
    """
    if not text:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise invalid(f"{text!r} is no date like 2026-12-31T00:00:00Z: {error}") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def invalid(why: str) -> InputError:
    """Return the error of a policy that cannot be used."""
    return InputError(
        "policy-invalid",
        f"this policy cannot be used: {why}",
        hint="mend it and check it with `edgewise policy check FILE`",
    )


def undefined(what: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error of a name that the policy does not define, with those that it does."""
    defined = ", ".join(sorted(known)) or "none"
    return invalid(f"{what} {name!r}, which it does not define; defined: {defined}")
