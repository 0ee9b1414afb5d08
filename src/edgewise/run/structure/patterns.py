"""Whether a text matches a regular expression, in linear time and by the grammar's own rules.

Python's engine backtracks: a pattern like ``(a+)+$`` takes it minutes, and its dialect is not the
grammar's. So a text is checked by the same engine that constrained it.
"""

from __future__ import annotations

import json

from edgewise.run.structure.ecma import translated
from edgewise.run.structure.library import (
    REGEX_CHARACTERS_MAX,
    GrammarError,
    accepts,
    byte_tokenizer,
    compiled,
    require_length,
)
from edgewise.run.structure.library import json_grammar as _grammar

__all__ = ["matches_format", "matches_pattern", "require_pattern"]

# To check any text, every spelling has to be one of the grammar's.
_ALL_SPELLINGS = {"whitespace_flexible": False}


def _quoted(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f").encode()


def require_pattern(pattern: str) -> None:
    """Refuse a pattern that the engine does not take.

    Raises:
        GrammarError: the pattern is malformed, or has look-around or back references.
        ResourceError: it is too long.
    """
    require_length(pattern, REGEX_CHARACTERS_MAX)
    schema = {"type": "string", "pattern": translated(pattern)}
    compiled(byte_tokenizer(), _grammar(schema, **_ALL_SPELLINGS))


def matches_pattern(pattern: str, text: str) -> bool:
    """Whether a text holds a match of a sound pattern, as the keyword ``pattern`` means it."""
    return _matches({"type": "string", "pattern": translated(pattern)}, text)


def matches_format(name: str, text: str) -> bool:
    """Whether a text has a format that the library knows."""
    return _matches({"type": "string", "format": name}, text)


def _matches(schema: dict[str, str], text: str) -> bool:
    try:
        return accepts(_grammar(schema, **_ALL_SPELLINGS), _quoted(text))
    except GrammarError:  # a pattern that nothing matches is one that it refuses
        return False
