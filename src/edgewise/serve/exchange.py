"""One request and its answer on the wire: a bounded body in, JSON or a stream of events out."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from edgewise.errors import InputError
from edgewise.serve.limits import Limits
from edgewise.serve.problems import ProblemError

__all__ = ["Exchange", "Pairs"]

Pairs = Sequence[tuple[str, str]]
_encode = msgspec.json.Encoder().encode
# How much of a body that nobody wants is read, so that the client gets to read the refusal.
_DISCARD_FACTOR = 8
_DISCARD_S = 2.0


class Exchange:
    """One HTTP request, its answer, and the client that may go away meanwhile.

    Attributes:
        headers: The request's headers.
        route: The pattern of the path, for the log: a path may hold what somebody wrote.
        status: The answer's status, once it began.
        place: Where it is answered, for the log.
        note: What else the log should say.
        closing: Whether the connection ends with this answer.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        self.headers = Headers(scope=scope)
        self.method: str = scope["method"]
        self.route = "-"
        self.status: int | None = None
        self.place = ""
        self.note = ""
        self.closing = False
        self.extra_headers: list[tuple[str, str]] = []
        self._receive = receive
        self._send = send
        self._limits = limits
        self._unread = self.method not in {"GET", "HEAD"} or bool(
            {"content-length", "transfer-encoding"} & set(self.headers.keys())
        )
        self._id = f"req_{secrets.token_hex(12)}"
        self._started = time.perf_counter()

    @property
    def elapsed_ms(self) -> float:
        """Return the milliseconds since the request's headers were there."""
        return (time.perf_counter() - self._started) * 1e3

    async def json_body(self) -> bytes:
        """Return the body of a request that sends JSON.

        Raises:
            InputError: it is no JSON by its type, too large, or does not come in time.
        """
        kind, _, parameters = self.headers.get("content-type", "").lower().partition(";")
        charset = parameters.strip().replace('"', "").removeprefix("charset=")
        encoded = "content-encoding" in self.headers
        if kind.strip() != "application/json" or charset not in {"", "utf-8", "utf8"} or encoded:
            raise InputError(
                "content-type-unsupported",
                "the body has to be JSON in UTF-8, not compressed",
                hint="send the header Content-Type: application/json",
            )
        return await self._in_time(self._limits.body_max_bytes)

    async def form_body(self, limit_bytes: int) -> bytes:
        """Return the body of a page's form.

        Raises:
            InputError: it is no form by its type, too large, or does not come in time.
        """
        kind = self.headers.get("content-type", "").lower()
        if kind != "application/x-www-form-urlencoded" or "content-encoding" in self.headers:
            raise InputError(
                "content-type-unsupported",
                "the body has to be a form's, not compressed",
                hint="answer with the form of the page",
            )
        return await self._in_time(limit_bytes)

    async def _in_time(self, limit_bytes: int) -> bytes:
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                return await self._read(limit_bytes)
        except TimeoutError:
            raise InputError(
                "body-timeout",
                f"the body did not come within {self._limits.body_timeout_s:g} s",
            ) from None

    async def _read(self, limit: int) -> bytes:
        declared = self.headers.get("content-length")
        if declared is not None and int(declared) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise _too_large(limit)
            more = message.get("more_body", False)
        self._unread = False
        return b"".join(parts)

    async def _discard(self) -> None:
        """Read on what was not read, within bounds: a closed socket would lose the answer."""
        if "expect" in self.headers:
            return  # nothing comes before we say so
        left = self._limits.body_max_bytes * _DISCARD_FACTOR
        try:
            async with asyncio.timeout(_DISCARD_S):
                while left > 0:
                    message = await self._receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        self._unread = message["type"] == "http.disconnect"
                        return
                    left -= len(message.get("body", b""))
        except TimeoutError:
            return

    def watch(self, gone: Callable[[], None]) -> asyncio.Task[None]:
        """Return a task that calls ``gone`` when the client goes away; cancel it at the end."""

        async def wait() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            gone()

        return asyncio.create_task(wait())

    async def reply(self, value: Any, *, status: int = 200, headers: Pairs = ()) -> None:
        """Send a value as JSON."""
        await self.raw(_encode(value), "application/json", status=status, headers=headers)

    async def raw(self, data: bytes, kind: str, *, status: int = 200, headers: Pairs = ()) -> None:
        """Send bytes of a type."""
        length = [("content-length", str(len(data)))] if status != 204 else []
        await self._start(status, [("content-type", kind), *length, *headers])
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def send_problem(self, problem: ProblemError) -> None:
        """Send an error."""
        await self.raw_problem(problem, _encode(problem.reply), "application/json")

    async def raw_problem(
        self, problem: ProblemError, data: bytes, kind: str, *, headers: Pairs = ()
    ) -> None:
        """Send an error in other words."""
        if self._unread:
            await self._discard()
        headers = [*problem.headers, *headers]
        await self.raw(data, kind, status=problem.status, headers=headers)

    async def begin(self, headers: Pairs) -> None:
        """Begin a stream of events."""
        await self._start(
            200,
            [
                ("content-type", "text/event-stream; charset=utf-8"),
                ("x-accel-buffering", "no"),
                *headers,
            ],
        )

    async def write(self, data: bytes) -> None:
        """Send a part of the stream; wait while the client reads too slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End the stream."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.status = status
        general = [
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("x-request-id", self._id),
            *self.extra_headers,
        ]
        if self._unread or self.closing:
            general.append(("connection", "close"))
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in [*headers, *general]]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})


def _too_large(limit: int) -> InputError:
    return InputError(
        "body-too-large",
        f"the body is longer than {limit} bytes",
        context={"limit_bytes": limit},
        hint="send less, or start the server with a larger --max-body",
    )
