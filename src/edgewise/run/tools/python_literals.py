"""Arguments as Python spells them: ``(place="Ems", days=[1, 2], more={"a": None})``.

A strict part of Python: literals by keyword and nothing that has to be evaluated. What Python
itself would read differently from what is returned here is refused, and so is what it reads in a
way that few expect: texts side by side, octal escapes, an escape that is none. JSON's ``true``,
``false`` and ``null``, which are no Python, stand for what they are.

Invariants: the work is linear in the text; no text raises anything else than
:class:`LiteralError`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any, Final

from edgewise.core import strict_json

__all__ = ["LiteralError", "arguments_at", "is_keyword", "literal", "spell_literal"]

_SPACE: Final = re.compile(r"[ \t\r\n\f]*")
_WORD: Final = re.compile(r"[^\W\d]\w*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])")
_CONSTANTS: Final = {
    "True": True,
    "False": False,
    "None": None,
    "true": True,
    "false": False,
    "null": None,
}
_ESCAPES: Final = {
    "\\": "\\",
    "'": "'",
    '"': '"',
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
}
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_HEX: Final = re.compile(r"[0-9a-fA-F]+")


class LiteralError(ValueError):
    """A text is none of the literals that are read."""


def arguments_at(text: str, start: int, *, depth_max: int) -> tuple[dict[str, Any], int]:
    """Return the keyword arguments that begin at a bracket, and where they end.

    Raises:
        LiteralError: they are no keywords with literals.
    """
    reader = _Reader(text, start, depth_max)
    return reader.arguments(), reader.at


def literal(text: str, *, depth_max: int) -> Any:
    """Return the value of a text that is one literal.

    Raises:
        LiteralError: it is none.
    """
    reader = _Reader(text, 0, depth_max)
    value = reader.value(0)
    reader.skip()
    if reader.at != len(text):
        raise LiteralError(f"something follows the literal at character {reader.at}")
    return value


def is_keyword(name: str) -> bool:
    """Return whether a name can stand before ``=`` and is read as it is written."""
    return _WORD.fullmatch(name) is not None and unicodedata.normalize("NFKC", name) == name


def spell_literal(value: Any) -> str:
    """Return how Python spells JSON-like data."""
    return repr(value)


class _Reader:
    def __init__(self, text: str, at: int, depth_max: int) -> None:
        self.at = at
        self._text = text
        self._depth_max = depth_max

    def skip(self) -> None:
        found = _SPACE.match(self._text, self.at)
        assert found is not None
        self.at = found.end()

    def arguments(self) -> dict[str, Any]:
        self._expect("(")
        found: dict[str, Any] = {}

        def one() -> None:
            word = _WORD.match(self._text, self.at)
            if word is None or not is_keyword(word.group()):
                raise LiteralError(f"no keyword stands at character {self.at}")
            self.at = word.end()
            self.skip()
            self._expect("=")
            self._put(found, word.group(), self.value(1))

        self._until(")", one)
        return found

    def value(self, depth: int) -> Any:
        self.skip()
        sign = self._text[self.at : self.at + 1]
        if sign in {"'", '"'}:
            return self._string()
        if sign in {"[", "(", "{"}:
            return self._collection(sign, depth + 1)
        number = _NUMBER.match(self._text, self.at)
        if number is not None:
            self.at = number.end()
            return _number(number.group())
        word = _WORD.match(self._text, self.at)
        if word is None or word.group() not in _CONSTANTS:
            raise LiteralError(f"no literal stands at character {self.at}")
        self.at = word.end()
        return _CONSTANTS[word.group()]

    def _collection(self, sign: str, depth: int) -> Any:
        if depth > self._depth_max:
            raise LiteralError(f"it is nested more than {self._depth_max} levels deep")
        self.at += 1
        if sign == "{":
            made: dict[str, Any] = {}

            def pair() -> None:
                if self._text[self.at : self.at + 1] not in {"'", '"'}:
                    raise LiteralError(f"the key at character {self.at} is no text")
                key = self._string()
                self.skip()
                self._expect(":")
                self._put(made, key, self.value(depth))

            self._until("}", pair)
            return made
        items: list[Any] = []
        commas = self._until(")" if sign == "(" else "]", lambda: items.append(self.value(depth)))
        if sign == "(" and items and not commas:
            raise LiteralError("what stands in brackets is no literal")
        return items

    def _until(self, closing: str, one: Callable[[], None]) -> int:
        """Read what stands between commas; return how many commas there are."""
        commas = 0
        self.skip()
        while not self._text.startswith(closing, self.at):
            one()
            self.skip()
            if not self._text.startswith(closing, self.at):
                self._expect(",")
                commas += 1
                self.skip()
        self.at += 1
        return commas

    def _put(self, found: dict[str, Any], key: str, value: Any) -> None:
        if key in found:
            raise LiteralError(f"{key[:80]!r} is there twice")
        found[key] = value

    def _expect(self, sign: str) -> None:
        if not self._text.startswith(sign, self.at):
            raise LiteralError(f"{sign!r} does not stand at character {self.at}")
        self.at += 1

    def _string(self) -> str:
        quote = self._text[self.at]
        if self._text.startswith(quote * 3, self.at):
            quote *= 3
        self.at += len(quote)
        # Up to what may end a part of the text; a line may only end within three quotes.
        plain = re.compile(rf"[^\\\r{quote[0]}]+" if len(quote) == 3 else rf"[^\\\r\n{quote}]+")
        parts: list[str] = []
        while not self._text.startswith(quote, self.at):
            run = plain.match(self._text, self.at)
            if run is not None:
                parts.append(run.group())
                self.at = run.end()
            elif self._text.startswith("\\", self.at):
                parts.append(self._escape())
            elif len(quote) == 3 and self._text.startswith(quote[0], self.at):
                parts.append(quote[0])
                self.at += 1
            else:
                raise LiteralError(f"the text does not end on its line, character {self.at}")
        self.at += len(quote)
        made = "".join(parts)
        try:
            made.encode()
        except UnicodeEncodeError as error:
            raise LiteralError("a text holds half of a surrogate pair") from error
        return made

    def _escape(self) -> str:
        kind = self._text[self.at + 1 : self.at + 2]
        self.at += 2
        if kind in _ESCAPES:
            return _ESCAPES[kind]
        digits = self._text[self.at : self.at + _HEX_DIGITS.get(kind, 0)]
        if len(digits) < _HEX_DIGITS.get(kind, 1) or not _HEX.fullmatch(digits):
            raise LiteralError(f"the escape at character {self.at - 2} is none that is read")
        self.at += len(digits)
        if int(digits, 16) > 0x10FFFF:
            raise LiteralError(f"the escape at character {self.at - 2} is no character")
        return chr(int(digits, 16))


def _number(digits: str) -> int | float:
    try:
        return strict_json.number(digits)
    except strict_json.StrictJsonError as error:
        raise LiteralError(error.message) from error
