"""Signals and verdicts over HTTP, and asking elsewhere after an answer that is doubted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import pytest
from tests.unit.route.cloud.servers import Authority
from tests.unit.serve.fakes import MODEL, FakeSession, serving
from tests.unit.serve.routed import LETTER, MAIL, PERSONAL, Place, routed

from edgewise.route.consent import ConsentPrompt
from edgewise.serve.openapi import document

CERTAIN, UNSURE = 0.02, 0.95
PATHS = ("chat/completions", "responses")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def place(tmp_path: Path, authority: Authority) -> Iterator[Place]:
    session = FakeSession(entropy=UNSURE)
    with routed(tmp_path / "home", authority, judged=True, session=session) as found:
        yield found


def ask(place: Place, path: str = PATHS[0], *, stream: bool = False, **edgewise: Any) -> Any:
    body: dict[str, Any] = {"model": MODEL, "stream": stream, "edgewise": PERSONAL | edgewise}
    body |= {
        "chat/completions": {"messages": [{"role": "user", "content": LETTER}], "max_tokens": 50},
        "completions": {"prompt": LETTER, "max_tokens": 50},
        "responses": {"input": LETTER, "max_output_tokens": 50},
    }[path]
    return httpx.post(f"{place.served.url}/v1/{path}", json=body, timeout=20)


def error(reply: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = reply.json()["error"]
    return found


def last_told(reply: httpx.Response) -> tuple[str, dict[str, Any]]:
    """Return the id of a streamed answer and its ``edgewise`` object."""
    data = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
    events = [json.loads(one) for one in data]
    told = [one.get("response", one) for one in events]
    (last,) = [one for one in told if "edgewise" in one]
    about = last["edgewise"]
    return last["id"], about[0] if isinstance(about, list) else about


@pytest.mark.parametrize("path", PATHS)
def test_an_unsure_answer_is_offered_as_unverified_and_sent_nowhere(
    place: Place, path: str
) -> None:
    reply = ask(place, path)
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-edgewise-verification"] == "unverified"
    about = reply.json()["edgewise"]
    assert (about["outcome"], about["route"]) == ("completed", "local")
    escalation = about["escalation"]
    assert (escalation["judged"], escalation["suggested"]) == (True, True)
    assert escalation["score"] > escalation["threshold"]
    assert (escalation["slice"], escalation["evidence"]) == ("all", digest(place))
    assert 0 < escalation["target_error"] < 1
    assert 0 < escalation["confidence"] < 1
    assert escalation["reasons"]
    assert "signals" not in about, "they were taken to judge, and nobody asked for them"
    assert [one.signals for one in place.session.asked] == [True]
    assert place.far.connections == 0


def digest(place: Place) -> str:
    ((found, _),) = place.world.context.evidence.find(kind="calibration")
    return found


@pytest.mark.parametrize("slice_by", ["task", "topic"])
def test_a_calibration_by_tasks_judges_by_the_requests_task(
    tmp_path: Path, authority: Authority, slice_by: str
) -> None:
    with routed(
        tmp_path / "home",
        authority,
        judged=True,
        slice_by=slice_by,
        session=FakeSession(entropy=UNSURE),
    ) as place:
        told = last_told(ask(place, stream=True))[1]["escalation"]
    if slice_by == "task":
        assert (told["judged"], told["slice"], told["suggested"]) == (True, "chat", True)
    else:
        assert not told["judged"]
        assert "nobody said the request's slice" in told["reasons"][0]


def test_a_certain_answer_is_kept_and_asking_elsewhere_is_declined(
    tmp_path: Path, authority: Authority
) -> None:
    session = FakeSession(entropy=CERTAIN)
    with routed(tmp_path / "home", authority, judged=True, session=session) as place:
        reply = ask(place)
        assert reply.headers["x-edgewise-verification"] == "kept"
        assert not reply.json()["edgewise"]["escalation"]["suggested"]
        refused = ask(place, after=reply.json()["id"])
        assert (refused.status_code, error(refused)["code"]) == (403, "declined-by-policy")
        assert refused.headers["x-edgewise-route"] == "decline"
        assert error(refused)["edgewise"]["outcome"] == "declined"
        assert "doubt: its score" in error(refused)["message"]
        assert len(session.asked) == 1, "this device answered already"
        assert place.far.connections == 0


@pytest.mark.parametrize("path", [*PATHS, "completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_signals_come_where_they_are_asked_for_and_hold_no_content(
    place: Place, path: str, stream: bool
) -> None:
    reply = ask(place, path, stream=stream, signals=True)
    if stream:
        _, about = last_told(reply)
    else:
        about = reply.json()["edgewise"]
        about = about[0] if isinstance(about, list) else about
    signals = about["signals"]
    assert signals["raw"]["entropy_mean"] == UNSURE
    assert (signals["finish"], signals["validator"]) == ("stop", "not-run")
    numbers = {**signals, **signals["raw"]}
    texts = {name for name, value in numbers.items() if isinstance(value, str)}
    assert texts == {"finish", "validator"}


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_says_at_its_end_what_is_made_of_it(place: Place, path: str) -> None:
    reply = ask(place, path, stream=True)
    assert reply.headers["x-edgewise-verification"] == "pending"
    answer_id, about = last_told(reply)
    assert about["escalation"]["suggested"]
    assert "signals" not in about
    found = error(ask(place, path, stream=True, after=answer_id))
    assert found["code"] == "consent-required"


@pytest.mark.parametrize("stream", [False, True])
def test_a_raw_prompt_is_unjudged_and_names_no_answer(place: Place, stream: bool) -> None:
    reply = ask(place, "completions", stream=stream)
    assert reply.headers["x-edgewise-verification"] == ("pending" if stream else "unjudged")
    about = last_told(reply)[1] if stream else reply.json()["edgewise"][0]
    assert not about["escalation"]["judged"]
    assert "template" in about["escalation"]["reasons"][0]
    assert [one.signals for one in place.session.asked] == [False]
    refused = error(ask(place, "completions", stream=stream, after="cmpl-1"))
    assert (refused["code"], refused["param"]) == ("parameter-unsupported", "edgewise.after")


@pytest.mark.parametrize("path", PATHS)
def test_a_doubted_answer_leads_elsewhere_after_a_consent_of_its_own(
    place: Place, path: str
) -> None:
    first = ask(place, path)
    reply = ask(place, path, after=first.json()["id"])
    assert reply.status_code == 403
    assert reply.headers["x-edgewise-route"] == "decline"
    found = error(reply)
    assert "this device's answer is not verified" in found["message"]
    question = found["edgewise"]["question"]
    assert any("not verified" in reason for reason in question["reasons"])
    assert place.far.connections == 0
    assert place.answer(question["id"]).status_code == 200
    # The consent is for its scope; a plain request is answered here all the same.
    assert ask(place, path).headers["x-edgewise-route"] == "local"
    second = ask(place, path, after=first.json()["id"])
    assert second.headers["x-edgewise-route"] == "cloud"
    assert "x-edgewise-verification" not in second.headers
    assert f"You wrote: {LETTER}" in second.text
    assert "its score" in second.json()["edgewise"]["reasons"][0]
    assert place.decisions() == [("used", "api")]
    (exchange,) = place.far.exchanges
    assert MAIL.encode() not in exchange.body
    assert len(place.session.asked) == 2
    # One consent, one use: the doubt is no licence.
    assert error(ask(place, path, after=first.json()["id"]))["code"] == "consent-required"
    assert place.far.connections == 1


def test_after_a_no_the_doubt_leads_nowhere(place: Place) -> None:
    answer_id = ask(place).json()["id"]
    question = error(ask(place, after=answer_id))["edgewise"]["question"]
    place.answer(question["id"], "no")
    found = error(ask(place, after=answer_id))
    assert found["code"] == "declined-by-policy"
    assert "denied" in found["message"]
    assert "question" not in found["edgewise"]
    assert (place.far.connections, len(place.session.asked)) == (0, 1)


def test_nobody_can_invent_a_doubt_or_use_anothers(place: Place) -> None:
    answer_id = ask(place).json()["id"]
    body = {"messages": [{"role": "user", "content": LETTER}]}
    cases: list[tuple[int, str, dict[str, Any]]] = [
        (404, "escalation-unknown", {"edgewise": PERSONAL | {"after": "chatcmpl-invented"}}),
        (404, "escalation-unknown", {"headers": {"user-agent": "another"}}),
        (404, "escalation-unknown", {"user": "somebody"}),
        (400, "escalation-mismatch", {"messages": [{"role": "user", "content": "else"}]}),
        (400, "escalation-mismatch", {"edgewise": {"data_class": "public", "after": answer_id}}),
    ]
    for status, code, fields in cases:
        told = body | {"edgewise": PERSONAL | {"after": answer_id}} | fields
        reply = place.chat(**told)
        assert (reply.status_code, error(reply)["code"]) == (status, code), fields
        assert error(reply)["param"] == "edgewise.after"
    assert (place.far.connections, len(place.session.asked)) == (0, 1)


def test_local_only_data_stays_whatever_is_doubted(place: Place) -> None:
    first = ask(place, data_class="local-only")
    assert first.headers["x-edgewise-verification"] == "unverified"
    found = error(ask(place, data_class="local-only", after=first.json()["id"]))
    assert found["code"] == "declined-by-policy"
    assert "question" not in found["edgewise"]
    assert "never leaves the device" in found["message"]
    assert place.far.connections == 0


def test_where_nothing_was_calibrated_nothing_is_claimed(
    tmp_path: Path, authority: Authority
) -> None:
    session = FakeSession(entropy=UNSURE)
    with routed(tmp_path / "home", authority, judged=True, session=session) as place:
        for path in (place.world.context.home.root / "evidence").glob("*.json"):
            path.unlink()
        reply = ask(place)
        assert reply.headers["x-edgewise-verification"] == "unjudged"
        assert not reply.json()["edgewise"]["escalation"]["judged"]
        assert [one.signals for one in session.asked] == [False], "they would be of no use"
        found = error(ask(place, after=reply.json()["id"]))
        assert found["code"] == "declined-by-policy"
        assert "no calibration" in found["message"]
        assert place.far.connections == 0


def test_a_task_that_the_policy_does_not_escalate_has_no_verdict(
    tmp_path: Path, authority: Authority
) -> None:
    with routed(tmp_path / "home", authority, able=True) as place:
        reply = ask(place)
        assert "x-edgewise-verification" not in reply.headers
        assert "escalation" not in reply.json()["edgewise"]
        assert error(ask(place, after=reply.json()["id"]))["code"] == "escalation-unknown"


def test_without_a_policy_signals_come_and_no_answer_can_be_named() -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    with serving(FakeSession()) as served:
        url = f"{served.url}/v1/chat/completions"
        reply = httpx.post(url, json=body | {"edgewise": {"signals": True}})
        assert "raw" in reply.json()["edgewise"]["signals"]
        named = body | {"edgewise": {"after": reply.json()["id"]}}
        refused = httpx.post(url, json=named)
        assert (refused.status_code, error(refused)["code"]) == (404, "escalation-unknown")
        unknown = error(httpx.post(url, json=body | {"edgewise": {"later": "x"}}))
        assert (unknown["code"], unknown["param"]) == ("parameter-unknown", "edgewise.later")


def test_a_destination_tells_no_signals_and_the_answer_says_so(
    tmp_path: Path, authority: Authority
) -> None:
    with routed(tmp_path / "home", authority) as place:
        place.answer(place.question()["id"])
        about = ask(place, signals=True).json()["edgewise"]
        assert "signals" not in about
        assert "signals-unavailable" in [one["code"] for one in about["events"]]


def test_a_question_and_a_verdict_are_as_the_document_says(place: Place) -> None:
    components = document(MODEL, with_token=False, with_consent=True)["components"]

    def check(value: Any, name: str) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": components}
        jsonschema.validate(value, schema)

    first = ask(place, signals=True).json()
    check(first, "ChatReply")
    refused = ask(place, after=first["id"]).json()
    check(refused, "ErrorReply")
    question = refused["error"]["edgewise"]["question"]
    check(question, "ConsentQuestion")
    assert set(ConsentPrompt.__struct_fields__) < set(question)
    about = {"signals", "escalation", "outcome"}
    assert about <= set(components["schemas"]["About"]["properties"])
    assert {"signals", "after"} <= set(components["schemas"]["Extension"]["properties"])


def test_the_log_holds_no_verdict_and_no_id(place: Place) -> None:
    answer_id = ask(place).json()["id"]
    ask(place, after=answer_id)
    told = "\n".join(place.served.lines)
    assert "consent-required" in told
    assert answer_id not in told
    assert "unverified" not in told
