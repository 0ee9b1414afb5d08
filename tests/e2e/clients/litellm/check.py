"""LiteLLM against a running server; see ../litellm.md.

Usage: check.py URL MODEL [CHECK...]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch its list of prices

import litellm

URL, MODEL = f"{sys.argv[1]}/v1", sys.argv[2]
TO: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": "not-needed"}
TO |= {"num_retries": 0, "timeout": 600}
USER: list[Any] = [{"role": "user", "content": "Name a fruit."}]
STORY: list[Any] = [{"role": "user", "content": "Tell me a very long story about the sea."}]
FRUIT = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "ripe": {"type": "boolean"}},
    "required": ["name", "ripe"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "keep", "parameters": FRUIT}}

litellm.suppress_debug_info = True
litellm.telemetry = False


def ask(**fields: Any) -> Any:
    return litellm.completion(**{**TO, "messages": USER, "max_tokens": 24, **fields})


def failure(ask_it: Callable[[], object], *kinds: type[Exception]) -> Any:
    try:
        ask_it()
    except kinds as error:
        return error
    raise AssertionError("it was answered")


def chat() -> str:
    reply = ask(seed=1)
    assert reply.usage.completion_tokens <= 24
    assert reply.model_extra["edgewise"]["route"] == "local"
    return str(reply.choices[0].message.content)


def stream() -> str:
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ask().choices[0].message.content
    usage = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    return f"{len(chunks)} chunks, {usage[-1].completion_tokens} tokens, the text of chat"


def scores() -> str:
    (choice,) = ask(logprobs=True, top_logprobs=3).choices
    first = choice.logprobs.content[0]
    assert first.logprob == max(one.logprob for one in first.top_logprobs)
    return f"{len(choice.logprobs.content)} tokens, {len(first.top_logprobs)} rivals each"


def tools() -> str:
    choice = ask(tools=[TOOL], tool_choice="required", max_tokens=64).choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"name", "ripe"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "kept"}
    after = ask(tools=[TOOL], messages=[*USER, choice.message, result])
    assert after.choices[0].message.content
    return f"{call.function.name}({call.function.arguments}), and an answer to its result"


def schema() -> str:
    asked = {"name": "fruit", "schema": FRUIT, "strict": True}
    reply = ask(response_format={"type": "json_schema", "json_schema": asked}, max_tokens=64)
    text = str(reply.choices[0].message.content)
    assert set(json.loads(text)) == {"name", "ripe"}
    return text


def text() -> str:
    told = {**TO, "model": f"text-completion-openai/{MODEL}"}
    reply = litellm.text_completion(**told, prompt="Paris is the capital of", max_tokens=4)
    return str(reply.choices[0].text)


def responses() -> str:
    told = {name: value for name, value in TO.items() if name != "num_retries"}
    reply = litellm.responses(**told, input="Name a fruit.", max_output_tokens=24)
    assert reply.status in {"completed", "incomplete"}
    return str(reply.output[0].content[0].text)


def listed() -> str:
    from litellm.utils import get_valid_models

    found = get_valid_models(
        check_provider_endpoint=True, custom_llm_provider="openai", api_base=URL, api_key="x"
    )
    assert any(MODEL in name for name in found), found
    return ", ".join(found)


def refused() -> str:
    error = failure(lambda: ask(presence_penalty=0.5), litellm.BadRequestError)
    assert "presence_penalty" in str(error)
    return f"{error.status_code}, presence_penalty is named"


def unknown() -> str:
    error = failure(lambda: ask(model="openai/gpt-9"), litellm.NotFoundError)
    return f"{error.status_code}, {type(error).__name__}"


def deadline() -> str:
    late = {"edgewise": {"deadline_s": 1.0}}
    finishes: list[Any] = []

    def read() -> None:
        chunks = ask(messages=STORY, stream=True, max_tokens=2000, extra_body=late)
        finishes.extend(chunk.choices[0].finish_reason for chunk in chunks)

    # LiteLLM wraps what ends a stream midway as a failed fallback.
    kinds = (litellm.APIError, litellm.Timeout, litellm.ServiceUnavailableError)
    error = failure(read, *kinds)
    assert "deadline" in str(error)
    assert set(finishes) <= {None}
    return f"{type(error).__name__} after {len(finishes)} chunks, none with a finish_reason"


def cancelled() -> str:
    async def begin() -> None:
        told = {**TO, "messages": STORY, "max_tokens": 2000, "stream": True}
        reply = await litellm.acompletion(**told)
        async for _ in reply:
            break
        await reply.aclose()

    asyncio.run(begin())
    reply = ask(max_tokens=2)
    return (
        f"the next is answered, after {reply.model_extra['edgewise']['waited_ms']['value']:.0f} ms"
    )


CHECKS: tuple[Callable[[], str], ...] = (
    *(listed, chat, stream, scores, tools, schema, text, responses),
    *(refused, unknown, deadline, cancelled),
)

if __name__ == "__main__":
    for check in CHECKS:
        if not sys.argv[3:] or check.__name__ in sys.argv[3:]:
            print(f"{check.__name__:10} {check()!r}", flush=True)  # noqa: T201
