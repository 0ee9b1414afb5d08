"""Whether a place in a text is in a link, for whoever shows the text or follows it.

Those who fetch are generous: ``https:evil.example`` without slashes is a link, a tab or a line end
in it counts for nothing, and in HTML any character may be an entity. So what stands in a tag or in
the brackets of a link of Markdown is a link whatever it is; elsewhere a link begins with a scheme,
with two slashes, with ``www.``, or as a host name with a path, after all escapes were read.
"""

from __future__ import annotations

import hashlib
import re

from edgewise.route.minimise.escapes import unescaped
from edgewise.route.minimise.hosts import HOST_PATH, ends_as_host

__all__ = ["Link"]

_BLOCK = 8192  # of a longer link the digest is compared
_OVERLAP = 256  # no beginning of a link is longer, as it is written
_PIECES = re.compile(r"[\s<>()\[\]]|[^\s<>()\[\]]+")
_BEGINS = re.compile(r"(?:https?|wss?|ftps?|javascript|vbscript):|[/\\]{2}|www\.", re.IGNORECASE)
_PATH = re.compile(HOST_PATH)
_UNSEEN = re.compile(r"[\t\r\n]")  # the URL standard takes them out first
_BEFORE = re.compile(r"[^./\\]*[(\[{<\"'*_`=:,]|")  # what a link may be put into
_AROUND = "([{<\"'*_`"
_HARMLESS = re.compile(r"(?:mailto|tel):", re.IGNORECASE)  # it opens a window, and sends nothing


class Link:
    """Follows a text and knows the link it is in; how the text is cut makes no difference."""

    _begun: bool

    def __init__(self) -> None:
        self._restart()
        self._last = ""
        self._tag = False
        self._closed = True
        self._depth = 0
        self._blank = False

    def follow(self, text: str) -> None:
        """Go on over a piece of text."""
        for piece in _PIECES.findall(text):
            self._step(piece)
            self._last = piece[-1]

    def _step(self, piece: str) -> None:
        if self._last == "<" and (piece[0] in "/!?" or (piece[0].isascii() and piece[0].isalpha())):
            self._restart()
            self._tag, self._closed, self._depth = True, False, 0
        if piece.isspace():
            self._space(piece)
            return
        self._blank = False
        if piece == ">":
            self._tag, self._closed = False, True
            self._restart()
            return
        if piece == "(" and self._last == "]" and not self._depth:
            self._depth = 1
            if not self._tag:
                begun = self._begun or _begins(self._run)
                self._restart()
                self._begun = begun
            return
        if self._depth and self._last != "\\":
            self._depth += {"(": 1, ")": -1}.get(piece, 0)
        self._add(piece)

    def _space(self, piece: str) -> None:
        if piece == "\n":
            if self._blank:  # no tag and no link of Markdown goes on after an empty line
                self._tag, self._depth = False, 0
            self._blank = True
        if self._closed and not self._depth:
            self._restart()
        else:
            self._add(piece)

    def _restart(self) -> None:
        self._run, self._long = "", False
        self._begun = False
        self._digest = hashlib.sha256()

    def _add(self, piece: str) -> None:
        self._run += piece
        while len(self._run) >= _BLOCK + _OVERLAP:
            self._long = True
            self._begun = self._begun or _begins(self._run[: _BLOCK + _OVERLAP])
            self._digest.update(self._run[:_BLOCK].encode("utf-8", "surrogatepass"))
            self._run = self._run[_BLOCK:]

    @property
    def inside(self) -> bool:
        """Return whether this is a link, or may be one to somebody."""
        if (self._tag or self._depth) and not (
            not self._long and _HARMLESS.fullmatch(self._run.lstrip())
        ):
            return True
        return self._begun or _begins(self._run) or ends_as_host(self._run)

    @property
    def before(self) -> str:
        """Return the link up to here, or of a long one what is equal for equal ones only."""
        if self._long:
            return f"{self._digest.hexdigest()} {self._run}"
        begun = _BEGINS.search(self._run)
        if begun and self._closed and _BEFORE.fullmatch(self._run, 0, begun.start()):
            return self._run[begun.start() :]
        return self._run.lstrip(_AROUND)


def _begins(run: str) -> bool:
    """Return whether a link begins in a stretch of text."""
    plain = _UNSEEN.sub("", run)
    read = unescaped(plain)
    both = plain if read is None else f"{plain} {_UNSEEN.sub('', read[0])}"
    return _BEGINS.search(both) is not None or _PATH.search(both) is not None
