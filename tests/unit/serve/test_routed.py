"""A server under a policy: what is answered here, what leaves, and what is declined."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.unit.route.cloud.servers import (
    OK_HEAD,
    Authority,
    Exchange,
    delta,
    hang,
    status,
)
from tests.unit.serve.fakes import FINGERPRINT, MODEL, serving, wait_for
from tests.unit.serve.routed import LETTER, MAIL, PERSONAL, Place, routed

from edgewise.core.request import Message, Request
from edgewise.route.facts import ClassifiedTask
from edgewise.route.policy import ClassifierRule, CloudUse, RecordRule, TaskRule
from edgewise.route.records import RecordStore
from edgewise.serve.limits import Limits

LOCAL = {"data_class": "local-only"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def place(tmp_path: Path, authority: Authority) -> Iterator[Place]:
    with routed(tmp_path / "home", authority) as found:
        yield found


@pytest.fixture
def able(tmp_path: Path, authority: Authority) -> Iterator[Place]:
    with routed(tmp_path / "home", authority, able=True) as found:
        yield found


def begun(exchange: Exchange) -> None:
    """Begin an answer and never end it."""
    exchange.send(OK_HEAD + b"\r\n" + delta("Dear reader, "))
    exchange.until_closed()


def error(reply: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = reply.json()["error"]
    return found


def events(reply: httpx.Response) -> list[Any]:
    data = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def test_without_consent_nothing_leaves_and_the_app_is_told_what_to_ask(place: Place) -> None:
    reply = place.chat()
    assert reply.status_code == 403
    assert reply.headers["x-edgewise-route"] == "decline"
    found = error(reply)
    assert (found["code"], found["type"]) == ("consent-required", "permission_error")
    asked = found["edgewise"]["question"]
    assert asked["scope"]["destination"] == asked["recipient"]["name"] == "far"
    assert [one["name"] for one in asked["sent"]] == ["messages"]
    assert {one["kind"]: one["count"] for one in asked["replaced"]} == {"email": 1, "contact": 1}
    assert asked["choices"] == ["once", "until", "no"]
    assert asked["page"] == f"/edgewise/consent/{asked['id']}"
    assert MAIL not in reply.text
    assert "Hopper" not in reply.text
    assert place.far.connections == 0
    assert place.session.asked == []


def test_what_was_agreed_to_is_asked_there_and_comes_back_whole(place: Place) -> None:
    assert place.answer(place.question()["id"]).json()["choice"] == "once"
    reply = place.chat()
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-edgewise-route"] == "cloud"
    assert reply.headers["x-edgewise-destination"] == "far"
    whole = reply.json()
    assert whole["choices"][0]["message"]["content"] == f"You wrote: {LETTER}"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (11, 7)
    about = whole["edgewise"]
    assert (about["route"], about["destination"], about["runtime"]) == ("cloud", "far", "cloud:far")
    assert whole["system_fingerprint"] == about["fingerprint"] == ""
    (exchange,) = place.far.exchanges
    assert MAIL.encode() not in exchange.body
    assert place.session.asked == []
    # One consent, one use.
    place.question()
    assert place.far.connections == 1
    assert place.decisions() == [("used", "api")]


def test_a_stream_has_the_shapes_of_a_local_one(place: Place, able: Place) -> None:
    place.answer(place.question()["id"])
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    reply = place.chat(**options)
    assert reply.headers["x-edgewise-route"] == "cloud"
    far, near = events(reply), events(able.chat(edgewise=LOCAL, **options))
    text = "".join(one["choices"][0]["delta"].get("content", "") for one in far[:-2])
    assert text == f"You wrote: {LETTER}"
    assert len(far) > 6, "it did not come in pieces"
    assert far[-2]["usage"]["total_tokens"] == 18
    assert far[-3]["choices"][0]["finish_reason"] == "stop"
    assert far[-3]["edgewise"]["destination"] == "far"
    assert far[-1] == near[-1] == "[DONE]"
    for i in (0, 1, -3, -2):
        assert set(far[i]) == set(near[i])


def test_the_responses_endpoint_is_routed_too(place: Place) -> None:
    place.answer(place.question()["id"])
    body = {"model": MODEL, "input": LETTER, "max_output_tokens": 50, "edgewise": PERSONAL}
    url = f"{place.served.url}/v1/responses"
    reply = httpx.post(url, json=body, timeout=20)
    assert reply.headers["x-edgewise-destination"] == "far"
    assert reply.json()["output"][0]["content"][0]["text"] == f"You wrote: {LETTER}"
    assert error(httpx.post(url, json=body, timeout=20))["code"] == "consent-required"


@pytest.mark.parametrize("data_class", ["local-only", "unheard-of"])
def test_what_stays_is_not_asked_about(place: Place, data_class: str) -> None:
    found = error(place.chat(edgewise={"data_class": data_class}))
    assert found["code"] == "declined-by-policy"
    assert "question" not in found["edgewise"]
    assert (place.far.connections, place.session.asked) == (0, [])


def test_a_task_that_the_policy_does_not_know_is_declined(able: Place) -> None:
    found = error(able.chat(edgewise={"task": "mail", **LOCAL}))
    assert found["code"] == "declined-by-policy"
    assert "mail" in found["message"]
    assert (able.far.connections, able.session.asked) == (0, [])


def test_what_this_device_may_answer_it_answers_as_before(able: Place) -> None:
    for edgewise in (LOCAL, PERSONAL):  # the policy prefers the destination; nobody agreed
        reply = able.chat(edgewise=edgewise)
        assert reply.status_code == 200
        assert reply.headers["x-edgewise-route"] == "local"
        assert reply.headers["x-edgewise-fingerprint"] == FINGERPRINT
        assert "x-edgewise-destination" not in reply.headers
        assert "destination" not in reply.json()["edgewise"]
    assert len(able.session.asked) == 2
    assert able.far.connections == 0


def test_a_raw_prompt_never_leaves(able: Place) -> None:
    body = {"model": MODEL, "prompt": LETTER, "edgewise": PERSONAL}
    reply = httpx.post(f"{able.served.url}/v1/completions", json=body, timeout=20)
    assert reply.headers["x-edgewise-route"] == "local"
    assert able.far.connections == 0


def test_a_parameter_that_a_destination_does_not_take_is_named(place: Place) -> None:
    place.answer(place.question()["id"])
    found = error(place.chat(logprobs=True))
    assert found["code"] == "declined-by-policy"
    assert "log-probabilities" in found["message"]
    assert place.decisions() == [("granted", "api")]


def test_a_client_that_goes_away_ends_what_was_asked_for_it(
    tmp_path: Path, authority: Authority
) -> None:
    with routed(tmp_path / "home", authority, answer=begun) as place:
        place.answer(place.question()["id"])
        body = {"model": MODEL, "stream": True, "max_tokens": 50, "edgewise": PERSONAL}
        body["messages"] = [{"role": "user", "content": LETTER}]
        url = f"{place.served.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=20) as reply:
            assert reply.status_code == 200
            assert "Dear" in next(text for text in reply.iter_lines() if "Dear" in text)
        assert place.far.hung_up.wait(10)
        elsewhere = place.served.server._app.elsewhere
        assert elsewhere is not None
        wait_for(lambda: elsewhere.running == 0)


def test_one_client_cannot_take_all_of_it_and_stopping_ends_what_is_asked(
    tmp_path: Path, authority: Authority
) -> None:
    limits = Limits(elsewhere_per_client_max=1, grace_s=0.2)
    with routed(tmp_path / "home", authority, answer=hang, serve={"limits": limits}) as place:
        place.answer(place.question()["id"], "until", until=in_days(3))
        replies: list[httpx.Response] = []
        waits = threading.Thread(target=lambda: replies.append(place.chat()))
        waits.start()
        elsewhere = place.served.server._app.elsewhere
        assert elsewhere is not None
        wait_for(lambda: elsewhere.running == 1)
        full = place.chat()
        assert (full.status_code, error(full)["code"]) == (429, "queue-full")
        assert int(full.headers["retry-after"]) >= 1
        place.served.server.stop()
        waits.join(20)
        assert (replies[0].status_code, error(replies[0])["code"]) == (503, "server-stopping")


def in_days(days: int) -> str:
    return (dt.datetime.now(dt.UTC) + dt.timedelta(days=days)).isoformat()


@pytest.mark.parametrize(
    ("answer", "code", "number"),
    [
        (status(503), "cloud-outage", 502),
        (status(429, Retry_After="7"), "cloud-rate-limited", 429),
        (status(401), "cloud-denied", 502),
    ],
)
def test_a_destination_that_fails_is_a_typed_error(
    tmp_path: Path, authority: Authority, answer: Any, code: str, number: int
) -> None:
    with routed(tmp_path / "home", authority, answer=answer) as place:
        place.answer(place.question()["id"])
        reply = place.chat()
        assert (reply.status_code, error(reply)["code"]) == (number, code)
        assert reply.headers["x-edgewise-route"] == "cloud"
        assert reply.headers["x-edgewise-destination"] == "far"
        if number == 429:
            assert reply.headers["retry-after"] == "7"
        assert MAIL not in reply.text
        assert place.far.connections == 1


def test_after_a_no_nobody_is_asked_again(place: Place) -> None:
    place.answer(place.question()["id"], "no")
    found = error(place.chat())
    assert found["code"] == "declined-by-policy"
    assert "denied" in found["message"]
    assert "question" not in found["edgewise"]
    assert place.far.connections == 0


def test_a_ledger_that_is_locked_sends_nothing_and_keeps_the_question(place: Place) -> None:
    place.world.ledger._database._timeout_s = 0.05
    asked = place.question()
    agreed = place.answer(place.question()["id"])
    path = place.world.ledger._database.path
    lock = sqlite3.connect(path, isolation_level=None)
    try:
        lock.execute("BEGIN IMMEDIATE")
        late = place.answer(asked["id"])
        assert (late.status_code, error(late)["code"]) == (503, "database-locked")
        unused = place.chat()
        assert (unused.status_code, error(unused)["code"]) == (403, "declined-by-policy")
        assert place.far.connections == 0
    finally:
        lock.close()
    assert place.answer(asked["id"]).status_code == agreed.status_code == 200
    assert place.chat().status_code == 200


def test_a_ledger_that_is_damaged_opens_nothing_and_does_not_stop_what_is_local(
    able: Place, tmp_path: Path, authority: Authority
) -> None:
    def damage(place: Place) -> None:
        path = place.world.ledger._database.path
        for one in path.parent.glob("state.sqlite*"):
            one.write_bytes(b"no database at all " * 400)

    damage(able)
    assert able.chat(edgewise=LOCAL).status_code == 200
    assert able.chat(edgewise=PERSONAL).headers["x-edgewise-route"] == "local"
    with routed(tmp_path / "other", authority) as place:
        asked = place.question()
        damage(place)
        reply = place.answer(asked["id"])
        assert (reply.status_code, error(reply)["code"]) == (500, "database-damaged")
        listed = httpx.get(f"{place.served.url}/edgewise/v1/consent")
        assert (listed.status_code, error(listed)["code"]) == (500, "database-damaged")
        page = place.form(asked["id"], {"token": place.token(asked["id"]), "choice": "once"})
        assert page.status_code == 500
        assert "not done" in page.text
        found = error(place.chat())
        assert found["code"] == "declined-by-policy"
        assert "question" not in found["edgewise"]
        assert place.far.connections == 0


def test_nothing_that_somebody_wrote_is_logged(place: Place) -> None:
    asked = place.question()
    place.answer(asked["id"])
    place.chat()
    place.page("made-up-name")
    told = "\n".join(place.served.lines)
    assert "consent-required" in told
    asked_for = [x for x in place.served.lines if x.startswith("POST /v1/chat/completions")]
    assert [line.partition(" ms ")[2] for line in asked_for] == [
        "decline consent-required",
        "cloud:far",
    ]
    assert "POST /edgewise/v1/consent/{id} 200" in told
    for secret in (MAIL, "Hopper", asked["id"], "made-up-name"):
        assert secret not in told


TRUSTED = ClassifierRule(evidence="c1" * 32, otherwise="chat", may_leave=("letters",))
TASKS = (
    TaskRule(name="chat"),
    TaskRule(name="letters", cloud=CloudUse.PREFERRED, destinations=("far",)),
    TaskRule(name="secret", cloud=CloudUse.PREFERRED, destinations=("far",)),
)


def classified(request: Request) -> ClassifiedTask:
    """Say the task as a classifier whose evidence stands: by the first word."""
    word = request.messages[-1].content.split()[0].lower()
    score = 0.99 if word in {"letters", "secret"} else 0.2
    return ClassifiedTask(
        stands=True, task=word, score=score, threshold=0.9, evidence=TRUSTED.evidence
    )


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("letters to Ada, please", "cloud"),
        ("secret letter to Ada", "local"),  # found out, and not named in may_leave
        ("hello there", "local"),  # not found out
    ],
)
def test_a_task_that_is_left_open_is_found_out_here(
    tmp_path: Path, authority: Authority, text: str, route: str
) -> None:
    policy: dict[str, Any] = {"tasks": TASKS, "classifier": TRUSTED, "classify": classified}
    with routed(tmp_path / "home", authority, able=True, **policy) as place:
        asked = Request(
            messages=(Message(role="user", content="letters"),), data_class="personal", task="auto"
        )
        place.world.agree(asked)
        reply = place.chat(text, edgewise=PERSONAL | {"task": "auto"})
        assert (reply.status_code, reply.headers["x-edgewise-route"]) == (200, route)
        assert place.far.connections == (1 if route == "cloud" else 0)


def test_without_a_policy_there_is_nothing_of_it() -> None:
    with serving() as served:
        for path in ("/edgewise/v1/consent", "/edgewise/consent/x"):
            reply = httpx.get(served.url + path)
            assert (reply.status_code, error(reply)["code"]) == (404, "route-unknown")
        paths = httpx.get(f"{served.url}/openapi.json").json()["paths"]
        assert not [path for path in paths if "edgewise" in path]
        assert "elsewhere" not in httpx.get(f"{served.url}/readyz").json()
        assert served.server._app.elsewhere is None


def test_each_request_is_recorded_once_where_the_policy_says_so(
    tmp_path: Path, authority: Authority
) -> None:
    rule = RecordRule(share=1.0)
    with routed(tmp_path / "home", authority, records=rule) as place:
        place.answer(place.question()["id"])  # declined, with a question
        assert place.chat().headers["x-edgewise-route"] == "cloud"
        place.chat(edgewise=LOCAL)  # never leaves, so it is not recorded
        assert place.world.recorder.flush(120)
        assert place.world.recorder.take_events() == ()
        held = RecordStore(place.world.context.home).read().records
    assert sorted((str(one.route), one.destination) for one in held) == [
        ("cloud", "far"),
        ("decline", ""),
    ]
    assert {one.link for one in held} == {"online"}
