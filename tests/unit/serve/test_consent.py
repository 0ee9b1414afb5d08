"""Answers to questions, by an application and on the page: and by those who may not give them."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.unit.route.cloud.servers import Authority
from tests.unit.serve.routed import LETTER, Place, routed

from edgewise.core.request import Message, Request
from edgewise.route.consent import ConsentScope, Replacement, SentField, consent_prompt
from edgewise.route.destinations import Basis, Destination, Price
from edgewise.serve.consent_page import ask_page
from edgewise.serve.questions import Questions

TOKEN = "correct-horse-battery"
EVIL = "https://evil.example"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def place(tmp_path: Path, authority: Authority) -> Iterator[Place]:
    with routed(tmp_path / "home", authority) as found:
        yield found


def code(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def in_days(days: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(days=days)


# -- for applications


def test_decisions_are_listed_and_taken_back(place: Place) -> None:
    told = place.answer(place.question()["id"], "until", until=in_days(3).isoformat()).json()
    url = f"{place.served.url}/edgewise/v1/consent"
    (one,) = httpx.get(url).json()["data"]
    assert (one["id"], one["state"], one["once"]) == (told["decision"], "granted", False)
    assert one["scope"]["destination"] == "far"
    assert [place.chat().status_code for _ in range(2)] == [200, 200]
    gone = httpx.delete(f"{url}/{one['id']}")
    assert gone.json()["revoked"] == 1
    assert httpx.delete(f"{url}/{one['id']}").json()["revoked"] == 0
    assert code(httpx.delete(f"{url}/0123456789abcdef")) == (404, "consent-not-found")
    place.question()
    assert place.far.connections == 2


def test_a_question_is_answered_once(place: Place) -> None:
    name = place.question()["id"]
    assert place.answer(name).status_code == 200
    for choice in ("once", "no"):
        assert code(place.answer(name, choice)) == (410, "consent-question-closed")
    assert place.decisions() == [("granted", "api")]


@pytest.mark.parametrize("name", ["x", "..", "%00", "A" * 32, "a%2Fb", "\u202e"])
def test_a_made_up_name_is_refused(place: Place, name: str) -> None:
    reply = place.answer(name)
    assert reply.status_code in {400, 404, 405}, reply.text
    assert place.decisions() == []


def test_the_digest_of_a_question_is_not_its_name(place: Place) -> None:
    asked = place.question()
    prompt = place.world.hybrid.question(_letter())
    assert prompt is not None
    assert prompt.id != asked["id"]
    assert code(place.answer(prompt.id)) == (404, "consent-question-unknown")


def _letter() -> Request:
    return Request(
        messages=(Message(role="user", content=LETTER),), data_class="personal", max_tokens=50
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"choice": "always"}, "parameter-invalid"),
        ({}, "parameter-invalid"),
        ({"choice": "until"}, "consent-choice-invalid"),
        ({"choice": "once", "until": "2999-01-01T00:00:00Z"}, "consent-choice-invalid"),
        ({"choice": "until", "until": "2999-01-01T00:00:00Z"}, "consent-choice-invalid"),
        ({"choice": "until", "until": "2001-01-01T00:00:00Z"}, "consent-date-invalid"),
        ({"choice": "until", "until": "2999-01-01T00:00:00"}, "parameter-invalid"),
        ({"choice": "once", "prompt": {"scope": {}}}, "parameter-unknown"),
        ({"choice": "once", "scope": {"destination": "near"}}, "parameter-unknown"),
    ],
)
def test_an_answer_that_was_not_offered_records_nothing_and_leaves_it_open(
    place: Place, body: dict[str, Any], expected: str
) -> None:
    name = place.question()["id"]
    reply = httpx.post(f"{place.served.url}/edgewise/v1/consent/{name}", json=body)
    assert code(reply) == (400, expected)
    assert place.decisions() == []
    assert place.answer(name).status_code == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"choice": "until"}, "`until` needs a date, {latest} at most"),
        ({"choice": "until", "until": "2999-01-01T00:00:00Z"}, "which is {latest} at most"),
        ({"choice": "until", "until": "2026-12-05"}, "no moment with a time zone; {latest:.19}"),
        ({"choice": "once", "until": "2999-01-01T00:00:00Z"}, "not to `once`"),
    ],
)
def test_a_wrong_until_is_told_what_is_allowed(
    place: Place, body: dict[str, Any], says: str
) -> None:
    asked = place.question()
    latest = dt.datetime.fromisoformat(asked["until_at_most"]).isoformat()
    reply = httpx.post(f"{place.served.url}/edgewise/v1/consent/{asked['id']}", json=body)
    assert says.format(latest=latest) in reply.json()["error"]["message"]
    assert place.decisions() == []


def test_two_clients_have_questions_of_their_own(place: Place) -> None:
    one = place.question(user="one")["id"]
    other = place.question(user="other")["id"]
    listed = httpx.get(f"{place.served.url}/edgewise/v1/consent").text
    assert one not in listed
    assert other not in listed
    assert place.answer(one, "no").status_code == 200
    assert place.answer(other, "no").status_code == 200
    # The ledger has what was said last, and one decision in force.
    assert [state for state, _ in place.decisions()] == ["replaced", "denied"]


def test_of_answers_that_race_one_is_recorded(place: Place) -> None:
    name = place.question()["id"]
    together, replies = threading.Barrier(8), []

    def answer(choice: str) -> None:
        together.wait(10)
        replies.append(place.answer(name, choice))

    threads = [threading.Thread(target=answer, args=(c,)) for c in ("once", "no") * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {reply.status_code for reply in replies if reply.status_code != 200} <= {409, 410}
    assert sum(reply.status_code == 200 for reply in replies) == 1
    assert len(place.decisions()) == 1


def test_the_guards_of_the_api_hold_here(tmp_path: Path, authority: Authority) -> None:
    with routed(tmp_path / "home", authority, serve={"token": TOKEN}) as place:
        mine = {"authorization": f"Bearer {TOKEN}"}
        name = place.question(headers=mine)["id"]
        url = f"{place.served.url}/edgewise/v1/consent"
        assert code(place.answer(name)) == (401, "token-refused")
        assert code(httpx.get(url)) == (401, "token-refused")
        assert code(httpx.delete(f"{url}/x")) == (401, "token-refused")
        for headers in ({"origin": EVIL}, {"sec-fetch-site": "cross-site"}):
            assert code(place.answer(name, headers=mine | headers)) == (403, "origin-refused")
        rebound = place.answer(name, headers=mine | {"host": "evil.example"})
        assert code(rebound) == (403, "host-refused")
        large = b'{"choice": "once", "until": "' + b" " * (5 << 20)
        kind = {"content-type": "application/json"}
        reply = httpx.post(f"{url}/{name}", content=large, headers=mine | kind, timeout=30)
        assert code(reply) == (413, "body-too-large")
        assert code(httpx.post(f"{url}/{name}", data={"choice": "once"}, headers=mine)) == (
            415,
            "content-type-unsupported",
        )
        assert place.decisions() == []
        # A browser has no token; who knows the page's name was told it.
        assert place.page(name).status_code == 200
        assert place.answer(name, headers=mine).status_code == 200


# -- the page


def test_a_person_answers_on_the_page(place: Place) -> None:
    asked = place.question()
    page = place.page(asked["id"])
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    for rule in ("default-src 'none'", "frame-ancestors 'none'", "form-action 'self'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "same-origin"
    done = place.form(asked["id"], {"token": place.token(asked["id"]), "choice": "once"})
    assert done.status_code == 200
    assert "You agreed, once" in done.text
    assert done.headers["content-security-policy"] == policy
    assert place.decisions() == [("granted", "web")]
    assert place.chat().status_code == 200
    again = place.page(asked["id"])
    assert again.status_code == 410
    assert "answered" in again.text


def test_a_day_is_meant_to_its_end_and_the_latest_to_the_end_of_the_offer(place: Place) -> None:
    asked = place.question()
    latest = dt.datetime.fromisoformat(asked["until_at_most"])
    fields = {"token": place.token(asked["id"]), "choice": "until"}
    for day in ("", "tomorrow", "2001-01-01", "9999-12-31", str(in_days(30).date())):
        refused = place.form(asked["id"], fields | {"until": day})
        assert refused.status_code == 400, day
        assert "not done" in refused.text
    assert place.decisions() == []
    done = place.form(asked["id"], fields | {"until": str(latest.astimezone().date())})
    assert done.status_code == 200
    (entry,) = place.world.ledger.entries()
    assert entry.expires_at is not None
    assert abs((entry.expires_at - latest).total_seconds()) < 1


def test_a_no_on_the_page_ignores_the_day(place: Place) -> None:
    name = place.question()["id"]
    done = place.form(name, {"token": place.token(name), "choice": "no", "until": "2030-01-01"})
    assert "You said no" in done.text
    assert place.decisions() == [("denied", "web")]


@pytest.mark.parametrize(
    ("headers", "number"),
    [
        ({"origin": EVIL}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "http://localhost:1"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"host": "evil.example"}, 403),
        ({"content_type": "application/json"}, 415),
        ({"content_type": "text/plain"}, 415),
    ],
)
def test_what_another_site_sends_records_nothing(
    place: Place, headers: dict[str, str], number: int
) -> None:
    name = place.question()["id"]
    form = {"token": place.token(name), "choice": "once"}  # even with the right token
    assert place.form(name, form, **headers).status_code == number
    assert place.decisions() == []
    assert place.form(name, form).status_code == 200


def test_a_form_without_an_origin_records_nothing(place: Place) -> None:
    name = place.question()["id"]
    form = {"token": place.token(name), "choice": "once"}
    reply = httpx.post(f"{place.served.url}/edgewise/consent/{name}", data=form)
    assert code(reply) == (403, "origin-refused")
    assert place.decisions() == []


def test_a_page_of_another_site_cannot_open_the_question(place: Place) -> None:
    name = place.question()["id"]
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": EVIL}, {"host": "evil.example"}):
        reply = place.page(name, **headers)
        assert reply.status_code == 403
        assert "token" not in reply.text.replace("token-refused", "")


def test_an_allowed_origin_may_use_the_api_and_not_the_page(
    tmp_path: Path, authority: Authority
) -> None:
    app = "http://localhost:3000"
    serve = {"origins": frozenset({app})}
    with routed(tmp_path / "home", authority, serve=serve) as place:
        name = place.question(headers={"origin": app})["id"]
        form = {"token": place.token(name), "choice": "once"}
        assert place.form(name, form, origin=app, sec_fetch_site="same-site").status_code == 403
        assert place.decisions() == []
        reply = place.answer(name, headers={"origin": app})
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == app


def test_the_token_belongs_to_one_question(place: Place) -> None:
    one, other = place.question()["id"], place.question(user="other")["id"]
    for token in (place.token(other), "", "\u00e9", one):
        reply = place.form(one, {"token": token, "choice": "once"})
        assert reply.status_code == 403
        assert "nothing was recorded" in reply.text
    for body in (
        {"choice": "once"},
        {"token": place.token(one)},
        {"token": place.token(one), "choice": "always"},
        {"token": place.token(one), "choice": "once", "scope": "all"},
    ):
        assert place.form(one, body).status_code == 403
    twice = f"token={place.token(one)}&choice=no&choice=once"
    kind = {"content-type": "application/x-www-form-urlencoded", "origin": place.served.url}
    url = f"{place.served.url}/edgewise/consent/{one}"
    assert httpx.post(url, content=twice, headers=kind).status_code == 403
    large = {"token": "x" * 5000, "choice": "once"}
    assert place.form(one, large).status_code == 413
    assert place.decisions() == []


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


def test_what_others_wrote_cannot_act_on_the_page() -> None:
    nasty = '"><script>alert(1)</script><form action="https://evil.example">\u202eon\u2066'
    prompt = consent_prompt(
        ConsentScope(feature="letters", data_class="personal", destination="far", purpose=nasty),
        Destination(
            name="far",
            url="https://far.example/v1",
            model="m",
            basis=Basis.CONSENT,
            purpose=nasty + "2",
            region=nasty,
            price=Price(currency="EUR", input_per_million=1, output_per_million=2, daily_limit=5),
        ),
        fields=(nasty,),
        reasons=(nasty,),
        benefit=nasty,
        sent=(SentField(name=nasty, characters=1234),),
        withheld=(nasty,),
        replaced=(Replacement(kind="email", count=2),),
        caveats=(nasty,),
        until_at_most=in_days(7),
    )
    page = ask_page(Questions().ask(prompt, "a"))
    found = _Tags(page)
    assert found.tags.count("form") == 1
    assert not {"script", "img", "link", "iframe", "base", "object"} & set(found.tags)
    assert not [name for name in found.attributes if name.startswith("on") or name == "style"]
    assert not {"\u202e", "\u2066"} & set(page)
    assert "\\u202e" in page
    assert "evil.example" in page
    for told in ("1,234 characters", "email (2)", "https://far.example:443", "how long"):
        assert told in page
    # What the return key presses in the field of the day sends nothing anywhere.
    assert page.index('value="no"') < page.index('value="once"') < page.index('value="until"')
