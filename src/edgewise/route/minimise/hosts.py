r"""Whether a placeholder would become a part of a host name that somebody else owns.

``[EMAIL_1].evil.example`` is no link until a viewer makes it one, and many do: a name with a dot is
enough. To look it up is to send the value to whoever owns ``evil.example``. What counts is what
follows: a value at the end of a name is looked up at its own owner.

How far is looked is bounded, and ends at the first character that no host name has.
"""

from __future__ import annotations

import re

from edgewise.route.minimise.spans import Kind

__all__ = ["HOST_PATH", "after", "ends_as_host", "undecided"]

_RUN_MAX = 320  # more than the 253 characters that a name may have
_UNSEEN = "\u00ad\u200b-\u200f\u2060\ufeff"
# In ASCII: letters, digits, hyphens, and what emphasis and other placeholders are written with.
_STOPS = (
    r"\s\x00-\x29\x2b\x2c\x2f\x3a-\x3f\x5c\x5e\x7b-\x7d\x7f"
    "\u00a1\u00ab\u00b7\u00bb\u00bf\u2010-\u2027\u2030-\u205e\u3000-\u303f"
    "\uff01-\uff0d\uff0f\uff1a-\uff20\uff5b-\uff60\uff62-\uff65"
)
_DOT = (
    r"(?:\\{0,2}[.\uff0e\uff61]|\\u002e|%2e|&(?:#0{0,64}46|#x0{0,64}2e|period);?"
    r"|\u3002(?=[A-Za-z0-9]))"
)
_AT = r"(?:@|%40|&(?:#0{0,64}64|#x0{0,64}40|commat);?)"
_ESCAPED = r"(?:&#(?:0{0,64}[1-9][0-9]{1,6}|x0{0,64}[1-9a-f][0-9a-f]{1,5});)"
_CUT = r"(?:\\{1,2}(?:u[0-9a-f]{0,3})?|%[24]?|&[#a-z0-9]{0,80}|\u3002)\Z"  # an escape, so far
_RUN = re.compile(rf"(?:{_DOT}|{_AT}|{_ESCAPED}|[^{_STOPS}]|{_CUT}){{0,{_RUN_MAX}}}", re.IGNORECASE)
_LABEL = rf"[^{_STOPS}.@\uff0e\uff61]"
_BEGINS = (
    rf"[*_`~{_UNSEEN}]{{0,4}}(?:{_ESCAPED}|[^{_STOPS}.@*_`~\[\]]"
    rf"|[\[\u3010](?:{'|'.join(kind.value for kind in Kind)})[_ -])"
)
_HOST = re.compile(rf"{_LABEL}{{0,63}}(?:{_DOT}|{_AT}){_BEGINS}", re.IGNORECASE)
_TRAILING = ".*_`~[]\\"

# A name with a dot, and a path behind it; it begins where no other name could have begun.
_IN = rf"[\w\-\u0300-\u036f{_UNSEEN}]"
_DOTS = r"[.\u3002\uff0e\uff61]"
HOST_PATH = (
    rf"(?<![\w.\-])\w{_IN}*(?:{_DOTS}{_IN}+)+{_DOTS}?(?::\d+)?"
    r"[*_`~]{0,4}\\?[/?#\uff0f]"
)
# `Dr.` and `z.B.` are no names of hosts.
_ENDS = re.compile(r"(?<![\w.\-])(?:[\w\-]{2,}\.){2,}\Z|[\w\-]@\Z")


def after(text: str, start: int) -> str:
    """Return how a name goes on from a place in a text; empty where it does not."""
    found = _RUN.match(text, start)
    run = "" if found is None else found[0]
    return run.rstrip(_TRAILING) if _HOST.match(run) else ""


def undecided(text: str, start: int) -> bool:
    """Return whether more text could change what :func:`after` returns."""
    found = _RUN.match(text, start)
    return found is not None and found.end() == len(text) and len(found[0]) < _RUN_MAX


def ends_as_host(run: str) -> bool:
    """Return whether a stretch of text ends in a name, so that what follows is a part of it."""
    return _ENDS.search(run[-_RUN_MAX:]) is not None
