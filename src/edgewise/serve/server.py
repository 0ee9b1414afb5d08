"""The server process: bind, prewarm, serve, and stop in order.

The first signal stops it gently: no new requests, those that wait are turned away, answers that
run may end within the grace time and are cancelled then. A second one ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import uvicorn

from edgewise.core.outcome import Completed
from edgewise.core.quantity import Quantity
from edgewise.core.request import Message, Request
from edgewise.errors import EdgewiseError, InputError, ResourceError
from edgewise.route.policy_standing import PolicyStanding
from edgewise.serve.app import App
from edgewise.serve.connections import connection_type
from edgewise.serve.dispatch import Answering, Dispatcher
from edgewise.serve.elsewhere import Routing
from edgewise.serve.guard import Guard
from edgewise.serve.limits import BACKLOG, Limits, connections_possible
from edgewise.serve.problems import ProblemError, answered

__all__ = ["ApiServer", "Ready"]

_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What a server that is ready says.

    Attributes:
        url: Its address, such as ``http://127.0.0.1:8080``.
        model: The id by which clients call the model.
        fingerprint: The deployment that answers.
        prewarm_ms: What loading the model and answering one token took, if that was done.
        load_ms: The part of it until the model was loaded.
        policy: The policy that routes requests; ``None`` where all is answered here.
    """

    url: str
    model: str
    fingerprint: str
    prewarm_ms: float | None = None
    load_ms: Quantity | None = None
    policy: PolicyStanding | None = None


class ApiServer:
    """Serves the API over sessions of one bundle, until it is told to stop.

    Attributes:
        host: The address that it listens on.
        port: The port, also where the system chose it.
    """

    def __init__(
        self,
        sessions: Sequence[Answering],
        *,
        guard: Guard,
        port: int = 0,
        limits: Limits | None = None,
        routing: Routing | None = None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Bind the address.

        Args:
            sessions: Sessions of the same bundle; each answers one request at a time.
            guard: Who may call, and where the server listens.
            port: The port, or 0 for one that the system chooses.
            limits: Bounds on what clients may take.
            routing: A policy at work; without one, everything is answered here.
            log: Called with a line for each request; never with what somebody wrote.

        Raises:
            InputError: the address is not loopback, and there is no token.
            ResourceError: the address cannot be had.
        """
        self._limits = limits or Limits()
        self._log = log
        self._socket = _bind(guard, port)
        self.host, self.port = self._socket.getsockname()[:2]
        self._bundle = sessions[0].bundle
        judged = None if routing is None else routing.feature.judged
        self._dispatcher = Dispatcher(sessions, self._limits, judged=judged, log=log)
        self._app = App(
            self._bundle, self._dispatcher, guard, self._limits, routing=routing, log=log
        )
        self._server = _Server(self._config())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stops = 0

    @property
    def url(self) -> str:
        """Return the address for clients on this machine."""
        address = ipaddress.ip_address(self.host)
        if address.is_unspecified:
            address = ipaddress.ip_address("::1" if address.version == 6 else "127.0.0.1")
        shown = f"[{address}]" if address.version == 6 else str(address)
        return f"http://{shown}:{self.port}"

    def run(
        self, *, prewarm: bool = False, on_ready: Callable[[Ready], None] = lambda _ready: None
    ) -> None:
        """Serve until a signal or :meth:`stop` ends it; the sessions are closed then.

        Raises:
            EdgewiseError: the model could not be loaded for the prewarming.
        """
        try:
            asyncio.run(self._run(prewarm=prewarm, on_ready=on_ready))
        finally:
            self._dispatcher.close()
            self._socket.close()

    def stop(self) -> None:
        """Stop gently, and at once when called again. Callable from any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(self._on_stop)

    def _config(self) -> uvicorn.Config:
        possible = connections_possible(self._limits.connections_max)
        return uvicorn.Config(
            self._app,
            http=connection_type(self._limits, possible, self._log),
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=self._limits.keep_alive_s,
            timeout_graceful_shutdown=int(self._limits.grace_s) + 2,
            h11_max_incomplete_event_size=self._limits.header_max_bytes,
        )

    async def _run(self, *, prewarm: bool, on_ready: Callable[[Ready], None]) -> None:
        self._loop = asyncio.get_running_loop()
        with self._signals(self._loop):
            ready = Ready(url=self.url, model=self._app.model, fingerprint=self._bundle.fingerprint)
            if prewarm:
                ready = await self._prewarm(ready)
            if self._stops:
                return
            self._server.on_started = lambda: on_ready(ready)
            await self._server.serve(sockets=[self._socket])

    async def _prewarm(self, ready: Ready) -> Ready:
        started = time.perf_counter()
        request = Request(messages=(Message(role="user", content="Hello"),), max_tokens=1)
        ticket = self._dispatcher.submit(request, "prewarm", chunks=False)
        try:
            outcome: Completed = answered(await ticket.result())
        except ProblemError as problem:
            if self._stops:
                return ready
            if self._app.elsewhere is not None and problem.status == 403:
                self._log("not prewarmed: the policy does not let this device answer a chat")
                return ready
            raise problem.error from None
        except EdgewiseError:
            if self._stops:
                return ready
            raise
        return dataclasses.replace(
            ready,
            prewarm_ms=round((time.perf_counter() - started) * 1e3, 1),
            load_ms=outcome.timings.queue_ms,
        )

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        both = (signal.SIGINT, signal.SIGTERM)
        for number in both:
            loop.add_signal_handler(number, self._on_stop)
        try:
            yield
        finally:
            for number in both:
                loop.remove_signal_handler(number)

    def _on_stop(self) -> None:
        self._stops += 1
        if self._stops == 1:
            self._dispatcher.stop()
            if self._app.elsewhere is not None:
                self._app.elsewhere.stop()
            self._server.should_exit = True
            self._ending = asyncio.create_task(self._end_running())
        else:
            self._server.force_exit = True
            self._cancel_running()

    async def _end_running(self) -> None:
        ends = time.monotonic() + (self._limits.grace_s if self._server.started else 0.0)
        # Lanes are threads: what ends in them sets no event here.
        while self._running and time.monotonic() < ends and self._stops == 1:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        self._cancel_running()

    @property
    def _running(self) -> int:
        elsewhere = self._app.elsewhere
        return self._dispatcher.running + (0 if elsewhere is None else elsewhere.running)

    def _cancel_running(self) -> None:
        self._dispatcher.cancel_running()
        if self._app.elsewhere is not None:
            self._app.elsewhere.cancel_running()


class _Server(uvicorn.Server):
    """uvicorn's server with signals left to us."""

    on_started: Callable[[], None] = staticmethod(lambda: None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.on_started()


def _bind(guard: Guard, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            guard.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        bound = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ResourceError(
            "address-unavailable",
            f"cannot listen on {guard.host}:{port}: {error}",
            hint="choose another --port, or 0 for any free one",
        ) from error
    if guard.token is None and not ipaddress.ip_address(bound.getsockname()[0]).is_loopback:
        bound.close()
        raise InputError(
            "token-required",
            f"{guard.host} can be reached from other machines, and there is no token",
            hint="set EDGEWISE_API_TOKEN, give --token-file, or listen on 127.0.0.1",
        )
    return bound
