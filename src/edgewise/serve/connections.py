"""Connections: bounded in number, in time and in memory, whatever the other side does.

On top of uvicorn's HTTP/1.1 protocol. A connection has a short time for its headers; one that
reads nothing of its answer is cut; when there are too many, the oldest that has no complete
request goes first, so idle connections never keep a client out.
"""

from __future__ import annotations

import asyncio
import http
import socket
import sys
from collections.abc import Callable
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from edgewise.errors import EdgewiseError, InputError, ResourceError
from edgewise.serve.limits import Limits
from edgewise.serve.problems import ProblemError

__all__ = ["Connection", "connection_type"]

_AHEAD_MAX_BYTES = 64 << 10  # of requests that are sent before the last one was answered
_LINGER_S = 2.0


class Connection(H11Protocol):
    """One connection. Made for one server by :func:`connection_type`."""

    limits: Limits
    connections_max: int
    log: Callable[[str], None]
    # Those without a complete request, the longest idle one first.
    waiting: dict[Connection, None]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._ahead_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection in, in the place of an idle one if need be."""
        super().connection_made(transport)
        # asyncio does it only for sockets that were made with a protocol number. Without it each
        # small write waits for the acknowledgement of the one before, up to 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > self.connections_max and not self._evict():
            self._refuse(
                ResourceError(
                    "connections-full",
                    "too many clients are connected",
                    context={"retry_after_s": 1},
                    retryable=True,
                )
            )
            return
        self.waiting[self] = None
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.waiting.pop(self, None)
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, also while a request is being answered: that is how a hang-up is seen."""
        if self._answering:
            self._ahead_bytes += len(data)
            if self._ahead_bytes > _AHEAD_MAX_BYTES:
                self.transport.abort()
                return
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._answering:
            self.waiting.pop(self, None)
            self.flow.resume_reading()
        if self.conn.their_state is not h11.IDLE:
            self._stop_header_timer()
        elif self._header_timer is None:
            self._await_headers()

    def on_response_complete(self) -> None:
        """Become the youngest of those that wait."""
        self._ahead_bytes = 0
        self.waiting.pop(self, None)
        self.waiting[self] = None
        super().on_response_complete()
        if self.transport.is_closing():
            self.loop.call_later(_LINGER_S, self.transport.abort)

    def pause_writing(self) -> None:
        """Give the client a while to read."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.limits.stall_s, self._stalled)

    def resume_writing(self) -> None:
        """The client reads."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or headers that are too long."""
        cause = sys.exception()
        status = getattr(cause, "error_status_hint", 400)
        reason = str(cause)[:200] if cause is not None else msg
        self._refuse(InputError("http-malformed", f"this is no HTTP request: {reason}"), status)

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None until the first request
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _evict(self) -> bool:
        oldest = next(iter(self.waiting), None)
        if oldest is None:
            return False
        del self.waiting[oldest]
        oldest.transport.abort()
        return True

    def _await_headers(self) -> None:
        self._header_timer = self.loop.call_later(
            self.limits.header_timeout_s, self._headers_missing
        )

    def _headers_missing(self) -> None:
        if self.transport.is_closing():
            return
        self._refuse(
            InputError("http-header-timeout", "the request's headers did not come in time"), 408
        )

    def _stalled(self) -> None:
        self.log("a connection was cut: client-too-slow")
        self.transport.abort()

    def _refuse(self, error: EdgewiseError, status: int | None = None) -> None:
        problem = ProblemError(error)
        status = status or problem.status
        body = msgspec.json.encode(problem.reply)
        headers = [
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            *(f"{name}: {value}" for name, value in problem.headers),
        ]
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            self.transport.write("\r\n".join([*headers, "", ""]).encode() + body)
            self.log(f"- - {status} 0 ms {error.code}")
        self.transport.close()
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_timers(self) -> None:
        self._stop_header_timer()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def connection_type(
    limits: Limits, connections_max: int, log: Callable[[str], None]
) -> type[Connection]:
    """Return the type of the connections of one server."""
    return type(
        "ServerConnection",
        (Connection,),
        {
            "limits": limits,
            "connections_max": connections_max,
            "log": staticmethod(log),
            "waiting": {},
        },
    )
