"""What of the library's dialect of Lark is taken from a caller.

Its grammars may hold JSON schemas, options, control tokens and limits of their own. Through those
a schema would pass that nobody audited, or a control token that no text may hold, so they are
refused by name.
"""

from __future__ import annotations

import re

from edgewise.run.structure.library import (
    REGEX_CHARACTERS_MAX,
    malformed,
    require_length,
    too_large,
    unsupported,
)

__all__ = ["require_plain"]

_RULES_MAX = 4096

# What a name in a text, a pattern or a remark means nothing; they are skipped as wholes.
_SKIPPED = re.compile(
    r"""//[^\n]*|\#[^\n]*|"(?:[^"\\\n]|\\.)*"i?|/(?:[^/\\\n]|\\.)+/[imslux]*""", re.VERBOSE
)
_REFUSED = (
    (re.compile(r"%json\b"), "%json", "ask for the kind json-schema"),
    (re.compile(r"%lark\b"), "%lark", "write its rules into the grammar"),
    (re.compile(r"%llguidance\s*\{\s*\S*[^\s}]"), "%llguidance options", "leave the options out"),
    (re.compile(r"%(?:override|extend|declare)\b"), "a directive", "write the rule out"),
    (re.compile(r"<"), "a control token", "spell the text, or leave it out"),
    (re.compile(r"@"), "another grammar", "write its rules into the grammar"),
    (
        re.compile(r"\b(?:stop|max_tokens|temperature|stop_capture)\s*="),
        "a limit or a stop in a rule",
        "use the request's own limits",
    ),
)
_RULE = re.compile(r"^\s*[?!]?[A-Za-z_][\w-]*(?:\[[^\]]*\])?\s*:", re.MULTILINE)


def require_plain(source: str) -> None:
    """Refuse a grammar that says more than what a text looks like.

    Raises:
        InputError: it has no rule ``start``.
        UnsupportedError: it uses what is refused; the context names it.
        ResourceError: it has too many rules.
    """
    # A pattern may not begin where a text is open, so all are found in one pass from the left.
    bare = _SKIPPED.sub(_shortened, source)
    for pattern, name, hint in _REFUSED:
        if pattern.search(bare):
            raise unsupported(f"its grammar has {name}", hint=hint, keyword=name)
    rules = _RULE.findall(bare)
    if len(rules) > _RULES_MAX:
        raise too_large(f"more than {_RULES_MAX} rules")
    if not any(re.match(r"\s*[?!]?start\b", rule) for rule in rules):
        raise malformed("its grammar has no rule named start")


def _shortened(found: re.Match[str]) -> str:
    if found[0].startswith("/") and not found[0].startswith("//"):
        require_length(found[0], REGEX_CHARACTERS_MAX)
    return " "
