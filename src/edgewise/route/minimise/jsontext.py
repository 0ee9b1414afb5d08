"""JSON text changed in place: its strings and numbers, and nothing else of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

__all__ = ["replace_tokens"]

_TOKEN = re.compile(
    r'(?P<string>"[^"\\]*(?:\\.[^"\\]*)*")(?P<colon>\s*:)?'
    r"|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
)
Change = Callable[[str, str], str | None]  # (the token's value, the key it belongs to) -> JSON


def replace_tokens(text: str, *, string: Change, number: Change) -> str | None:
    """Return JSON text with tokens exchanged, or ``None`` when it is no JSON.

    Args:
        text: JSON text; one value.
        string: Is given each string's value (keys, too) and the last key before it; returns the
            JSON to put there, or ``None`` to leave the token as it is. What it returns for a key
            must be a string.
        number: Is given each number as it is written, and its key.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    out: list[str] = []
    at, key = 0, ""
    for match in _TOKEN.finditer(text):
        out.append(text[at : match.start()])
        at = match.start()
        if match["number"] is not None:
            changed = number(match["number"], key)
            out.append(match["number"] if changed is None else changed)
            at = match.end()
            continue
        value = json.loads(match["string"], strict=False)
        changed = string(value, "" if match["colon"] else key)
        if match["colon"]:
            key = value
            if changed is not None and not changed.startswith('"'):
                changed = json.dumps(changed)
        out.append(match["string"] if changed is None else changed)
        at = match.end("string")
    out.append(text[at:])
    return "".join(out)
