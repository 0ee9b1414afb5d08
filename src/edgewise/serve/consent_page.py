"""The question of consent as a web page: plain HTML, no script, nothing from elsewhere.

Every text that somebody else wrote is made harmless and escaped, and its direction is isolated:
it can neither act on the page nor turn the words around it.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
from collections.abc import Iterable
from html import escape

from edgewise.core.shown import plain
from edgewise.route.consent import Choice, ConsentPrompt
from edgewise.route.destinations import Price
from edgewise.serve.problems import ProblemError
from edgewise.serve.questions import Question

__all__ = ["PAGE_HEADERS", "ask_page", "done_page", "problem_page"]

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --quiet: #666; --paper: #f6f6f4; }
@media (prefers-color-scheme: dark) { :root { --quiet: #aaa; --paper: #222; } }
* { box-sizing: border-box; }
body { margin: 0; font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 42rem; margin: 0 auto; padding: 2rem 1.25rem 3rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .75rem; }
h2 { font-size: 1rem; margin: 1.75rem 0 .5rem; }
p { margin: 0 0 .75rem; }
ul { margin: 0; padding-left: 1.2rem; }
dl { display: grid; grid-template-columns: minmax(7rem, 10rem) 1fr; gap: .4rem 1rem; margin: 0;
  padding: .9rem 1rem; background: var(--paper); border-radius: .5rem; }
dt { color: var(--quiet); }
dd { margin: 0; }
details { margin-top: 1rem; }
summary { cursor: pointer; }
details ul { margin-top: .5rem; }
form { margin-top: 1.75rem; border-top: 1px solid var(--line); padding-top: 1.25rem; }
fieldset { border: 0; margin: 0; padding: 0; }
legend { font-weight: 600; padding: 0; margin-bottom: .5rem; }
.way { display: flex; flex-wrap: wrap; gap: .4rem 1rem; align-items: center; padding: .5rem 0; }
.way > span { flex: 1 1 14rem; }
button { font: inherit; min-width: 11rem; padding: .55rem 1rem; border: 1px solid currentColor;
  border-radius: .4rem; background: transparent; color: inherit; cursor: pointer; }
button:hover, button:focus-visible { background: var(--paper); }
:focus-visible { outline: 3px solid #3b7ddd; outline-offset: 2px; }
input { font: inherit; padding: .3rem .4rem; }
.quiet, small { color: var(--quiet); font-size: .9rem; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; gap: .1rem; } dd { margin: 0 0 .6rem; }
  button { width: 100%; } }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_CLOSED = (
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "sandbox allow-forms allow-same-origin"
)
PAGE_HEADERS = (
    (
        "content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; {_CLOSED}",
    ),
    ("x-frame-options", "DENY"),
    # A form sends its origin only where the page may tell it.
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)


def ask_page(question: Question) -> str:
    """Return the page that puts a question."""
    prompt = question.prompt
    to = prompt.recipient
    return _page(
        "May this leave your device?",
        f"<p>The feature {_name(prompt.scope.feature)} asks to send a request to "
        f"<strong>{_name(to.name)}</strong>. "
        "It was not answered on this device. Nothing has been sent.</p>",
        "<h2>Why, and what you get</h2>",
        _list(
            ("Why not here", [_prose(reason) for reason in prompt.reasons]),
            ("What you get", [_prose(prompt.benefit) if prompt.benefit.strip() else _NOBODY]),
        ),
        "<h2>What would be sent</h2>",
        _list(
            ("These fields", [f"{_name(f.name)}, {_count(f.characters)}" for f in prompt.sent]),
            ("Kind of data", [_name(prompt.scope.data_class)]),
            ("Replaced first", [_replaced(prompt)]),
            ("Stays here", [_name(n) for n in prompt.withheld] or ["everything else"]),
            ("With a date", [f"{_name(n)} of later requests as well" for n in prompt.later]),
        ),
        _caveats(prompt.caveats),
        "<h2>Where it would go</h2>",
        _list(
            ("To", [f"{_name(to.name)} at {_name(to.origin)}"]),
            ("Model", [_name(to.model)]),
            ("Purpose", [_prose(text) for text in _purposes(prompt)]),
            ("Region", [f"{_prose(to.region)}, as declared" if to.region else _NOBODY]),
            ("Kept for", [_retention(to.retention_days)]),
            ("Basis", [escape(str(to.basis))]),
            ("Price", [] if to.price is None else [_price(to.price)]),
        ),
        _form(question),
    )


def done_page(question: Question, choice: Choice, until: dt.datetime | None, decision: str) -> str:
    """Return the page that says what was recorded."""
    to = _name(question.prompt.recipient.name)
    if choice is Choice.NO:
        title, told = "You said no", f"Nothing is sent to {to} for this, now or later."
    elif until is None:
        title, told = "You agreed, once", f"The next such request may be sent to {to}, one time."
    else:
        title = "You agreed until a date"
        told = f"Every such request may be sent to {to} until {_moment(until)}."
    return _page(
        title,
        f"<p>{told}</p><p>Go back to the application; you can close this page.</p>",
        '<p class="quiet">This is decision '
        f"<code>{escape(decision)}</code>. To take it back: "
        f"<code>edgewise consent revoke {escape(decision)}</code></p>",
    )


def problem_page(problem: ProblemError) -> str:
    """Return the page for an answer that was not taken, or a question that is not there."""
    error = problem.error
    hint = f"<p>{_prose(error.hint)}</p>" if error.hint else ""
    return _page(
        "This was not done",
        f"<p>{_prose(error.message)}</p>{hint}",
        f'<p class="quiet">{escape(error.code)}</p>',
    )


_NOBODY = "nobody declared it"


def _form(question: Question) -> str:
    prompt = question.prompt
    # "No" comes first: it is what the return key presses in a field.
    ways = [
        _way("no", "No", "Nothing is sent, now or later, until you take it back."),
        _way("once", "Yes, this one time", "For the next such request, and no other."),
    ]
    if prompt.until_at_most is not None:
        latest = prompt.until_at_most.astimezone().date()
        today = dt.datetime.now().astimezone().date()
        label = (
            '<label>For every such request, until the end of <input type="date" name="until" '
            f'min="{today}" max="{latest}" value="{min(latest, today)}"></label>'
        )
        ways.append(_way("until", "Yes, until this day", label))
    return (
        f'<form method="post" action="{escape(question.id)}" autocomplete="off">'
        f'<input type="hidden" name="token" value="{escape(question.form_token)}">'
        f"<fieldset><legend>Your answer</legend>{''.join(ways)}</fieldset></form>"
        f'<p class="quiet">This question can be answered until {_moment(question.expires_at)}.</p>'
    )


def _way(value: str, label: str, told: str) -> str:
    return (
        f'<div class="way"><button name="choice" value="{value}">{label}</button>'
        f"<span>{told}</span></div>"
    )


def _page(title: str, *parts: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="robots" content="noindex"><title>{title}</title><style>{_STYLE}</style>'
        f"</head><body><main><h1>{title}</h1>{''.join(parts)}</main></body></html>"
    )


def _list(*rows: tuple[str, list[str]]) -> str:
    shown = (f"<dt>{label}</dt><dd>{_several(texts)}</dd>" for label, texts in rows if texts)
    return f"<dl>{''.join(shown)}</dl>"


def _several(texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    return f"<ul>{''.join(f'<li>{text}</li>' for text in texts)}</ul>"


def _caveats(caveats: Iterable[str]) -> str:
    items = "".join(f"<li>{_prose(text)}</li>" for text in caveats)
    if not items:
        return ""
    return (
        "<details><summary>What finding personal details cannot guarantee</summary>"
        f"<ul>{items}</ul></details>"
    )


def _purposes(prompt: ConsentPrompt) -> list[str]:
    own = prompt.recipient.purpose
    return [prompt.scope.purpose, *([own] if own not in {"", prompt.scope.purpose} else [])]


def _replaced(prompt: ConsentPrompt) -> str:
    if not prompt.replaced:
        return "nothing was found to replace"
    kinds = ", ".join(f"{escape(one.kind)} ({one.count})" for one in prompt.replaced)
    return f"{kinds}. Placeholders are sent, and put back on this device."


def _retention(days: int | None) -> str:
    if days is None:
        return "nobody declared how long"
    return "not kept, as declared" if days == 0 else f"{days} days, as declared"


def _price(price: Price) -> str:
    unit = _name(price.currency)
    return (
        f"{price.input_per_million:g} {unit} per million tokens sent, "
        f"{price.output_per_million:g} per million received, as declared"
    )


def _count(characters: int) -> str:
    return f"{characters:,} character{'' if characters == 1 else 's'}"


def _moment(when: dt.datetime) -> str:
    local = when.astimezone()
    shown = f"{local:%Y-%m-%d %H:%M} {escape(str(local.tzname()))}"
    return f'<time datetime="{local.isoformat()}">{shown}</time>'


def _name(text: str) -> str:
    return f"<bdi>{escape(plain(text))}</bdi>"


def _prose(text: str) -> str:
    return f"<bdi>{escape(plain(text, prose=True))}</bdi>"
