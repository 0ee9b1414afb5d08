"""One trial of one contender, in a fresh process: prints one JSON object.

Called by :mod:`benchmarks.decode` as ``python -m benchmarks.contenders NAME`` with the settings
as JSON on standard input. Times: ``cold_start_ms`` runs from the start of this process (the
parent's clock) to the first token; ``decode_tok_s`` counts tokens after the first.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

PROSE = (
    "The ferry left the harbour before the sun was up, with nine passengers and a crate of "
    "oranges on deck. Somebody had painted the railing green over the winter, and the wind "
    "carried the smell of it past the wheelhouse. By noon the coast was a grey line. "
)


def edgewise(settings: dict[str, Any]) -> dict[str, Any]:
    """A session on the active bundle, as an application uses it."""
    from edgewise.core.request import Message, Request
    from edgewise.store import Home
    from edgewise.workflow.context import Context
    from edgewise.workflow.opening import open_session

    user = Message(role="user", content=settings["prompt"])
    # Another system message: no prompt token is shared, so nothing warm is measured as cold.
    other = (Message(role="system", content=PROSE * 10), Message(role="user", content="Well?"))
    first: list[float] = []
    with open_session(Context(Home(Path(settings["home"])))) as session:

        def ask(messages: tuple[Message, ...], tokens: int) -> Any:
            request = Request(messages=messages, max_tokens=tokens)
            return session.ask(request, on_text=lambda _: first.append(time.time()))

        ask((user,), 1)
        prefill = ask(other, 1)
        answer = ask((user,), settings["decode_tokens"])
    wall_ms = number(answer.timings.total_ms) - number(answer.timings.ttft_ms)
    evaluated = prefill.tokens.prompt - prefill.tokens.reused
    return {
        "text": answer.text,
        "tokens": answer.tokens.completion,
        "cold_start_ms": (first[0] - settings["started"]) * 1e3,
        "ttft_ms": number(answer.timings.ttft_ms),
        "prefill_tok_s": evaluated / number(prefill.timings.prefill_ms) * 1e3,
        "decode_tok_s": (answer.tokens.completion - 1) / wall_ms * 1e3,
        "peak_rss_bytes": number(answer.memory_peak_bytes["total"]),
    }


def raw(settings: dict[str, Any]) -> dict[str, Any]:
    """The low-level loop alone (engine, argmax, next) in a worker, with Edgewise's settings."""
    import msgspec

    from edgewise.bench.messages import SERVICE, LoopParams, LoopTimes
    from edgewise.core.recipe import RunConfig
    from edgewise.run.messages import Loaded, LoadParams
    from edgewise.runtimes import registry
    from edgewise.runtimes.worker import WorkerProcess

    config = msgspec.convert(settings["run_config"], type=RunConfig)
    adapter = registry.adapter("llamacpp")
    worker = WorkerProcess(SERVICE, environment=adapter.worker_environment(config))
    try:
        worker.call(
            "load",
            LoadParams(runtime="llamacpp", artifact=settings["artifact"], run_config=config),
            Loaded,
        )
        cold = worker.call(
            "loop", LoopParams(prompt=settings["rendered"], decode_tokens=1), LoopTimes
        )
        ready = time.time()
        prefill = worker.call("loop", LoopParams(prompt=PROSE * 10, decode_tokens=1), LoopTimes)
        loop = worker.call(
            "loop",
            LoopParams(prompt=settings["rendered"], decode_tokens=settings["decode_tokens"]),
            LoopTimes,
        )
        peak = number(loop.peak_resident_bytes)
    finally:
        worker.close()
    assert cold.prompt_tokens
    return {
        "text": loop.text,
        "tokens": loop.decoded,
        "cold_start_ms": (ready - settings["started"]) * 1e3,
        "ttft_ms": loop.prefill_ms,
        "prefill_tok_s": prefill.prompt_tokens / prefill.prefill_ms * 1e3,
        "decode_tok_s": (loop.decoded - 1) / loop.decode_ms * 1e3,
        "peak_rss_bytes": peak,
    }


def high_level_threads(settings: dict[str, Any]) -> dict[str, Any]:
    """llama-cpp-python's own class with as many threads as Edgewise uses."""
    return high_level(settings, n_threads=settings["run_config"]["threads"])


def high_level(settings: dict[str, Any], **options: Any) -> dict[str, Any]:
    """llama-cpp-python's own class, everything at its default but the context length."""
    import llama_cpp

    from edgewise.device.process import peak_resident_bytes

    model = llama_cpp.Llama(
        settings["artifact"], n_ctx=settings["context_length"], verbose=False, **options
    )
    clock = time.perf_counter

    def stream(prompt: str, tokens: int) -> tuple[float, float, int, str]:
        model.reset()
        started, points, text = clock(), [], []
        for chunk in model.create_completion(
            prompt, max_tokens=tokens, temperature=0, stream=True, repeat_penalty=1.0
        ):
            points.append(clock())
            text.append(chunk["choices"][0]["text"])
        # The last chunk carries the finish reason, no token.
        count = tokens
        return (points[0] - started) * 1e3, (points[-1] - points[0]) * 1e3, count, "".join(text)

    stream(settings["rendered"], 1)
    ready = time.time()
    prose = PROSE * 10
    count = len(model.tokenize(prose.encode()))
    prefill_ms, _, _, _ = stream(prose, 1)
    ttft_ms, decode_ms, tokens, text = stream(settings["rendered"], settings["decode_tokens"])
    return {
        "text": text,
        "tokens": tokens,
        "cold_start_ms": (ready - settings["started"]) * 1e3,
        "ttft_ms": ttft_ms,
        "prefill_tok_s": count / prefill_ms * 1e3,
        "decode_tok_s": (tokens - 1) / decode_ms * 1e3,
        "peak_rss_bytes": number(peak_resident_bytes()),
    }


def overhead(settings: dict[str, Any]) -> dict[str, Any]:
    """Session and raw loop in one worker, in turn; decode times of each pair in milliseconds."""
    import msgspec

    from edgewise.bench.messages import SERVICE, LoopParams, LoopTimes
    from edgewise.core.bundle import TextSettings
    from edgewise.core.recipe import RunConfig
    from edgewise.core.request import Message, Sampling
    from edgewise.run.messages import Generated, GenerateParams, Loaded, LoadParams, Notice
    from edgewise.runtimes import registry
    from edgewise.runtimes.worker import WorkerProcess

    config = msgspec.convert(settings["run_config"], type=RunConfig)
    tokens = settings["decode_tokens"]
    load = LoadParams(
        runtime="llamacpp",
        artifact=settings["artifact"],
        run_config=config,
        text=msgspec.convert(settings["text"], type=TextSettings),
    )
    request = GenerateParams(
        messages=(Message(role="user", content=settings["prompt"]),),
        max_tokens=tokens,
        sampling=Sampling(),
        stop=(),
        deadline_s=None,
    )
    worker = WorkerProcess(
        SERVICE, environment=registry.adapter("llamacpp").worker_environment(config)
    )
    pairs = []
    try:
        worker.call("load", load, Loaded)
        for _ in range(settings["overhead_pairs"]):
            loop = worker.call(
                "loop", LoopParams(prompt=settings["rendered"], decode_tokens=tokens), LoopTimes
            )
            arrived: list[float] = []
            pending = worker.start("generate", request)
            pending.result(
                Generated,
                notice=Notice,
                on_notice=functools.partial(note_time, arrived),
            )
            # The client's clock, from the first text to the end of the answer.
            pairs.append((loop.decode_ms, (time.perf_counter() - arrived[0]) * 1e3))
    finally:
        worker.close()
    return {"pairs": pairs}


def note_time(times: list[float], _notice: object) -> None:
    """Append the time of now."""
    times.append(time.perf_counter())


def number(quantity: Any) -> float:
    """Return a quantity's value, which must be known here."""
    return float(quantity.number)


CONTENDERS = {
    "edgewise": edgewise,
    "raw": raw,
    "high-level": high_level,
    "high-level-threads": high_level_threads,
    "overhead": overhead,
}


def main() -> None:
    """Run one trial."""
    settings = json.load(sys.stdin)
    result = CONTENDERS[sys.argv[1]](settings)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
