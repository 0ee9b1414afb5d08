"""From a structure to a compiled grammar, with the account of what it enforces."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from edgewise.core.structure import Structure, StructureKind
from edgewise.errors import EdgewiseError
from edgewise.run.structure import gbnf, lark
from edgewise.run.structure.document import read
from edgewise.run.structure.library import (
    GRAMMAR_CHARACTERS_MAX,
    REGEX_CHARACTERS_MAX,
    GrammarError,
    byte_tokenizer,
    compiled,
    is_beyond_limits,
    json_grammar,
    library,
    malformed,
    require_length,
    too_large,
    unsupported,
)
from edgewise.run.structure.parts import Relaxation, Translation
from edgewise.run.structure.schema import translate

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Audit", "Prepared", "prepare"]

_REGEX_FEATURES = ("look-around", "lookaround", "backreference")

# What the library says, and what may then be left to the check. Wording of llguidance 1.9.1; a
# wording that is not found here ends in a refusal.
_RELAXED_BY = (
    ("oneOf constraints are not supported", Relaxation.ONE_OF),
    ("patternProperty regexes", Relaxation.PATTERN_PROPERTIES),
    ("min/maxProperties only supported", Relaxation.PROPERTY_COUNTS),
    ("Unable to determine if regex is empty", Relaxation.LENGTHS),
    ("circular references with sibling keys", Relaxation.BESIDE_REFERENCES),
)


class Audit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of a structure's parts.

    Attributes:
        enforced: What the grammar enforces while the answer is made: JSON pointers of keywords,
            or the structure's kind where it is no schema.
        checked: What the finished answer is checked against instead. An answer that fails is a
            failure, never handed on as valid.
    """

    enforced: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A structure that can be enforced.

    Attributes:
        audit: What is enforced, and what is checked.
        grammar: The library's grammar.
    """

    audit: Audit
    grammar: str


def prepare(
    structure: Structure, tokenizer: LLTokenizer | None = None, *, own: bool = False
) -> tuple[Prepared, LLMatcher]:
    """Return a structure's grammar, and a matcher at its start.

    Args:
        structure: What the answer has to look like.
        tokenizer: The vocabulary to compile it for; bytes by default.
        own: Whether Edgewise wrote the grammar itself; then it may name control tokens and hold
            schemas, which a caller's may not.

    Raises:
        InputError: the structure is malformed, or no text fits it.
        UnsupportedError: a part of it can be neither enforced nor checked, or a library that it
            needs is missing.
        ResourceError: it is too large.
    """
    tokenizer = tokenizer or byte_tokenizer()
    if structure.kind in {StructureKind.JSON_SCHEMA, StructureKind.JSON}:
        prepared, native = _schema(structure, tokenizer)
    else:
        audit = Audit(enforced=(structure.kind.value,))
        written = _as_lark(structure.source) if own else _WRITERS[structure.kind](structure)
        prepared = Prepared(audit, written)
        try:
            native = compiled(tokenizer, prepared.grammar)
        except GrammarError as error:
            raise _refusal(error, structure) from error
    _require_a_text(native)
    return prepared, native


def _schema(structure: Structure, tokenizer: LLTokenizer) -> tuple[Prepared, LLMatcher]:
    document = read(structure.source or '{"type":"object"}')
    relaxed: frozenset[Relaxation] = frozenset()
    while True:
        translation = translate(document, relaxed)
        if translation.grammar is False:
            raise malformed("no JSON value is valid")
        grammar = json_grammar({} if translation.grammar is True else translation.grammar)
        try:
            native = compiled(tokenizer, grammar)
        except GrammarError as error:
            more = {name for words, name in _RELAXED_BY if words in error.message} - relaxed
            if not more:
                raise _refusal(error, structure) from error
            relaxed |= more
        else:
            return Prepared(_audit(translation), grammar), native


def _audit(translation: Translation) -> Audit:
    return Audit(enforced=translation.enforced, checked=translation.checked)


def _regex(structure: Structure) -> str:
    """The expression is for the whole answer, so anchors around it say nothing new."""
    require_length(structure.source, REGEX_CHARACTERS_MAX)
    source = structure.source.removeprefix("^")
    if source.endswith("$") and (len(source) - len(source[:-1].rstrip("\\"))) % 2:
        source = source[:-1]
    return str(library().LLMatcher.grammar_from_regex(source))


def _choice(structure: Structure) -> str:
    options = "|".join(gbnf.re_quoted(one) for one in structure.choices)
    return str(library().LLMatcher.grammar_from_regex(options))


def _lark(structure: Structure) -> str:
    require_length(structure.source, GRAMMAR_CHARACTERS_MAX)
    lark.require_plain(structure.source)
    return _as_lark(structure.source)


def _gbnf(structure: Structure) -> str:
    require_length(structure.source, GRAMMAR_CHARACTERS_MAX)
    return _as_lark(gbnf.to_grammar(structure.source))


def _as_lark(text: str) -> str:
    """Return a grammar that cannot be taken for the library's own format, whatever is in it."""
    return json.dumps({"grammars": [{"lark_grammar": text}]})


_WRITERS: dict[StructureKind, Callable[[Structure], str]] = {
    StructureKind.REGEX: _regex,
    StructureKind.CHOICE: _choice,
    StructureKind.LARK: _lark,
    StructureKind.GBNF: _gbnf,
}


def _require_a_text(native: LLMatcher) -> None:
    """Refuse a grammar without a single text, as far as its first step shows.

    Raises:
        InputError: there is none.
        ResourceError: the step goes beyond the library's limits.
    """
    bits = native.compute_bitmask()
    if is_beyond_limits(native):
        raise too_large("its first step goes beyond the library's limits")
    if not native.is_accepting() and (native.is_stopped() or not any(bits)):
        raise malformed("no text fits it")


def _refusal(error: GrammarError, structure: Structure) -> EdgewiseError:
    if "nsatisfiable" in error.message:
        return malformed(f"no JSON value is valid: {error.message}")
    lowered = error.message.lower()
    for feature in _REGEX_FEATURES:
        if feature in lowered:
            return unsupported(f"its pattern has a {feature}", hint="leave it out", keyword=feature)
    if error.is_limit:
        return too_large(error.message)
    if structure.kind is StructureKind.JSON_SCHEMA:
        return unsupported(error.message, hint="write that part in another way", keyword="")
    return malformed(error.message)
