"""The ASGI application: who may call, the routes, and errors in the API's own shape."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from edgewise.core.bundle import Bundle
from edgewise.core.request import Request
from edgewise.errors import EdgewiseError, InputError
from edgewise.serve.about import VERIFICATION
from edgewise.serve.asking import chat_request, completion_requests
from edgewise.serve.bodies import Body, ChatBody, CompletionBody
from edgewise.serve.bodies_responses import ResponseBody
from edgewise.serve.chat import ChatFrames, chat_reply
from edgewise.serve.clients import client_name
from edgewise.serve.completions import CompletionFrames, completion_reply
from edgewise.serve.consent import ConsentDesk
from edgewise.serve.dispatch import Dispatcher, where_raised
from edgewise.serve.elsewhere import ANSWER, PAGE, Elsewhere, Routing
from edgewise.serve.exchange import Exchange
from edgewise.serve.guard import Guard
from edgewise.serve.json_body import decode
from edgewise.serve.limits import Limits
from edgewise.serve.openapi import document
from edgewise.serve.problems import ProblemError
from edgewise.serve.questions import Questions
from edgewise.serve.rate import RateLimit
from edgewise.serve.replies import ModelAbout, ModelCard, ModelList
from edgewise.serve.responses import ResponseFrames, response_reply, response_request
from edgewise.serve.streaming import Frames, answers, stream
from edgewise.serve.ways import Way, Ways

__all__ = ["App", "model_id"]

Handler = Callable[[Exchange, Scope], Awaitable[None]]
B = TypeVar("B", bound=Body)

_OPEN = frozenset({"/healthz", "/readyz"})  # a supervisor has no token
_FINGERPRINT_CHARACTERS_MIN = 12
_CLIENT = ("authorization", "user-agent")
_PAGE = """Edgewise serves {model} here, with an API that OpenAI's clients can call.
Base URL: /v1 (chat/completions, completions, responses, models)
Description: /openapi.json
"""


class App:
    """The server's routes over one dispatcher."""

    def __init__(
        self,
        bundle: Bundle,
        dispatcher: Dispatcher,
        guard: Guard,
        limits: Limits,
        *,
        routing: Routing | None = None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._bundle = bundle
        self._dispatcher = dispatcher
        self._guard = guard
        self._limits = limits
        self._log = log
        self._rate = RateLimit(limits.requests_per_minute)
        self._since = int(time.time())
        self.elsewhere: Elsewhere | None = None
        self._desk: ConsentDesk | None = None
        if routing is not None:
            questions = Questions()
            self.elsewhere = Elsewhere(routing.feature, questions, limits, log=log)
            self._desk = ConsentDesk(questions, routing.ledger, limits)
        self.model = model_id(bundle)
        self._ways = Ways(dispatcher, bundle.fingerprint, self.elsewhere)
        self._router = Router(self._routes(), redirect_slashes=False, default=_unknown_route)

    def _routes(self) -> list[Route]:
        table: list[tuple[str, str, Handler]] = [
            ("POST", "/v1/chat/completions", self._chat),
            ("POST", "/v1/completions", self._completions),
            ("POST", "/v1/responses", self._responses),
            ("GET", "/v1/models", self._models),
            ("GET", "/v1/models/{model:path}", self._model),
            ("GET", "/healthz", self._health),
            ("GET", "/readyz", self._ready),
            ("GET", "/openapi.json", self._openapi),
            ("GET", "/", self._page),
        ]
        if self._desk is not None:
            table += _desk_routes(self._desk)
        by_path: dict[str, dict[str, Handler]] = {}
        for method, path, handler in table:
            by_path.setdefault(path, {})[method] = handler
        return [
            Route(path, _Endpoint(path, handlers), methods=list(handlers))
            for path, handlers in by_path.items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, self._limits)
        scope["app"], scope["edgewise"] = self, exchange
        try:
            await self._answer(exchange, scope, receive, send)
        except ConnectionResetError:
            exchange.note = "client-gone"
        except (ProblemError, EdgewiseError, HTTPException) as error:
            await self._fail(exchange, _problem(error))
        except Exception as error:  # noqa: BLE001 - a bug is told to nobody but the log
            self._log(f"internal error: {where_raised(error)}")
            bug = EdgewiseError("internal-error", "the server has a bug that this request met")
            await self._fail(exchange, ProblemError(bug))
        finally:
            status = exchange.status if exchange.status is not None else "-"
            line = f"{exchange.method} {exchange.route} {status} {exchange.elapsed_ms:.0f} ms"
            self._log(f"{line} {exchange.note}".rstrip())

    async def _answer(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        headers = exchange.headers
        exchange.closing = True  # after what cannot be trusted to be one request
        _check_form(scope, self._limits.header_max_bytes)
        exchange.closing = False
        self._guard.check_host(headers.get("host"))
        if self._desk is not None and scope["path"].startswith(PAGE):
            peer = scope.get("client")
            self._guard.check_page(
                headers, peer[0] if peer else "", sends=exchange.method not in {"GET", "HEAD"}
            )
            self._rate.take(peer[0] if peer else "")
            await self._router(scope, receive, send)
            return
        self._guard.check_origin(headers)
        origin = headers.get("origin")
        if origin is not None:
            exchange.extra_headers += _cors(origin)
            if exchange.method == "OPTIONS":
                exchange.route = "preflight"
                methods = "GET, POST" if self._desk is None else "GET, POST, DELETE"
                allowed = [("access-control-allow-methods", methods), *_PREFLIGHT]
                await exchange.raw(b"", "text/plain", status=204, headers=allowed)
                return
        if scope["path"] not in _OPEN:
            self._guard.check_token(headers.get("authorization"))
            peer = scope.get("client")
            self._rate.take(peer[0] if peer else "")
        await self._router(scope, receive, send)

    async def _fail(self, exchange: Exchange, problem: ProblemError) -> None:
        exchange.note = problem.error.code
        if exchange.status is None and problem.error.code != "client-gone":
            await exchange.send_problem(problem)

    async def _chat(self, exchange: Exchange, scope: Scope) -> None:
        body = await self._body(exchange, ChatBody)
        request, client = chat_request(body), _client(scope, exchange, body.user)
        way = await self._ways.find(request, client, body.edgewise)
        if body.stream:
            frames = ChatFrames(body, self.model, way.fingerprint, way.telling)
            await _stream(exchange, way, [request], client, frames)
            return
        ((_, outcome, waited_s),) = await answers(exchange, way.taking, [request], client)
        reply = chat_reply(body, self.model, outcome, waited_s, way.telling)
        await exchange.reply(reply, headers=way.headers_of([outcome]))

    async def _completions(self, exchange: Exchange, scope: Scope) -> None:
        body = await self._body(exchange, CompletionBody)
        requests = completion_requests(body, prompts_max=self._limits.prompts_max)
        client = _client(scope, exchange, body.user)
        way = self._ways.here(requests[0], client, body.edgewise)  # raw prompts never leave
        if body.stream:
            frames = CompletionFrames(body, self.model, way.fingerprint, way.telling)
            await _stream(exchange, way, requests, client, frames)
            return
        found = await answers(exchange, way.taking, requests, client)
        reply = completion_reply(body, self.model, found, way.fingerprint, way.telling)
        headers = way.headers_of(outcome for _, outcome, _ in found)
        await exchange.reply(reply, headers=headers)

    async def _responses(self, exchange: Exchange, scope: Scope) -> None:
        body = await self._body(exchange, ResponseBody)
        request, client = response_request(body), _client(scope, exchange, body.user)
        way = await self._ways.find(request, client, body.edgewise)
        if body.stream:
            frames = ResponseFrames(body, self.model, way.telling)
            await _stream(exchange, way, [request], client, frames)
            return
        ((_, outcome, waited_s),) = await answers(exchange, way.taking, [request], client)
        reply = response_reply(body, self.model, outcome, waited_s, way.telling)
        await exchange.reply(reply, headers=way.headers_of([outcome]))

    async def _models(self, exchange: Exchange, _scope: Scope) -> None:
        await exchange.reply(ModelList(data=[self._card]))

    async def _model(self, exchange: Exchange, scope: Scope) -> None:
        self._check_model(scope["path_params"]["model"])
        await exchange.reply(self._card)

    async def _health(self, exchange: Exchange, _scope: Scope) -> None:
        await exchange.reply({"status": "ok"})

    async def _ready(self, exchange: Exchange, _scope: Scope) -> None:
        self._dispatcher.check_open()
        about: dict[str, Any] = {
            "status": "ready",
            "loaded": self._dispatcher.loaded,
            "running": self._dispatcher.running,
            "queued": self._dispatcher.queued,
            "release_after_s": self._limits.release_after_s,
        }
        if self.elsewhere is not None:
            about["elsewhere"] = self.elsewhere.running
        await exchange.reply(about)

    async def _openapi(self, exchange: Exchange, _scope: Scope) -> None:
        token = self._guard.token is not None
        with_consent = self._desk is not None
        await exchange.reply(document(self.model, with_token=token, with_consent=with_consent))

    async def _page(self, exchange: Exchange, _scope: Scope) -> None:
        page = _PAGE.format(model=self.model)
        await exchange.raw(page.encode(), "text/plain; charset=utf-8")

    async def _body(self, exchange: Exchange, kind: type[B]) -> B:
        data = await exchange.json_body()
        body = decode(data, kind, nesting_max=self._limits.nesting_max)
        self._check_model(getattr(body, "model", ""))
        return body

    def _check_model(self, name: str) -> None:
        whole = self._bundle.fingerprint
        short = len(name) >= _FINGERPRINT_CHARACTERS_MIN and whole.startswith(name)
        if not short and name not in {self.model, self._bundle.model}:
            raise InputError(
                "model-not-found",
                f"there is no model called {name[:200]!r} here",
                context={"param": "model"},
                hint=f"this server answers with {self.model!r}",
            )

    @property
    def _card(self) -> ModelCard:
        deployment = self._bundle.deployment
        return ModelCard(
            id=self.model,
            created=self._since,
            edgewise=ModelAbout(
                name=self._bundle.model,
                fingerprint=self._bundle.fingerprint,
                runtime=f"{deployment.runtime.name} {deployment.runtime.version}",
                context_length=deployment.compute.run_config.context_length,
            ),
        )


class _Endpoint:
    """Handlers as an ASGI application, which is what a route takes without wrapping it."""

    def __init__(self, path: str, handlers: dict[str, Handler]) -> None:
        self._path = path
        self._handlers = {"HEAD": handlers["GET"], **handlers} if "GET" in handlers else handlers

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        exchange: Exchange = scope["edgewise"]
        exchange.route = self._path
        await self._handlers[exchange.method](exchange, scope)


async def _stream(
    exchange: Exchange, way: Way, requests: Sequence[Request], client: str, frames: Frames
) -> None:
    headers = way.stream_headers
    await stream(exchange, way.taking, requests, client, frames=frames, headers=headers)


def _desk_routes(desk: ConsentDesk) -> list[tuple[str, str, Handler]]:
    def named(handler: Callable[[Exchange, str], Awaitable[None]]) -> Handler:
        return lambda exchange, scope: handler(exchange, scope["path_params"]["id"])

    return [
        ("GET", "/edgewise/v1/consent", lambda exchange, _scope: desk.decisions(exchange)),
        ("POST", ANSWER + "{id}", named(desk.answer)),
        ("DELETE", ANSWER + "{id}", named(desk.revoke)),
        ("GET", PAGE + "{id}", named(desk.show)),
        ("POST", PAGE + "{id}", named(desk.take)),
    ]


def model_id(bundle: Bundle) -> str:
    """Return the name by which clients call a bundle's model.

    It is the name that it was fetched by; where that was a path or an address, the display name.
    """
    reference = bundle.deployment.checkpoint.reference
    if _PLAIN_NAME.fullmatch(reference):
        return reference
    return re.sub(r"[^a-z0-9._-]+", "-", bundle.model.lower()).strip("-") or bundle.fingerprint


def _check_form(scope: Scope, header_max_bytes: int) -> None:
    """Refuse what the HTTP library lets pass: it bounds only headers that come in pieces."""
    if scope["http_version"] not in {"1.0", "1.1"}:
        raise InputError("http-malformed", "this version of HTTP is not supported")
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    size = len(scope["raw_path"]) + len(scope["query_string"])
    if size + sum(len(name) + len(value) for name, value in headers) > header_max_bytes:
        raise InputError("http-headers-too-large", "the request's headers are too long")
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
        raise InputError("http-ambiguous", "the request says twice how long its body is")


async def _unknown_route(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise InputError(
        "route-unknown", "there is nothing at this path", hint="/openapi.json lists the paths"
    )


def _problem(error: ProblemError | EdgewiseError | HTTPException) -> ProblemError:
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, EdgewiseError):
        return ProblemError(error)
    allow = (error.headers or {}).get("Allow", "")
    return ProblemError(
        InputError(
            "method-unsupported",
            "this path does not take this method",
            context={"allow": allow},
            hint=f"use {allow}",
        )
    )


def _client(scope: Scope, exchange: Exchange, user: str | None) -> str:
    """Return whose turn a request takes: by address, token, program and the user it names."""
    peer = scope.get("client")
    chosen = (exchange.headers.get(name, "") for name in _CLIENT)
    return client_name(peer[0] if peer else "", *chosen, user or "")


_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_PREFLIGHT = [
    ("access-control-allow-headers", "authorization, content-type"),
    ("access-control-max-age", "600"),
]


def _cors(origin: str) -> list[tuple[str, str]]:
    exposed = (
        "x-edgewise-route, x-edgewise-fingerprint, x-edgewise-destination, "
        f"{VERIFICATION}, x-request-id, retry-after"
    )
    return [
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", exposed),
        ("vary", "origin"),
    ]
