r"""What escapes stand for: ``\n`` and ``\u0040`` of JSON, ``%40`` of URLs, ``&#64;`` of HTML.

Whether a text is JSON, or a piece of it, or a path of Windows, cannot be told from the text. So it
is read in both ways: see :func:`edgewise.route.minimise.folding.readings`.
"""

from __future__ import annotations

import re
from html.entities import html5

__all__ = ["unescaped"]

_ROUNDS_MAX = 3  # an escape in an escape: JSON in JSON in a URL
_CODE_MAX = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_ESCAPE = re.compile(
    r"\\{1,8}(?:u(?P<high>[dD][89abAB][0-9A-Fa-f]{2})\\{1,8}u(?P<low>[dD][c-fC-F][0-9A-Fa-f]{2})"
    r"|(?:u(?P<four>[0-9A-Fa-f]{4})|x(?P<two>[0-9A-Fa-f]{2})|u\{(?P<braced>[0-9A-Fa-f]{1,6})\}"
    r"|U(?P<eight>[0-9A-Fa-f]{8}))"
    r"|(?P<letter>[nrtbfv\"'/]))"
    r"|(?P<percent>(?:%[0-9A-Fa-f]{2}){1,64})"
    r"|&(?:#(?P<decimal>[0-9]{1,12});?|#[xX](?P<hex>[0-9A-Fa-f]{1,12});?"
    r"|(?P<entity>[A-Za-z][A-Za-z0-9]{1,31};))"
    r"|(?P<colour>\x1b\[[0-9;:?]{0,32}[A-Za-z])"
)
_LETTERS = {"n": "\n", "r": "\n", "t": "\t", "b": " ", "f": " ", "v": " "}
_SIXTEEN = ("four", "two", "braced", "eight", "hex")


def unescaped(text: str) -> tuple[str, list[int], list[int]] | None:
    """Return a text with its escapes taken for what they stand for, or ``None`` without any.

    With it come where each of its characters begins and ends in the text as it was given.
    """
    done = _once(text)
    if done is None:
        return None
    for _ in range(_ROUNDS_MAX - 1):
        plain, starts, ends = done
        further = _once(plain)
        if further is None:
            break
        plain, begun, ended = further
        done = plain, [starts[at] for at in begun], [ends[at - 1] for at in ended]
    return done


def _once(text: str) -> tuple[str, list[int], list[int]] | None:
    out: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for match in _ESCAPE.finditer(text):
        said = _said(match)
        if said is None:
            continue
        out.append(text[at : match.start()])
        starts.extend(range(at, match.start()))
        ends.extend(range(at + 1, match.start() + 1))
        for start, end, characters in said:
            out.append(characters)
            starts.extend([start] * len(characters))
            ends.extend([end] * len(characters))
        at = match.end()
    if not at:
        return None
    out.append(text[at:])
    starts.extend(range(at, len(text)))
    ends.extend(range(at + 1, len(text) + 1))
    return "".join(out), starts, ends


def _said(match: re.Match[str]) -> list[tuple[int, int, str]] | None:
    """Return what an escape stands for, and where; ``None`` where it stands for nothing."""
    start, end = match.span()
    if match["percent"]:
        return _percent(match["percent"], start)
    if match["colour"]:
        return []
    if match["letter"]:
        return [(start, end, _LETTERS.get(match["letter"], match["letter"]))]
    if match["entity"]:
        known = html5.get(match["entity"])
        return [(start, end, known)] if known else None
    if match["high"]:
        high, low = int(match["high"], 16) - 0xD800, int(match["low"], 16) - 0xDC00
        return [(start, end, chr(0x10000 + (high << 10) + low))]
    code = int(match["decimal"]) if match["decimal"] else int(_hexadecimal(match), 16)
    if code > _CODE_MAX or code in _SURROGATES:
        return None
    return [(start, end, chr(code))]


def _hexadecimal(match: re.Match[str]) -> str:
    return next(match[name] for name in _SIXTEEN if match[name])


def _percent(written: str, start: int) -> list[tuple[int, int, str]]:
    """Return the characters of UTF-8 in percent escapes; other bytes are those of Latin-1."""
    data = bytes.fromhex(written.replace("%", ""))
    found = []
    for character in data.decode("utf-8", "surrogateescape"):
        code = ord(character)
        alone = code in _SURROGATES
        end = start + 3 * (1 if alone else len(character.encode("utf-8")))
        found.append((start, end, chr(code - 0xDC00) if alone else character))
        start = end
    return found
