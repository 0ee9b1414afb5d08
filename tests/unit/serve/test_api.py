"""The API over HTTP, with a session that has no model: routes, streams, errors, who may call."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.unit.serve.fakes import (
    FINGERPRINT,
    MODEL,
    FakeBundle,
    FakeSession,
    Served,
    completed,
    declined,
    failed,
    serving,
    wait_for,
)

from edgewise.core.outcome import FinishReason, Outcome
from edgewise.core.request import Request
from edgewise.errors import InputError
from edgewise.serve.app import model_id
from edgewise.serve.limits import Limits

USER = [{"role": "user", "content": "hi"}]
TEXT = "Hello w\u00f6rld"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def session() -> FakeSession:
    return FakeSession()


@pytest.fixture(scope="module")
def served(session: FakeSession) -> Iterator[Served]:
    with serving(session) as served:
        yield served


def post(served: Served, path: str, body: Any, **options: Any) -> httpx.Response:
    return httpx.post(f"{served.url}/v1/{path}", json=body, timeout=20, **options)


def chat(served: Served, **fields: Any) -> httpx.Response:
    return post(served, "chat/completions", {"model": MODEL, "messages": USER, **fields})


def events(reply: httpx.Response) -> list[Any]:
    """Return the data of a stream's events; ``[DONE]`` stays text."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in reply.text.strip("\n").split("\n\n"):
        data = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        assert len(data) == 1
        found.append(data[0] if data[0] == "[DONE]" else json.loads(data[0]))
    return found


def ready(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{served.url}/readyz").json()
    return found


def holds_one(served: Served, place: str) -> bool:
    return bool(ready(served)[place] == 1)


def code(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


# -- chat -----------------------------------------------------------------------------------------


def test_a_whole_answer_says_where_it_came_from(served: Served) -> None:
    reply = chat(served)
    body = reply.json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == 8
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    ours = body["edgewise"]
    assert (ours["route"], ours["fingerprint"]) == ("local", FINGERPRINT)
    assert ours["timings"]["ttft_ms"]["kind"] == ours["waited_ms"]["kind"] == "measured"
    assert ours["events"][0]["code"] == "token-counts-unknown"
    assert reply.headers["x-edgewise-route"] == "local"
    assert reply.headers["x-edgewise-fingerprint"] == FINGERPRINT
    assert reply.headers["x-request-id"]
    assert "server" not in reply.headers


def test_a_stream_is_the_same_answer_in_openais_order(served: Served) -> None:
    reply = chat(served, stream=True, stream_options={"include_usage": True})
    first, *rest, last, usage, done = events(reply)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(e["choices"][0]["delta"]["content"] for e in rest) == TEXT
    assert all(e["choices"][0]["finish_reason"] is None for e in (first, *rest))
    assert all(e["usage"] is None for e in (first, *rest, last))
    assert last["choices"][0] == {
        "delta": {},
        "finish_reason": "stop",
        "logprobs": None,
        "index": 0,
    }
    assert last["edgewise"]["fingerprint"] == FINGERPRINT
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert done == "[DONE]"
    assert len({e["id"] for e in (first, *rest, last, usage)}) == 1
    assert reply.headers["x-edgewise-fingerprint"] == FINGERPRINT


def test_usage_is_only_streamed_where_it_was_asked_for(served: Served) -> None:
    assert all("usage" not in e for e in events(chat(served, stream=True))[:-1])


def test_logprobs_come_whole_and_in_chunks(served: Served) -> None:
    whole = chat(served, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]
    streamed = [
        entry
        for e in events(chat(served, stream=True, logprobs=True, top_logprobs=2))[1:-2]
        for entry in e["choices"][0]["logprobs"]["content"]
    ]
    assert whole["content"] == streamed
    assert len(streamed[0]["top_logprobs"]) == 2
    assert chat(served).json()["choices"][0]["logprobs"] is None


def test_a_cut_answer_says_length(served: Served) -> None:
    assert chat(served, max_tokens=2).json()["choices"][0]["finish_reason"] == "length"
    *_, last, _done = events(chat(served, max_tokens=2, stream=True))
    assert last["choices"][0]["finish_reason"] == "length"


def test_tool_calls_whole_and_streamed(served: Served) -> None:
    fields = {"tools": [TOOL], "tool_choice": "required"}
    choice = chat(served, **fields).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    call = {
        "id": "call_1",
        "function": {"name": "look", "arguments": '{"a":1}'},
        "type": "function",
    }
    assert choice["message"]["tool_calls"] == [call]
    *_, said, last, _done = events(chat(served, stream=True, **fields))
    assert said["choices"][0]["delta"]["tool_calls"] == [{"index": 0, **call}]
    assert last["choices"][0]["finish_reason"] == "tool_calls"


def test_our_extension_arrives(served: Served, session: FakeSession) -> None:
    chat(served, edgewise={"data_class": "personal", "deadline_s": 20})
    assert session.asked[-1].data_class == "personal"
    assert 19 < session.asked[-1].deadline_s <= 20


# -- completions ----------------------------------------------------------------------------------


def test_several_prompts_with_scores(served: Served) -> None:
    body = {"model": MODEL, "prompt": ["ab", "cde"], "max_tokens": 1, "echo": True, "logprobs": 2}
    reply = post(served, "completions", body).json()
    first, second = reply["choices"]
    assert (first["index"], second["index"]) == (0, 1)
    assert first["text"] == "abHel"
    assert first["logprobs"]["tokens"] == ["a", "b", "Hel"]
    assert first["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert first["logprobs"]["text_offset"] == [0, 1, 2]
    assert second["logprobs"]["top_logprobs"][0] is None
    assert len(second["logprobs"]["top_logprobs"][1]) == 2
    assert first["finish_reason"] == "length"
    assert reply["usage"]["prompt_tokens"] == 10
    assert len(reply["edgewise"]) == 2


def test_scoring_gives_the_prompt_and_nothing_else(served: Served) -> None:
    body = {"model": MODEL, "prompt": [1, 2], "max_tokens": 0, "echo": True, "logprobs": 0}
    reply = post(served, "completions", body).json()
    choice = reply["choices"][0]
    assert choice["text"] == "bc"
    assert choice["logprobs"]["tokens"] == ["b", "c"]
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0


def test_completions_stream_prompt_after_prompt(served: Served) -> None:
    body = {
        "model": MODEL,
        "prompt": ["a", "b"],
        "stream": True,
        "echo": True,
        "stream_options": {"include_usage": True},
    }
    *found, usage, done = events(post(served, "completions", body))
    texts = {0: "", 1: ""}
    for e in found:
        texts[e["choices"][0]["index"]] += e["choices"][0]["text"]
    assert texts == {0: "a" + TEXT, 1: "b" + TEXT}
    ends = [e["choices"][0]["index"] for e in found if e["choices"][0]["finish_reason"] == "stop"]
    assert ends == [0, 1]
    assert usage["usage"]["completion_tokens"] == 6
    assert done == "[DONE]"


# -- responses ------------------------------------------------------------------------------------


def test_a_response_whole(served: Served) -> None:
    body = {"model": MODEL, "input": "hi", "metadata": {"a": "b"}, "instructions": "Be brief."}
    reply = post(served, "responses", body).json()
    assert (reply["object"], reply["status"], reply["store"]) == ("response", "completed", False)
    (item,) = reply["output"]
    assert item["content"][0]["text"] == TEXT
    assert reply["usage"]["input_tokens_details"]["cached_tokens"] == 2
    assert (reply["metadata"], reply["instructions"]) == ({"a": "b"}, "Be brief.")


def test_a_response_in_events(served: Served) -> None:
    found = events(post(served, "responses", {"model": MODEL, "input": "hi", "stream": True}))
    kinds = [e["type"].removeprefix("response.") for e in found]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    assert "".join(e["delta"] for e in found if e["type"].endswith("text.delta")) == TEXT
    whole = found[-1]["response"]
    assert whole["output"][0]["content"][0]["text"] == TEXT
    assert whole["id"] == found[0]["response"]["id"]
    assert whole["edgewise"]["route"] == "local"


def test_a_cut_response_is_incomplete_and_calls_are_items(served: Served) -> None:
    cut = post(served, "responses", {"model": MODEL, "input": "x", "max_output_tokens": 1}).json()
    assert (cut["status"], cut["incomplete_details"]["reason"]) == (
        "incomplete",
        "max_output_tokens",
    )
    tools = [{"type": "function", "name": "look"}]
    body = {"model": MODEL, "input": "x", "tools": tools, "tool_choice": "required"}
    assert post(served, "responses", body).json()["output"][-1]["type"] == "function_call"
    kinds = [e["type"] for e in events(post(served, "responses", {**body, "stream": True}))]
    assert "response.function_call_arguments.done" in kinds
    assert post(served, "responses", body).json()["parallel_tool_calls"] is False
    several = {**body, "parallel_tool_calls": True}
    assert post(served, "responses", several).json()["parallel_tool_calls"] is True

    free = post(served, "responses", {"model": MODEL, "input": "x", "tools": tools}).json()
    assert free["parallel_tool_calls"] is True


# -- the rest -------------------------------------------------------------------------------------


def test_models_by_id_name_and_fingerprint(served: Served) -> None:
    (card,) = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert (card["id"], card["object"]) == (MODEL, "model")
    for name in (MODEL, "Fake 1B", FINGERPRINT, FINGERPRINT[:12]):
        assert httpx.get(f"{served.url}/v1/models/{name}").json() == card
        assert chat(served, model=name).status_code == 200
    for name in ("gpt-4", FINGERPRINT[:11], ""):
        assert code(chat(served, model=name)) == (404, "model-not-found")
    assert code(httpx.get(f"{served.url}/v1/models/gpt-4")) == (404, "model-not-found")


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("smollm2-135m-instruct", "smollm2-135m-instruct"),
        ("file:/home/me/a model.gguf", "fake-1b"),
        ("hf:owner/name", "fake-1b"),
        ("https://example.org/model.gguf", "fake-1b"),
    ],
)
def test_a_model_is_called_what_it_was_fetched_by(
    monkeypatch: pytest.MonkeyPatch, reference: str, name: str
) -> None:
    monkeypatch.setattr(FakeBundle.deployment.checkpoint, "reference", reference)
    assert model_id(FakeBundle()) == name  # type: ignore[arg-type]


def test_health_and_readiness(served: Served) -> None:
    assert httpx.get(f"{served.url}/healthz").json() == {"status": "ok"}
    ready = httpx.get(f"{served.url}/readyz").json()
    assert (ready["status"], ready["running"], ready["queued"]) == ("ready", 0, 0)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/nothing", (404, "route-unknown")),
        ("GET", "/v1/", (404, "route-unknown")),
        ("GET", "/v1/models/", (404, "model-not-found")),
        ("POST", "/v1/models", (405, "method-unsupported")),
        ("GET", "/v1/chat/completions", (405, "method-unsupported")),
        ("OPTIONS", "/v1/chat/completions", (405, "method-unsupported")),
        ("DELETE", "/v1/responses/resp_1", (404, "route-unknown")),
    ],
)
def test_unknown_paths_and_methods(
    served: Served, method: str, path: str, expected: tuple[int, str]
) -> None:
    reply = httpx.request(method, served.url + path)
    assert code(reply) == expected
    if expected[0] == 405:
        assert reply.headers["allow"]


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "",
        "application/x-www-form-urlencoded",
        "application/json; charset=latin-1",
        "application/jsonx",
    ],
)
def test_only_json_is_taken(served: Served, content_type: str) -> None:
    reply = httpx.post(
        f"{served.url}/v1/chat/completions", content=b"{}", headers={"content-type": content_type}
    )
    assert code(reply) == (415, "content-type-unsupported")


def test_a_compressed_body_is_refused(served: Served) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    reply = httpx.post(f"{served.url}/v1/chat/completions", content=b"{}", headers=headers)
    assert code(reply) == (415, "content-type-unsupported")


def test_other_hosts_and_web_pages_are_refused(served: Served) -> None:
    for headers, expected in (
        ({"host": "evil.example"}, "host-refused"),
        ({"origin": "https://evil.example"}, "origin-refused"),
        ({"sec-fetch-site": "cross-site"}, "origin-refused"),
    ):
        reply = httpx.get(f"{served.url}/v1/models", headers=headers)
        assert code(reply) == (403, expected)
        assert "access-control-allow-origin" not in reply.headers


def test_the_log_has_no_content(served: Served) -> None:
    post(
        served,
        "chat/completions?secret",
        {"model": MODEL, "messages": [{"role": "user", "content": "a secret"}], "secret": 1},
    )
    httpx.get(f"{served.url}/secret/path")
    httpx.get(f"{served.url}/v1/models/secret")
    assert not [line for line in served.lines if "secret" in line]
    assert any(line.startswith("POST /v1/chat/completions 200 ") for line in served.lines)
    routed = [line for line in served.lines if line.startswith("POST /v1/chat/completions 200 ")]
    assert all(line.endswith(" ms local") for line in routed)


# -- servers of their own -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (declined("data-class-allowed"), (403, "declined-by-policy")),
        (declined("memory"), (503, "declined-by-state")),
        (failed("par"), (500, "worker-crashed")),
        (completed("par", 1, finish=FinishReason.DEADLINE), (504, "deadline-exceeded")),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_answer_is_an_http_error(
    outcome: Outcome, expected: tuple[int, str], stream: bool
) -> None:
    with serving(FakeSession(script=lambda _request: outcome)) as served:
        reply = chat(served, stream=stream)
        assert code(reply) == expected
        if expected[0] != 500:
            return
        assert reply.json()["error"]["edgewise"]["partial_text"] == "par"


def test_a_request_that_the_engine_refuses_is_the_clients_error() -> None:
    def script(_request: Request) -> Outcome:
        raise InputError("prompt-too-long", "too long", hint="shorten it")

    with serving(FakeSession(script=script)) as served:
        reply = chat(served, stream=True)
        assert code(reply) == (400, "prompt-too-long")
        assert reply.json()["error"]["edgewise"]["hint"] == "shorten it"


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
def test_an_error_after_the_first_text_is_no_normal_end(path: str) -> None:
    session = FakeSession(("word ",) * 2000, step_s=0.002)
    body: dict[str, Any] = {"model": MODEL, "stream": True, "edgewise": {"deadline_s": 0.1}}
    own: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": USER},
        "completions": {"prompt": "x"},
        "responses": {"input": "x"},
    }
    body |= own[path]
    with serving(session) as served:
        found = events(post(served, path, body))
    text = json.dumps(found)
    assert "[DONE]" not in text
    assert '"finish_reason": "' not in text
    if path == "responses":
        assert found[-2]["type"] == "error"
        assert (found[-1]["type"], found[-1]["response"]["status"]) == (
            "response.failed",
            "failed",
        )
    else:
        assert found[-1]["error"]["code"] == "deadline-exceeded"
        assert found[-1]["error"]["edgewise"]["partial_text"].startswith("word ")


def test_a_full_queue_is_429_with_retry_after() -> None:
    session = FakeSession(("word ",) * 2000, step_s=0.001)
    limits = Limits(queue_max=1, queue_per_client_max=1, grace_s=0.2)
    with serving(session, limits=limits) as served:
        threads = [threading.Thread(target=chat, args=(served,)) for _ in range(2)]
        for thread, place in zip(threads, ("running", "queued"), strict=True):
            thread.start()
            wait_for(functools.partial(holds_one, served, place))
        reply = chat(served)
        assert code(reply) == (429, "queue-full")
        assert int(reply.headers["retry-after"]) >= 1
        served.server.stop()
        for thread in threads:
            thread.join()


def test_the_named_user_is_a_client_of_its_own() -> None:
    session = FakeSession(("word ",) * 2000, step_s=0.001)
    limits = Limits(queue_max=4, queue_per_client_max=1, grace_s=0.2)
    with serving(session, limits=limits) as served:
        threads = [
            threading.Thread(target=chat, args=(served,), kwargs={"user": user})
            for user in ("ann", "ben", "cem")
        ]
        for thread in threads:
            thread.start()
        wait_for(lambda: ready(served)["queued"] == 2)
        served.server.stop()
        for thread in threads:
            thread.join()


def test_a_token_is_asked_for_everywhere_but_on_health() -> None:
    with serving(FakeSession(), token=TOKEN) as served:
        good = {"authorization": f"Bearer {TOKEN}"}
        for path in ("/v1/models", "/openapi.json", "/", "/nothing"):
            reply = httpx.get(served.url + path)
            assert code(reply) == (401, "token-refused")
            assert reply.headers["www-authenticate"] == "Bearer"
            assert httpx.get(served.url + path, headers=good).status_code != 401
        for path in ("/healthz", "/readyz"):
            assert httpx.get(served.url + path).status_code == 200
        bad = {"authorization": "Bearer wrong"}
        assert httpx.get(f"{served.url}/v1/models", headers=bad).status_code == 401


def test_an_allowed_origin_gets_the_headers_and_a_preflight() -> None:
    origin = "https://app.example"
    with serving(FakeSession(), origins=frozenset({origin}), token=TOKEN) as served:
        ask = {"origin": origin, "access-control-request-method": "POST"}
        reply = httpx.options(f"{served.url}/v1/chat/completions", headers=ask)
        assert reply.status_code == 204
        assert reply.headers["access-control-allow-origin"] == origin
        assert "authorization" in reply.headers["access-control-allow-headers"]
        refused = httpx.get(f"{served.url}/v1/models", headers={"origin": origin})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == origin
        other = httpx.options(f"{served.url}/v1/models", headers={**ask, "origin": "https://b.c"})
        assert code(other) == (403, "origin-refused")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_beyond_the_limit_is_refused_and_said(chunked: bool) -> None:
    limits = Limits(body_max_bytes=1000, grace_s=0.2)
    big = json.dumps({"model": MODEL, "messages": USER, "user": "x" * 100_000}).encode()

    def pieces() -> Iterator[bytes]:
        for i in range(0, len(big), 999):
            yield big[i : i + 999]

    with serving(FakeSession(), limits=limits) as served:
        reply = httpx.post(
            f"{served.url}/v1/chat/completions",
            content=pieces() if chunked else big,
            headers={"content-type": "application/json"},
        )
        assert code(reply) == (413, "body-too-large")
        assert chat(served).status_code == 200


def test_a_client_that_goes_away_frees_the_engine_for_the_next() -> None:
    session = FakeSession(("word ",) * 2000, step_s=0.001)
    with serving(session) as served:
        body = {"model": MODEL, "messages": USER, "stream": True}
        with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body) as reply:
            next(reply.iter_lines())
        wait_for(lambda: session.cancelled == 1)
        assert chat(served, max_tokens=3).status_code == 200
        # The same where nothing has been written yet.
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{served.url}/v1/chat/completions",
                json={"model": MODEL, "messages": USER},
                timeout=0.2,
            )
        wait_for(lambda: session.cancelled == 2)
        wait_for(lambda: sum("client-gone" in line for line in served.lines) == 2)
