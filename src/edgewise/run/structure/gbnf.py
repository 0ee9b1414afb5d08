"""GBNF, llama.cpp's notation, as a grammar of the library.

Where no rule refers back to itself the whole is one regular expression, which says exactly the
same. Elsewhere every part that is regular becomes one terminal, and a terminal takes as much as
it can, as in Lark: ``[a-z]+ "end"`` inside of a recursive rule never gets to its ``end``. That
allows less than GBNF does, never more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from edgewise.run.structure.library import (
    REGEX_CHARACTERS_MAX,
    malformed,
    too_large,
    unsupported,
)

__all__ = ["to_grammar"]

_NESTING_MAX = 60
_RULES_MAX = 4096
_SPACES = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACES_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_REPEAT = re.compile(r"[*+?]|\{[ \t]*(\d+)[ \t]*(?:(,)[ \t]*(\d*)[ \t]*)?\}")
_ESCAPE = re.compile(r"\\(?:([nrt\"\\\[\]])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class _Chars:
    """A regular expression of the library's."""

    regex: str


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Expression, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    options: tuple[_Expression, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    inner: _Expression
    times: str


_Expression: TypeAlias = "_Chars | _Rule | _Sequence | _Choice | _Repeat"


class _Reader:
    """Reads the text of a grammar into expressions."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.rules: dict[str, _Expression] = {}

    def read(self) -> dict[str, _Expression]:
        self._skip(lines=True)
        while self._at < len(self._text):
            name = self._take(_NAME, "a rule's name")
            self._skip()
            if not self._text.startswith("::=", self._at):
                raise self._wrong("::=")
            self._at += 3
            self._skip(lines=True)
            if name in self.rules or len(self.rules) >= _RULES_MAX:
                raise malformed(f"the rule {name!r} is there twice, or there are too many")
            self.rules[name] = self._choice(0)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._wrong("the end of a rule")
            self._skip(lines=True)
        return self.rules

    def _choice(self, level: int) -> _Expression:
        if level > _NESTING_MAX:
            raise too_large(f"more than {_NESTING_MAX} groups in each other")
        options = [self._sequence(level)]
        while self._next() == "|":
            self._at += 1
            self._skip(lines=True)
            options.append(self._sequence(level))
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self, level: int) -> _Expression:
        parts: list[_Expression] = []
        while True:
            self._skip(lines=level > 0)
            one = self._next()
            if one == '"':
                parts.append(self._literal())
            elif one == "[":
                parts.append(self._characters())
            elif one == ".":
                self._at += 1
                parts.append(_Chars("(?s:.)"))
            elif one == "(":
                parts.append(self._group(level))
            elif _NAME.match(one):
                parts.append(_Rule(self._take(_NAME, "a name")))
            elif one and one in "<!":
                raise unsupported(
                    f"the grammar names a token at {self._at}",
                    hint="spell its text, or leave it out",
                    keyword=one,
                )
            else:
                return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))
            self._repeats(parts, level)

    def _group(self, level: int) -> _Expression:
        self._at += 1
        self._skip(lines=True)
        made = self._choice(level + 1)
        self._skip(lines=True)
        if self._next() != ")":
            raise self._wrong(")")
        self._at += 1
        return made

    def _repeats(self, parts: list[_Expression], level: int) -> None:
        self._skip(lines=level > 0)
        found = _REPEAT.match(self._text, self._at)
        if found is None:
            return
        self._at = found.end()
        least, comma, most = found.groups()
        times = found[0]
        if least is not None:
            times = f"{{{int(least)}{',' if comma else ''}{int(most) if most else ''}}}"
            if most and int(most) < int(least):
                raise malformed(f"a part is to repeat {found[0]} times")
        parts[-1] = _Repeat(parts[-1], times)
        if _REPEAT.match(self._text, self._at):
            raise self._wrong("one repetition, not two")

    def _literal(self) -> _Expression:
        self._at += 1
        spelled = []
        while (one := self._next()) != '"':
            if not one:
                raise self._wrong('"')
            spelled.append(re_quoted(self._character()))
        self._at += 1
        return _Chars("".join(spelled))

    def _characters(self) -> _Expression:
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        ranges = []
        while (one := self._next()) != "]":
            if not one:
                raise self._wrong("]")
            first = last = self._character()
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._character()
            if last < first:
                raise self._wrong("a range from low to high")
            ranges.append(f"\\x{{{ord(first):x}}}-\\x{{{ord(last):x}}}")
        self._at += 1
        if not ranges:
            raise self._wrong("a character")
        return _Chars(f"[{'^' if negated else ''}{''.join(ranges)}]")

    def _character(self) -> str:
        if self._next() != "\\":
            one = self._next()
            if not one:
                raise self._wrong("a character")
            self._at += 1
            return one
        found = _ESCAPE.match(self._text, self._at)
        if found is None:
            raise self._wrong("an escape that there is")
        self._at = found.end()
        if found[1]:
            return _NAMED.get(found[1], found[1])
        code = int(found[2] or found[3] or found[4], 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise self._wrong("a character")
        return chr(code)

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, *, lines: bool = False) -> None:
        found = (_SPACES_AND_LINES if lines else _SPACES).match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _take(self, what: re.Pattern[str], called: str) -> str:
        found = what.match(self._text, self._at)
        if found is None:
            raise self._wrong(called)
        self._at = found.end()
        return found[0]

    def _wrong(self, wanted: str) -> Exception:
        line = self._text.count("\n", 0, self._at) + 1
        return malformed(f"line {line} of its grammar needs {wanted}")


def re_quoted(text: str) -> str:
    """Return a regular expression for exactly this text."""
    return "".join(
        one if one.isascii() and one.isalnum() else f"\\x{{{ord(one):x}}}" for one in text
    )


class _Writer:
    """Writes expressions as one regular expression, or as rules and terminals."""

    def __init__(self, rules: dict[str, _Expression]) -> None:
        self._rules = rules
        self._regular: dict[str, str] = {}
        self._names = {name: f"r{place}" for place, name in enumerate(rules)}
        self._terminals: dict[str, str] = {}

    def write(self) -> str:
        self._find_regular()
        if "root" in self._regular:
            regex = self._regular["root"]
            return f"start: T\nT: /{regex}/\n" if regex else 'start: ""\n'
        lines = [f"start: {self._names['root']}"]
        for name, expression in self._rules.items():
            if name not in self._regular:
                lines.append(f"{self._names[name]}: {self._rule(expression)}")
        lines += [f"{name}: /{regex}/" for regex, name in self._terminals.items()]
        return "\n".join(lines) + "\n"

    def _find_regular(self) -> None:
        """Find the rules that are regular, from those that refer to none upwards."""
        waits_for = {name: _named(expression) for name, expression in self._rules.items()}
        waited_by: dict[str, list[str]] = {}
        for name, others in waits_for.items():
            for other in others:
                waited_by.setdefault(other, []).append(name)
        ready = [name for name, others in waits_for.items() if not others]
        while ready:
            name = ready.pop()
            regex = self._regex(self._rules[name])
            if regex is None:
                continue
            self._regular[name] = regex
            for other in waited_by.get(name, ()):
                waits_for[other].discard(name)
                if not waits_for[other]:
                    ready.append(other)

    def _regex(self, one: _Expression) -> str | None:
        """Return a regular expression, or ``None`` where a rule that is not regular is in it."""
        if isinstance(one, _Chars):
            return one.regex
        if isinstance(one, _Rule):
            return self._regular.get(one.name)  # a choice in it has brackets of its own
        if isinstance(one, _Repeat):
            inner = self._regex(one.inner)
            return None if inner is None else f"(?:{inner}){one.times}"
        parts = [self._regex(each) for each in _children(one)]
        if any(part is None for part in parts):
            return None
        known = [part for part in parts if part is not None]
        if sum(map(len, known)) > 4 * REGEX_CHARACTERS_MAX:
            raise too_large("its rules, each written out where it is used, take too much")
        return f"(?:{'|'.join(known)})" if isinstance(one, _Choice) else "".join(known)

    def _rule(self, one: _Expression) -> str:
        regex = self._regex(one)
        if regex is not None:
            return self._terminals.setdefault(regex, f"T{len(self._terminals)}") if regex else '""'
        if isinstance(one, _Rule):
            return self._names[one.name]
        if isinstance(one, _Repeat):
            return f"({self._rule(one.inner)}){one.times}"
        if isinstance(one, _Choice):
            return "(" + " | ".join(map(self._rule, one.options)) + ")"
        return " ".join(self._joined(_children(one)))

    def _joined(self, parts: tuple[_Expression, ...]) -> list[str]:
        """Return a sequence's parts, neighbours that are regular as one terminal."""
        written: list[str] = []
        run: list[_Expression] = []
        for part in (*parts, None):
            if part is not None and self._regex(part) is not None:
                run.append(part)
                continue
            if run:
                written.append(self._rule(_Sequence(tuple(run))))
                run = []
            if part is not None:
                written.append(self._rule(part))
        return written


def _children(one: _Expression) -> tuple[_Expression, ...]:
    if isinstance(one, _Sequence):
        return one.parts
    return one.options if isinstance(one, _Choice) else ()


def _named(one: _Expression) -> set[str]:
    if isinstance(one, _Rule):
        return {one.name}
    if isinstance(one, _Repeat):
        return _named(one.inner)
    return set().union(*map(_named, _children(one))) if _children(one) else set()


def to_grammar(source: str) -> str:
    """Return a GBNF grammar in the library's dialect of Lark.

    Raises:
        InputError: it is malformed, or names a rule that is not there.
        UnsupportedError: it names tokens instead of text.
        ResourceError: it is nested too deeply, or too large.
    """
    rules = _Reader(source).read()
    missing = {"root"}.union(*map(_named, rules.values())) - rules.keys()
    if missing:
        raise malformed(f"its grammar has no rule {min(missing)!r}")
    return _Writer(rules).write()
