r"""ECMA-262 patterns, as JSON Schema writes them, in the grammar library's dialect.

The two look alike and differ in what nobody sees: ``\s`` and ``.`` stand for other characters,
``[[a]`` and ``[a&&b]`` mean other sets. So a pattern is read here and written anew, character by
character, and what has no counterpart is refused.
"""

from __future__ import annotations

import re
from functools import lru_cache

from edgewise.run.structure.library import GrammarError

__all__ = ["translated"]

# ECMA-262 2023: WhiteSpace and LineTerminator (12.2, 12.3); \w and \d are ASCII (22.2.2.9).
_SPACE = r"\x{9}-\x{d}\x{20}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_SETS = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACE + r"\x{feff}"}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_DOT = r"[^\x{a}\x{d}\x{2028}\x{2029}]"
_ALL = r"[\x{0}-\x{10ffff}]"

_QUANTIFIER = re.compile(r"(?:[*+?]|\{\d{1,6}(?:,\d{0,6})?\})")
_GROUP = re.compile(r"\((?:\?(?::|<[A-Za-z_$][\w$]*>))?")
_CODE = re.compile(
    r"x([0-9a-fA-F]{2})|u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|c([A-Za-z])|(0)(?![0-9])"
)
_LOW = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_PROPERTY = re.compile(r"[pP]\{[A-Za-z_]+(?:=[A-Za-z_]+)?\}")


@lru_cache(maxsize=2048)
def translated(pattern: str) -> str:
    """Return a pattern that means the same to the grammar library.

    Raises:
        GrammarError: the pattern is malformed, or has look-around, a word boundary, a back
            reference or another feature without a counterpart.
    """
    return _Translator(pattern).run()


class _Translator:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def run(self) -> str:
        made: list[str] = []
        while self._at < len(self._pattern):
            made.append(self._one())
        return "".join(made)

    def _one(self) -> str:
        found = _QUANTIFIER.match(self._pattern, self._at)
        if found is not None:
            self._at = found.end()
            # Lazy or not, the same texts match.
            self._at += self._pattern.startswith("?", self._at)
            return found[0]
        one = self._take()
        if one == "(":
            return self._group()
        if one == "[":
            return self._class()
        if one == ".":
            return _DOT
        if one in "^$|)":
            return one
        if one == "\\":
            return self._escape()
        return _literal(ord(one))

    def _group(self) -> str:
        found = _GROUP.match(self._pattern, self._at - 1)
        if found is None or (found[0] == "(" and self._pattern.startswith("?", self._at)):
            ahead = self._pattern[self._at : self._at + 3]
            around = ahead[:2] in {"?=", "?!"} or ahead in {"?<=", "?<!"}
            raise GrammarError("look-around" if around else f"no group of ECMA-262: ({ahead}")
        self._at = found.end()
        return "(?:"

    def _escape(self) -> str:
        found = _PROPERTY.match(self._pattern, self._at)
        if found is not None:
            self._at = found.end()
            return "\\" + found[0]
        one = self._pattern[self._at : self._at + 1]
        if one.lower() in _SETS and one:
            self._at += 1
            return f"[{'' if one.islower() else '^'}{_SETS[one.lower()]}]"
        if one in "bB" and one:
            raise GrammarError("look-around: a word boundary")
        return _literal(self._code())

    def _code(self) -> int:
        r"""Return the character that an escape names, read after its ``\``."""
        found = _CODE.match(self._pattern, self._at)
        if found is not None:
            self._at = found.end()
            if found[4]:
                return ord(found[4]) % 32
            return self._paired(int(found[1] or found[2] or found[3] or found[5], 16))
        one = self._take()
        if one in _CONTROLS:
            return _CONTROLS[one]
        if one in "123456789k":
            raise GrammarError("a backreference")
        if not one.isascii() or one.isalnum():
            raise GrammarError(f"no escape of ECMA-262: \\{one}")
        return ord(one)

    def _paired(self, code: int) -> int:
        if not 0xD800 <= code < 0xE000:
            return code
        low = _LOW.match(self._pattern, self._at)
        if low is None or code >= 0xDC00:
            raise GrammarError("half of a surrogate pair")
        self._at = low.end()
        return 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00

    def _class(self) -> str:
        negated = self._pattern.startswith("^", self._at)
        self._at += negated
        parts: list[str] = []
        while not self._pattern.startswith("]", self._at):
            first = self._member()
            dash = self._pattern.startswith("-", self._at)
            if not dash or self._pattern[self._at + 1 : self._at + 2] in {"]", ""}:
                parts.append(first if isinstance(first, str) else _literal(first))
                continue
            self._at += 1
            last = self._member()
            if isinstance(first, str) or isinstance(last, str) or last < first:
                raise GrammarError("a range that has no two ends in order")
            parts.append(f"{_literal(first)}-{_literal(last)}")
        self._at += 1
        if not parts:
            return _ALL if negated else f"[^{_ALL[1:]}"
        return f"[{'^' if negated else ''}{''.join(parts)}]"

    def _member(self) -> str | int:
        """Return the next character of a class, or a set written as a class."""
        one = self._take()
        if one != "\\":
            return ord(one)
        if self._pattern.startswith("b", self._at):
            self._at += 1
            return 8
        if self._pattern.startswith("-", self._at):
            self._at += 1
            return ord("-")
        named = self._pattern[self._at : self._at + 1]
        if named.lower() in {*_SETS, "p"} and named:
            return self._escape()
        return self._code()

    def _take(self) -> str:
        one = self._pattern[self._at : self._at + 1]
        if not one:
            raise GrammarError("it ends early")
        self._at += 1
        return one


def _literal(code: int) -> str:
    if code > 0x10FFFF:
        raise GrammarError("a character beyond Unicode")
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:x}}}"
