"""OpenAI's own Python client against the server: with a session without a model, and with one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.unit.serve.fakes import (
    MODEL,
    FakeSession,
    Served,
    declined,
    failed,
    serving,
    wait_for,
)

from edgewise.core.outcome import Completed, Outcome
from edgewise.core.request import Message, Request
from edgewise.serve.limits import Limits
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.opening import open_session

USER: list[Any] = [{"role": "user", "content": "Name a fruit."}]
TEXT = "Hello w\u00f6rld"
LONG = ("word ",) * 2000
TOOL: Any = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


def client_of(served: Served, **options: Any) -> OpenAI:
    options = {"api_key": "not-needed", "max_retries": 0, "timeout": 60.0, **options}
    return OpenAI(base_url=f"{served.url}/v1", **options)


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with serving(FakeSession()) as served, client_of(served) as client:
        yield client


def test_chat_whole(client: OpenAI) -> None:
    reply: Any = client.chat.completions.create(
        model=MODEL, messages=USER, logprobs=True, top_logprobs=2, seed=1, temperature=0.5
    )
    assert reply.choices[0].message.content == TEXT
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].logprobs is not None
    assert reply.choices[0].logprobs.content[0].top_logprobs[0].token == "a"
    assert reply.usage.prompt_tokens_details.cached_tokens == 2
    assert reply.model_extra["edgewise"]["route"] == "local"


def test_chat_streamed(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == 3


def test_the_clients_own_accumulator_reads_the_stream(client: OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=USER) as stream:
        texts = [e.delta for e in stream if e.type == "content.delta"]
        whole = stream.get_final_completion()
    assert "".join(texts) == whole.choices[0].message.content == TEXT


def test_tools_and_their_results(client: OpenAI) -> None:
    first: Any = client.chat.completions.create(
        model=MODEL, messages=USER, tools=[TOOL], tool_choice="required"
    )
    (call,) = first.choices[0].message.tool_calls
    assert (call.function.name, first.choices[0].finish_reason) == ("look", "tool_calls")
    # What the client got goes back as it is, with all the nulls that its types have.
    said: Any = first.choices[0].message.model_dump()
    answer: Any = {"role": "tool", "tool_call_id": call.id, "content": "42"}
    second = client.chat.completions.create(
        model=MODEL, messages=[*USER, said, answer], tools=[TOOL]
    )
    assert second.choices[0].message.content == TEXT
    streamed = client.chat.completions.create(
        model=MODEL, messages=USER, tools=[TOOL], tool_choice="required", stream=True
    )
    calls = [c.choices[0].delta.tool_calls for c in streamed if c.choices[0].delta.tool_calls]
    assert calls[0][0].function.arguments == '{"a":1}'


def test_completions_with_echo_and_scores(client: OpenAI) -> None:
    reply: Any = client.completions.create(
        model=MODEL, prompt=["ab", "cd"], max_tokens=0, echo=True, logprobs=2
    )
    for choice, text in zip(reply.choices, ("ab", "cd"), strict=True):
        assert choice.text == text
        assert choice.logprobs.tokens == list(text)
        assert choice.logprobs.token_logprobs == [None, -0.5]
        assert set(choice.logprobs.top_logprobs[1]) == {"a", "b"}
    streamed = client.completions.create(model=MODEL, prompt="x", stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == TEXT


def test_responses_whole_and_streamed(client: OpenAI) -> None:
    reply = client.responses.create(model=MODEL, input="hi", instructions="Be brief.")
    assert (reply.output_text, reply.status) == (TEXT, "completed")
    history: Any = [
        {"role": "user", "content": "hi"},
        *[item.model_dump(exclude_none=True) for item in reply.output],
        {"role": "user", "content": "more"},
    ]
    again = client.responses.create(model=MODEL, input=history)
    assert again.output_text == TEXT
    with client.responses.stream(model=MODEL, input="hi") as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        whole = stream.get_final_response()
    assert "".join(deltas) == whole.output_text == TEXT


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list()
    assert model.id == MODEL
    assert client.models.retrieve(model.id).owned_by == "local"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model-not-found"


def test_a_refused_parameter_is_named(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=USER, presence_penalty=0.5)
    assert (caught.value.code, caught.value.param) == ("parameter-unsupported", "presence_penalty")
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input="x", store=True)
    assert caught.value.param == "store"


def test_errors_have_the_clients_own_types() -> None:
    outcomes: list[Outcome] = [declined("task-allowed"), declined("memory"), failed()]
    with (
        serving(FakeSession(script=lambda _request: outcomes.pop(0))) as served,
        client_of(served) as client,
    ):
        for kind, code in (
            (openai.PermissionDeniedError, "declined-by-policy"),
            (openai.InternalServerError, "declined-by-state"),
            (openai.InternalServerError, "worker-crashed"),
        ):
            with pytest.raises(kind) as caught:
                client.chat.completions.create(model=MODEL, messages=USER)
            assert caught.value.code == code


def test_a_wrong_token_is_an_authentication_error() -> None:
    token = "correct-horse-battery"
    with serving(FakeSession(), token=token) as served:
        with client_of(served) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with client_of(served, api_key=token) as client:
            assert client.models.list().data[0].id == MODEL


def test_an_error_in_the_stream_is_raised_not_swallowed() -> None:
    session = FakeSession(LONG, step_s=0.002)
    with serving(session) as served, client_of(served) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=USER, stream=True, extra_body={"edgewise": {"deadline_s": 0.1}}
        )
        finishes: list[Any] = []
        with pytest.raises(openai.APIError, match="deadline"):
            finishes.extend(chunk.choices[0].finish_reason for chunk in stream)
        assert set(finishes) == {None}


def test_closing_the_stream_cancels_and_the_next_is_answered() -> None:
    session = FakeSession(LONG, step_s=0.002)
    with serving(session) as served, client_of(served) as client:
        stream = client.chat.completions.create(model=MODEL, messages=USER, stream=True)
        next(iter(stream))
        stream.close()
        wait_for(lambda: session.cancelled == 1)
        again = client.chat.completions.create(model=MODEL, messages=USER, max_tokens=2)
        assert again.choices[0].finish_reason == "length"


def test_many_clients_at_once_get_each_its_own_answer() -> None:
    def script(asked: Request) -> None:
        session.words = tuple(f"{asked.messages[-1].content} {i};" for i in range(5))

    session = FakeSession(step_s=0.001, script=script)

    async def ask(client: openai.AsyncOpenAI, name: str) -> str:
        messages: Any = [{"role": "user", "content": name}]
        stream = await client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, user=name
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def main(served: Served) -> list[str]:
        url = f"{served.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, f"client{i}") for i in range(16)))

    with serving(session, limits=Limits(grace_s=1.0)) as served:
        found = asyncio.run(main(served))
    assert found == ["".join(f"client{i} {n};" for n in range(5)) for i in range(16)]


# -- a real model ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(ready_home: Path) -> Iterator[tuple[OpenAI, Served, str]]:
    with (
        open_session(Context(Home(ready_home))) as session,
        serving(session, prewarm=True) as served,
        client_of(served) as client,
    ):
        yield client, served, client.models.list().data[0].id


@pytest.mark.model
def test_a_real_answer_is_the_sessions_own(
    real: tuple[OpenAI, Served, str], ready_home: Path
) -> None:
    client, _, model = real
    reply = client.chat.completions.create(model=model, messages=USER, max_tokens=16)
    streamed = client.chat.completions.create(
        model=model, messages=USER, max_tokens=16, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    with open_session(Context(Home(ready_home))) as session:
        asked = Request(messages=(Message(role="user", content="Name a fruit."),), max_tokens=16)
        outcome = session.ask(asked)
    assert isinstance(outcome, Completed)
    assert reply.choices[0].message.content == text == outcome.text
    assert reply.usage.completion_tokens == outcome.tokens.completion
    assert reply.system_fingerprint == outcome.provenance.fingerprint


@pytest.mark.model
def test_a_real_stop_a_real_seed_and_a_real_limit(real: tuple[OpenAI, Served, str]) -> None:
    client, _, model = real

    def ask(**fields: Any) -> Any:
        return client.chat.completions.create(model=model, messages=USER, **fields).choices[0]

    assert ask(max_tokens=3).finish_reason == "length"
    whole = ask(max_tokens=16).message.content
    stopped = ask(max_tokens=16, stop=[whole[6:9]])
    assert stopped.finish_reason == "stop"
    assert whole.startswith(stopped.message.content)
    one, two = (ask(max_tokens=12, temperature=1.0, seed=5).message.content for _ in range(2))
    assert one == two


@pytest.mark.model
def test_real_scores_sum_up(real: tuple[OpenAI, Served, str]) -> None:
    client, _, model = real
    prompts = ["The capital of France is Paris", "The capital of France is xylophone"]
    reply: Any = client.completions.create(
        model=model, prompt=prompts, max_tokens=0, echo=True, logprobs=1
    )
    sums = []
    for choice, prompt in zip(reply.choices, prompts, strict=True):
        scores = choice.logprobs.token_logprobs
        assert choice.text == prompt
        assert scores[0] is None
        assert all(math.isfinite(score) and score <= 0 for score in scores[1:])
        sums.append(sum(scores[1:]))
    assert sums[0] > sums[1]


@pytest.mark.model
def test_closing_a_real_stream_frees_the_engine(real: tuple[OpenAI, Served, str]) -> None:
    client, served, model = real
    messages: Any = [{"role": "user", "content": "Write a long story about the sea."}]
    stream = client.chat.completions.create(
        model=model, messages=messages, stream=True, max_tokens=400
    )
    next(iter(stream))
    stream.close()
    wait_for(lambda: any("client-gone" in line for line in served.lines), 10)
    again = client.chat.completions.create(model=model, messages=USER, max_tokens=4)
    assert again.usage.completion_tokens == 4


@pytest.mark.model
def test_a_real_prompt_that_is_too_long_is_the_clients_error(
    real: tuple[OpenAI, Served, str],
) -> None:
    client, _, model = real
    messages: Any = [{"role": "user", "content": "word " * 5000}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=messages)
    assert caught.value.code == "prompt-too-long"
