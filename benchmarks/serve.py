"""Run ``benchmarks/serve.toml``: what the server costs, and how it treats many clients.

Usage: python -m benchmarks.serve [--load-s SECONDS] [--only overhead]

Keep the machine quiet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psutil

from benchmarks.setup import read_results, read_scenario, ready_context, spread, write_results
from edgewise.core.outcome import Completed
from edgewise.core.request import Message, Request
from edgewise.run.session import Session
from edgewise.workflow.opening import open_session

_TIMEOUT_S = 300.0


def main() -> None:
    """Measure and write the results; fail when a request did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load-s", type=float)
    parser.add_argument("--only", choices=["overhead"], help="What is known of the rest stays.")
    options = parser.parse_args()
    scenario = read_scenario("serve")
    scenario["load_s"] = options.load_s or scenario["load_s"]
    with ready_context(scenario) as context:
        with served(str(context.home.root)) as (process, url), open_session(context) as session:
            found = {"overhead": overhead(session, url, scenario)}
            if options.only is None:
                found["cancel"] = cancels(url, scenario)
                found["load"] = asyncio.run(load(process, url, scenario))
            else:
                found = read_results("serve") | found
            found["fingerprint"] = session.bundle.fingerprint
        found["device"] = context.device.digest
    write_results("serve", found, scenario)
    print(json.dumps(found, indent=1), file=sys.stderr)
    if found["load"]["errors"]:
        sys.exit(f"requests failed: {found['load']['errors']}")


@contextmanager
def served(home: str, *arguments: str) -> Iterator[tuple[psutil.Process, str]]:
    """Give a running server's process and address."""
    command = [sys.executable, "-m", "edgewise.cli", "serve", "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, "--prefix-memory", "0", *arguments],
        env={**os.environ, "EDGEWISE_HOME": home},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        yield psutil.Process(process.pid), ready["url"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def overhead(session: Session, url: str, scenario: dict[str, Any]) -> dict[str, Any]:
    """Return time to the first text and decode rate of both ways, in turn."""
    ttft: dict[str, list[float]] = {"session": [], "server": []}
    decode: dict[str, list[float]] = {"session": [], "server": []}
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as client:
        for number in range(scenario["pairs"] + 1):
            if number % 2:  # neither is always the one that comes after the other
                by_server = from_server(client, scenario)
                by_session = from_session(session, scenario)
            else:
                by_session = from_session(session, scenario)
                by_server = from_server(client, scenario)
            if number:  # the first of each is cold
                for name, (first, rest) in (("session", by_session), ("server", by_server)):
                    ttft[name].append(first)
                    decode[name].append(rest)
    pairs = list(zip(ttft["server"], ttft["session"], strict=True))
    rates = list(zip(decode["session"], decode["server"], strict=True))
    return {
        "ttft_ms": {name: spread(values) for name, values in ttft.items()},
        "decode_ms": {name: spread(values) for name, values in decode.items()},
        "ttft_added_ms": spread([a - b for a, b in pairs]),
        "decode_ratio": spread([a / b for a, b in rates]),
    }


def from_session(session: Session, scenario: dict[str, Any]) -> tuple[float, float]:
    """Return milliseconds to the first text and from there to the end."""
    started = time.perf_counter()
    first: list[float] = []
    request = Request(
        messages=(Message(role="user", content=scenario["prompt"]),),
        max_tokens=scenario["max_tokens"],
    )
    outcome = session.ask(request, on_text=lambda _: first or first.append(time.perf_counter()))
    ended = time.perf_counter()
    if not isinstance(outcome, Completed):
        sys.exit(f"no answer: {outcome}")
    return (first[0] - started) * 1e3, (ended - first[0]) * 1e3


def from_server(client: httpx.Client, scenario: dict[str, Any]) -> tuple[float, float]:
    """Return the same of a stream."""
    started, first = time.perf_counter(), 0.0
    with client.stream("POST", "/v1/chat/completions", json=body(scenario)) as reply:
        for line in reply.iter_lines():
            if not first and '"content"' in line:
                first = time.perf_counter()
    return (first - started) * 1e3, (time.perf_counter() - first) * 1e3


def body(scenario: dict[str, Any]) -> dict[str, Any]:
    """Return the request of the scenario."""
    return {
        "model": scenario["model"],
        "messages": [{"role": "user", "content": scenario["prompt"]}],
        "max_tokens": scenario["max_tokens"],
        "stream": True,
    }


def cancels(url: str, scenario: dict[str, Any]) -> dict[str, Any]:
    """Return how much later a request is answered when another was broken off just before.

    ``freed_ms`` is the difference of the medians: how long the engine went on with what nobody
    wanted any more.
    """
    short, found = {**scenario, "max_tokens": 1}, {}
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as client:
        for phase, leave in (("decode", leave_in_decode), ("prefill", leave_in_prefill)):
            alone: list[float] = []
            after: list[float] = []
            for number in range(scenario["cancels"]):
                # Either time the cache holds something else, so that as much is evaluated.
                from_server(client, {**short, "prompt": f"Number {number}, and something else."})
                alone.append(from_server(client, short)[0])
                leave(url, scenario, number)
                after.append(from_server(client, short)[0])
            found[phase] = {
                "ttft_alone_ms": spread(alone),
                "ttft_after_ms": spread(after),
                "freed_ms": statistics.median(after) - statistics.median(alone),
            }
    return found


def leave_in_decode(url: str, scenario: dict[str, Any], number: int) -> None:
    """Ask for a long answer and go away after its first pieces."""
    long = {**scenario, "prompt": f"Count from {number} to 5000.", "max_tokens": 1500}
    with (
        httpx.Client(base_url=url, timeout=_TIMEOUT_S) as leaving,
        leaving.stream("POST", "/v1/chat/completions", json=body(long)) as reply,
    ):
        lines = reply.iter_lines()
        for _ in range(12):
            next(lines)


def leave_in_prefill(url: str, scenario: dict[str, Any], number: int) -> None:
    """Ask with a long prompt and go away while it is evaluated."""
    words = " ".join(f"{number * 31 + n} apples" for n in range(300))
    asked = json.dumps(body({**scenario, "prompt": words, "max_tokens": 1})).encode()
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port or 80)) as leaving:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.host}:{address.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(asked)}\r\n\r\n"
        )
        leaving.sendall(head.encode() + asked)
        time.sleep(scenario["prefill_s"])


async def load(process: psutil.Process, url: str, scenario: dict[str, Any]) -> dict[str, Any]:
    """Return answers per client, errors and memory under many streams."""
    until = time.monotonic() + scenario["load_s"]
    answers = [0] * scenario["clients"]
    errors: list[str] = []
    memory: list[int] = []

    async def client(number: int) -> None:
        headers = {"user-agent": f"client-{number}"}
        async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, headers=headers) as http:
            while time.monotonic() < until:
                asked = {
                    "model": scenario["model"],
                    "messages": [
                        {"role": "user", "content": f"Tell me about the number {number}."}
                    ],
                    "max_tokens": scenario["load_max_tokens"],
                    "stream": True,
                }
                async with http.stream("POST", "/v1/chat/completions", json=asked) as reply:
                    text = "".join([line async for line in reply.aiter_lines()])
                if reply.status_code == 200 and text.endswith("[DONE]"):
                    answers[number] += 1
                else:
                    errors.append(f"{reply.status_code}: {text[-200:]}")

    async def watch() -> None:
        while time.monotonic() < until:
            family = [process, *process.children(recursive=True)]
            memory.append(sum(one.memory_info().rss for one in family))
            await asyncio.sleep(2)

    await asyncio.gather(watch(), *(client(number) for number in range(scenario["clients"])))
    settled = memory[len(memory) // 4 :] or memory
    return {
        "answers_per_client": answers,
        "errors": errors[:10],
        "resident_bytes": {"settled": settled[0], "last": settled[-1], "most": max(settled)},
    }


if __name__ == "__main__":
    main()
