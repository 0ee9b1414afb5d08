"""Detector of keys, tokens and passwords: by the forms their makers gave them, and by words.

The rules are ours: decision 0026 says why no library is used. Each rule begins with a literal
text, which is sought first, so that a text without it costs next to nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgewise.route.minimise.folding import Folded, joins
from edgewise.route.minimise.spans import Confidence, Kind, Span

__all__ = ["Secrets", "names_secret"]


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    prefixes: tuple[str, ...]
    rest: re.Pattern[str]
    check: Callable[[str], bool] | None = None


def _rule(name: str, prefixes: str, rest: str, check: Callable[[str], bool] | None = None) -> _Rule:
    return _Rule(name, tuple(prefixes.split()), re.compile(rest, re.ASCII), check)


def _is_jwt(token: str) -> bool:
    head = token.split(".", 1)[0]
    try:
        parsed = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return False
    return isinstance(parsed, dict)


def _mixed(token: str) -> bool:
    """Return whether a token has digits and letters, as no word has."""
    return any(c.isdigit() for c in token) and any(c.isalpha() for c in token)


_W = r"[A-Za-z0-9_\-]"
_RULES = (
    _rule("AWS key", "AKIA ASIA ABIA ACCA", r"[A-Z2-7]{16}(?![A-Za-z0-9])"),
    _rule("GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9]{36,255}"),
    _rule("GitHub token", "github_pat_", r"[A-Za-z0-9_]{22,255}"),
    _rule(
        "GitLab token",
        "glpat- gldt- glrt- glcbt-",
        rf"{_W}{{20,255}}(?:\.[A-Za-z0-9.]{{1,32}})?",
    ),
    _rule("API key", "sk-", rf"{_W}{{20,512}}", _mixed),
    _rule(
        "Slack token",
        "xoxb- xoxp- xoxa- xoxr- xoxs- xoxe- xoxe. xoxo- xapp-",
        r"[A-Za-z0-9.\-]{10,512}",
    ),
    _rule("Slack webhook", "https://hooks.slack.com/", r"[A-Za-z0-9/_]{20,200}"),
    _rule("Stripe key", "sk_live_ sk_test_ rk_live_ rk_test_ whsec_", r"[A-Za-z0-9]{16,255}"),
    _rule("Google key", "AIza", rf"{_W}{{35}}(?!{_W})"),
    _rule("Google token", "ya29. GOCSPX-", rf"{_W}{{20,1024}}"),
    _rule("Hugging Face token", "hf_", r"[A-Za-z0-9]{30,64}", _mixed),
    _rule("npm token", "npm_", r"[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    _rule("PyPI token", "pypi-", rf"{_W}{{50,1024}}"),
    _rule("SendGrid key", "SG.", rf"{_W}{{16,64}}\.{_W}{{16,128}}"),
    _rule("DigitalOcean token", "dop_v1_ doo_v1_ dor_v1_", r"[a-f0-9]{64}"),
    _rule("Shopify token", "shpat_ shpca_ shppa_ shpss_", r"[a-fA-F0-9]{32}"),
    _rule("Databricks token", "dapi", r"[a-f0-9]{32}(?:-\d)?(?![A-Za-z0-9])"),
    _rule("Docker token", "dckr_pat_", rf"{_W}{{20,64}}"),
    _rule("Grafana token", "glsa_ glc_", rf"{_W}{{32,255}}", _mixed),
    _rule("Vault token", "hvs. hvb. hvr.", rf"{_W}{{20,255}}"),
    _rule("Linear key", "lin_api_", r"[A-Za-z0-9]{32,64}"),
    _rule("Atlassian token", "ATATT3", r"[A-Za-z0-9_\-=]{50,512}"),
    _rule("Groq, Perplexity and Replicate keys", "gsk_ pplx- r8_", r"[A-Za-z0-9]{32,64}", _mixed),
    _rule("age key", "AGE-SECRET-KEY-1", r"[0-9A-Z]{58}"),
    _rule("Azure key", "AccountKey= SharedAccessKey=", r"[A-Za-z0-9+/]{40,100}={0,2}"),
    _rule(
        "JSON web token",
        "eyJ",
        rf"{_W}{{8,1024}}\.{_W}{{2,16384}}(?:\.{_W}{{0,16384}}){{0,3}}",
        _is_jwt,
    ),
    _rule(
        "bearer token",
        "Bearer bearer BEARER Basic",
        r" {1,2}[A-Za-z0-9._~+/\-]{16,4096}={0,2}",
        _mixed,
    ),
)
_PEM = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,80}PRIVATE KEY(?: BLOCK)?-----")
_PEM_MAX = 1 << 15  # a key of 16,384 bits has 12,700 characters
_PEM_BODY = re.compile(r"(?:\s|\\n|\\r|[A-Za-z0-9+/=:,\-])*")

# Words whose value is a password whatever it looks like, and words whose value must look like one.
_SAID = (
    r"pass(?:word|wd|phrase|code|wort)?|pwd|pw|kennwort|contrase(?:n|\u00f1)a|clave|mot ?de ?passe"
    r"|mdp|parola|wachtwoord|l(?:o|\u00f6)senord|has(?:l|\u0142)o|senha|palavra-passe|salasana"
    r"|adgangskode|passord|heslo|jelsz(?:o|\u00f3)|\u043f\u0430\u0440\u043e\u043b\u044c"
    r"|\u5bc6\u7801|\u5bc6\u78bc|\u30d1\u30b9\u30ef\u30fc\u30c9|pin|puk"
)
_DRAWN = (
    r"secret|token|api[_\- ]?key|access[_\- ]?key|private[_\- ]?key|auth(?:orization)?"
    r"|client[_\- ]?secret|secret[_\- ]?key|credentials?|signature|sig|webhook|session[_\- ]?id"
    r"|schl(?:u|\u00fc)ssel|cl(?:e|\u00e9)(?: api)?|llave|chiave(?: api)?"
    r"|encryption[_\- ]?key|signing[_\- ]?key|key|code"
)
_SIGN = (
    r"[\"'`*]{0,3}(?:[ \t]{0,3}(?:=>|:=|={1,2}|[:\uff1a])[ \t]{0,3}"
    r"|[ \t]{1,2}(?:is|ist|lautet|est|es|\u00e8|\u00e9|er|\u00e4r|on|to|jest)[ \t]{1,2}:?[ \t]?"
    r"|[ \t]{1,2}(?=\d{4,8}\b))"  # as in "PIN 1234"
)
_VALUE = (
    r"(?:\"(?P<double>[^\"\n]{1,512})\"|'(?P<single>[^'\n]{1,512})'|`(?P<code>[^`\n]{1,512})`"
    r"|(?P<plain>[^\s\"'`<>]{1,512}))"
)
_ASSIGNMENT = re.compile(
    rf"(?:(?P<said>{_SAID})|(?P<drawn>{_DRAWN}))(?![A-Za-z])(?:[_\-][A-Za-z0-9]{{1,20}})?"
    rf"{_SIGN}{_VALUE}",
    re.IGNORECASE,
)
_PRETENDED = re.compile(
    r"[<\[{(%].*[>\]})%]|\$.*|[*\u2022x.#_\-]+|\.\.\.|\u2026|your[_\- ].*|example.*|changeme"
    r"|none|null|nil|true|false|undefined|string|str|int|required|optional|todo|n/?a"
    r"|(?:os|process|env|settings|config|self|secrets?)[.\[(].*|[A-Za-z_.]+\(.*"
    r"|redacted|hidden|secret|password",
    re.IGNORECASE,
)
_NAME = re.compile(
    rf"(?:[A-Za-z0-9]{{1,20}}[_\-])?(?P<said>{_SAID})(?:[_\-][A-Za-z0-9]{{1,20}})?",
    re.IGNORECASE,
)
_EVERYDAY = {"pin", "puk", "pass", "clave", "parola"}  # which say other things, too
_TRAILING = ".,;:!?)]}*&"


class Secrets:
    """Private keys, keys and tokens of known makers, and what follows ``password`` and such."""

    name = "secrets"
    kinds = (Kind.SECRET,)
    limits = (
        "a password or key that has no known form is found only right after a word such as "
        "'password' or 'token'"
    )

    def find(self, text: Folded) -> Iterator[Span]:
        """Yield the secrets of a text."""
        yield from self._private_keys(text)
        for rule in _RULES:
            for prefix in rule.prefixes:
                yield from self._by_rule(text, rule, prefix)
        yield from self._assignments(text)

    @staticmethod
    def _span(text: Folded, start: int, end: int, confidence: Confidence, by: str) -> Span:
        written = text.text[start:end]
        return text.span(
            start, end, Kind.SECRET, confidence=confidence, checked_by=by, identity=written
        )

    def _by_rule(self, text: Folded, rule: _Rule, prefix: str) -> Iterator[Span]:
        at = text.text.find(prefix)
        while at >= 0:
            step = at + len(prefix)
            if not (at and joins(text.text[at - 1])):
                match = rule.rest.match(text.text, step)
                if match and (rule.check is None or rule.check(text.text[at : match.end()])):
                    end = match.end()
                    while text.text[end - 1] in ".-":
                        end -= 1
                    yield self._span(text, at, end, Confidence.CERTAIN, f"form: {rule.name}")
                    step = end
            at = text.text.find(prefix, step)

    def _private_keys(self, text: Folded) -> Iterator[Span]:
        at = 0
        while (begin := _PEM.search(text.text, at)) is not None:
            end = _PEM_END.search(text.text, begin.end(), begin.end() + _PEM_MAX)
            if end is not None:
                at = end.end()
            else:  # it was cut off: all that can belong to it
                body = _PEM_BODY.match(text.text, begin.end())
                assert body is not None
                at = max(begin.end(), body.end())
            yield self._span(text, begin.start(), at, Confidence.CERTAIN, "form: private key")

    def _assignments(self, text: Folded) -> Iterator[Span]:
        for match in _ASSIGNMENT.finditer(text.text):
            start, end, quoted = _value(match)
            if _is_secret(match, text.text[start:end], quoted=quoted):
                yield self._span(text, start, end, Confidence.POSSIBLE, "words before it")


def names_secret(name: str) -> bool:
    """Return whether a field or key of this name holds a secret, whatever its value looks like."""
    match = _NAME.fullmatch(name)
    return match is not None and match["said"].lower() not in _EVERYDAY


def _is_secret(match: re.Match[str], value: str, *, quoted: bool) -> bool:
    if _PRETENDED.fullmatch(value):
        return False
    word = match["said"] or match["drawn"]
    if len(word) < 5 and match.string[max(0, match.start() - 1) : match.start()].isalpha():
        return False  # such as "bypass: " and "article: "
    if match["said"] is None:
        return _looks_drawn(value)
    spoken = not any(sign in match[0] for sign in "=:\uff1a")
    if word.lower() in _EVERYDAY:
        said = not spoken or word.lower() in {"pin", "puk"}
        return said and len(value) >= 4 and any(c.isdigit() for c in value)
    return len(value) >= 3 and not (spoken and value.isalpha() and not quoted)


def _value(match: re.Match[str]) -> tuple[int, int, bool]:
    for name in ("double", "single", "code"):
        if match[name] is not None:
            return match.start(name), match.end(name), True
    start, end = match.span("plain")
    text = match["plain"]
    kept = text.rstrip(_TRAILING)
    if "&" in kept and "=" in kept.partition("&")[2]:  # the next parameter of a query
        kept = kept.partition("&")[0]
    return start, end - (len(text) - len(kept)) if kept else end, False


def _looks_drawn(value: str) -> bool:
    """Return whether a value looks drawn at random: long, mixed, and with much in each letter.

    The bound of 3 bits a character (Shannon entropy of the characters' own frequencies) parts
    words and numbers from keys of 16 characters and more.
    """
    if len(value) < 10 or not _mixed(value) or " " in value or "://" in value:
        return False
    size = len(value)
    entropy = -sum(n / size * math.log2(n / size) for n in Counter(value).values())
    return entropy >= 3.0
