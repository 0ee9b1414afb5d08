"""A session without a model, and servers over it: what the protocol tests talk to."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from edgewise.core.outcome import (
    Completed,
    Declined,
    Event,
    Failed,
    FinishReason,
    Outcome,
    Provenance,
    Route,
    RouteDecision,
    RuleResult,
    Timings,
    TokenCounts,
    TokenLogprob,
)
from edgewise.core.quantity import Measured
from edgewise.core.release import Released
from edgewise.core.request import Request
from edgewise.core.signals import Signals, TokenSignals
from edgewise.core.tools import ToolCall
from edgewise.errors import AdapterError, InputError
from edgewise.run.messages import Chunk
from edgewise.serve.elsewhere import Routing
from edgewise.serve.guard import Guard
from edgewise.serve.limits import Limits
from edgewise.serve.server import ApiServer

FINGERPRINT = "f0" * 32
MODEL = "fake-1b"


class _Text(msgspec.Struct):
    name: str = "fake"
    version: str = "1.0"


class FakeBundle:
    """What the server reads of a bundle."""

    model = "Fake 1B"
    fingerprint = FINGERPRINT

    class deployment:  # noqa: N801 - stands for a value
        runtime = _Text()

        class checkpoint:  # noqa: N801
            reference = "file:/somewhere/fake.gguf"

        class compute:  # noqa: N801
            class run_config:  # noqa: N801
                context_length = 2048


def provenance(
    route: Route = Route.LOCAL,
    rules: tuple[RuleResult, ...] = (),
    reasons: tuple[str, ...] = ("ok",),
) -> Provenance:
    return Provenance(
        route=RouteDecision(route=route, reasons=reasons, rules=rules, policy_version="test@1"),
        fingerprint=FINGERPRINT,
        policy_version="test@1",
        runtime="fake 1.0",
        device="d" * 64,
        template="fake",
    )


def timings() -> Timings:
    one = Measured(value=1.0, source="fake clock")
    return Timings(
        queue_ms=one, prefill_ms=one, ttft_ms=one, decode_ms=one, total_ms=one, decode_tok_s=one
    )


def completed(
    text: str, n: int, *, finish: FinishReason = FinishReason.STOP, **fields: Any
) -> Completed:
    return Completed(
        text=text,
        finish=finish,
        tokens=TokenCounts(prompt=5, reused=2, completion=n),
        timings=timings(),
        provenance=provenance(),
        **fields,
    )


def declined(*rules: str) -> Declined:
    denied = tuple(RuleResult(rule=rule, verdict="denies", reason=f"no: {rule}") for rule in rules)
    reasons = tuple(rule.reason for rule in denied)
    return Declined(reasons=reasons, provenance=provenance(Route.DECLINE, denied, reasons))


def failed(partial: str = "") -> Failed:
    error = AdapterError("worker-crashed", "the worker ended with signal SIGSEGV", retryable=True)
    return Failed(error=error.to_dict(), partial_text=partial, provenance=provenance())


def logprob(data: bytes, *, first: bool = False, top: int = 0) -> TokenLogprob:
    rivals = tuple((i, bytes([97 + i]), -1.0 - i) for i in range(top))
    return TokenLogprob(id=data[0], data=data, logprob=None if first else -0.5, top=rivals)


def signals(entropy: float, finish: FinishReason) -> Signals:
    raw = TokenSignals(
        tokens=3,
        entropy_mean=entropy,
        entropy_max=entropy,
        margin_mean=1.0,
        margin_min=0.5,
        margin_first=1.0,
        logprob_mean=-0.5,
        logprob_min=-1.0,
    )
    name: Any = finish.value
    return Signals(raw=raw, finish=name, prompt_tokens=5, context_tokens=2048, taken_ms=0.1)


class FakeSession:
    """Answers ``words``, a chunk each, ``step_s`` apart; notes what it was asked.

    ``script`` may answer in its place: a function of the request that returns an outcome, raises,
    or returns ``None`` for the usual answer. ``entropy`` is how unsure it says to have been, where
    signals are asked for.
    """

    def __init__(
        self,
        words: tuple[str, ...] = ("Hel", "lo ", "w\u00f6rld"),
        *,
        step_s: float = 0.0,
        load_s: float = 0.0,
        entropy: float = 0.5,
        script: Callable[[Request], Outcome | None] = lambda _request: None,
    ) -> None:
        self.entropy = entropy
        self.bundle: Any = FakeBundle()
        self.words = words
        self.step_s = step_s
        self.load_s = load_s
        self.script = script
        self.asked: list[Request] = []
        self.running = 0
        self.cancelled = 0
        self.closed = False
        self.resident = False
        self.released = 0
        self._cancel = threading.Event()
        self._generating = False

    def ask(self, request: Request, *, on_chunk: Callable[[Chunk], None] | None = None) -> Outcome:
        self.asked.append(request)
        self.running += 1
        assert self.running == 1, "one request at a time"
        try:
            time.sleep(self.load_s)
            self.resident = True
            return self.script(request) or self._answer(request, on_chunk)
        finally:
            self._generating = False
            self.running -= 1

    def _answer(self, request: Request, on_chunk: Callable[[Chunk], None] | None) -> Outcome:
        self._cancel.clear()
        self._generating = True
        until = None if request.deadline_s is None else time.monotonic() + request.deadline_s
        said: list[str] = []
        tokens: list[TokenLogprob] = []
        most = len(self.words) if request.max_tokens is None else request.max_tokens
        finish = FinishReason.STOP if most >= len(self.words) else FinishReason.LENGTH
        for word in self.words[:most]:
            if self._cancel.wait(self.step_s):
                self.cancelled += 1
                finish = FinishReason.CANCELLED
                break
            if until is not None and time.monotonic() > until:
                finish = FinishReason.DEADLINE
                break
            new: tuple[TokenLogprob, ...] = ()
            if request.logprobs is not None:
                new = (logprob(word.encode(), top=request.logprobs),)
            said.append(word)
            tokens += new
            if on_chunk is not None:
                on_chunk(Chunk(text=word, logprobs=new))
        calls: tuple[ToolCall, ...] = ()
        if request.tools and request.tool_choice.mode == "required":
            calls = (ToolCall(id="call_1", name=request.tools[0].name, arguments='{"a":1}'),)
            finish = FinishReason.TOOL_CALLS
        return completed(
            "".join(said),
            len(said),
            finish=finish,
            logprobs=tuple(tokens),
            prompt_logprobs=_prompt_logprobs(request),
            tool_calls=calls,
            signals=signals(self.entropy, finish) if request.signals else None,
            events=(Event(code="token-counts-unknown", message="only an example"),),
        )

    def release(self, *, budget_s: float = 0.0) -> Released:
        if self.running:
            raise InputError("session-busy", "it answers")
        self.resident = False
        self.released += 1
        size = Measured(value=1 << 20, source="fake")
        return Released(resident_bytes=size, anonymous_bytes=size, ms=budget_s)

    def cancel(self) -> None:
        if self._generating:  # as in a session: there is nothing to cancel while it loads
            self._cancel.set()

    def close(self) -> None:
        self.closed = True
        self._cancel.set()


def _prompt_logprobs(request: Request) -> tuple[TokenLogprob, ...]:
    if not request.echo:
        return ()
    prompt = request.prompt
    if isinstance(prompt, str):
        pieces = [piece.encode() for piece in prompt]
    else:
        pieces = [bytes([97 + token % 26]) for token in prompt or ()]
    top = request.logprobs or 0
    return tuple(logprob(p, first=i == 0, top=top) for i, p in enumerate(pieces))


class Served:
    """A server in a thread of this process."""

    def __init__(self, server: ApiServer, lines: list[str]) -> None:
        self.server = server
        self.lines = lines
        self.url = server.url
        self.port = server.port


@contextlib.contextmanager
def serving(
    *sessions: Any,
    limits: Limits | None = None,
    token: str | None = None,
    origins: frozenset[str] = frozenset(),
    prewarm: bool = False,
    routing: Routing | None = None,
) -> Iterator[Served]:
    """Run a server over sessions until the block ends."""
    lines: list[str] = []
    guard = Guard(host="127.0.0.1", token=token, origins=origins)
    server = ApiServer(
        sessions or (FakeSession(),),
        guard=guard,
        limits=limits or Limits(grace_s=1.0),
        routing=routing,
        log=lines.append,
    )
    ready = threading.Event()
    thread = threading.Thread(
        target=server.run, kwargs={"prewarm": prewarm, "on_ready": lambda _ready: ready.set()}
    )
    thread.start()
    try:
        assert ready.wait(10), lines
        yield Served(server, lines)
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive(), "the server does not stop"


def wait_for(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait until a condition of another thread holds."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it does not come to pass"
        time.sleep(0.002)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
