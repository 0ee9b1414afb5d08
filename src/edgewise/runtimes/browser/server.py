"""A loopback web server for the pages of browser runtimes.

Invariants: it listens on 127.0.0.1 only; it serves a fixed table of files that is made before the
first request, so no request path is ever joined to a folder; every answer carries the headers
that make a page cross-origin isolated (threads in WebAssembly need that); no answer names another
origin, and the page's content policy forbids it one.
"""

from __future__ import annotations

import collections
import contextlib
import email.utils
import http
import http.server
import re
import socket
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

from edgewise.errors import ResourceError
from edgewise.runtimes.browser.files import (
    TEXT_TYPE,
    Mount,
    ServedDocument,
    ServedFile,
    collect,
    document,
    open_regular,
)

__all__ = ["CONTENT_POLICY", "LoopbackServer", "Mount", "ServedRequest", "serve"]

_ADDRESS = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")
_CONNECTIONS_MAX = 64
_IDLE_S = 60.0
_LOG_LINES = 500
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")

# Workers of the WASM runtimes are started from blob: addresses that the page itself makes.
CONTENT_POLICY = (
    "default-src 'none'; "
    "script-src 'self' 'wasm-unsafe-eval' blob:; "
    "worker-src 'self' blob:; "
    "connect-src 'self' blob: data:; "
    "style-src 'self'; "
    "img-src 'self' data:; "
    "base-uri 'none'; "
    "form-action 'none'; "
    "frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """One answered request."""

    method: str
    path: str
    status: int


class LoopbackServer:
    """A running server. A context manager; :meth:`close` is safe to call twice.

    Attributes:
        url: Address of the page, e.g. ``http://127.0.0.1:40123/``.
        port: The port, chosen by the system.
    """

    def __init__(
        self,
        mounts: Sequence[Mount],
        *,
        documents: Mapping[str, object] | None = None,
        content_policy: str = CONTENT_POLICY,
        port: int = 0,
    ) -> None:
        """Collect the files and start to listen.

        Args:
            mounts: What to serve; ``/`` answers with ``/index.html``.
            documents: ``path -> content`` for what is no file: bytes, or a JSON-able value.
            content_policy: The ``Content-Security-Policy`` header of every answer.
            port: A port, or 0 for one that the system chooses.

        Raises:
            InputError: a source is missing, or holds more files than a page ever needs.
            ResourceError: the port is taken.
        """
        table: dict[str, ServedFile | ServedDocument] = {}
        for mount in mounts:
            table.update(collect(mount))
        for path, value in (documents or {}).items():
            table[path] = document(value)
        try:
            self._server = _Server((_ADDRESS, port), table, content_policy)
        except OSError as error:
            raise ResourceError(
                "browser-port-taken",
                f"cannot listen on {_ADDRESS}:{port}: {error}",
                hint="choose another port, or 0 for any free one",
            ) from error
        self.port: int = self._server.server_address[1]
        self.url = f"http://{_ADDRESS}:{self.port}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="edgewise-browser-server",
            daemon=True,
        )
        self._thread.start()

    @property
    def requests(self) -> tuple[ServedRequest, ...]:
        """Return the last requests, oldest first."""
        return tuple(self._server.answered)

    @property
    def paths(self) -> tuple[str, ...]:
        """Return every path that is served, sorted."""
        return tuple(sorted(self._server.table))

    def wait(self) -> None:
        """Block until the server is closed, for a caller that serves a human."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Stop listening, end open connections and join the thread."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._server.drop_connections()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def serve(
    mounts: Sequence[Mount],
    *,
    documents: Mapping[str, object] | None = None,
    content_policy: str = CONTENT_POLICY,
    port: int = 0,
) -> LoopbackServer:
    """Return a running server; see :class:`LoopbackServer`."""
    return LoopbackServer(mounts, documents=documents, content_policy=content_policy, port=port)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = False

    def __init__(
        self,
        address: tuple[str, int],
        table: dict[str, ServedFile | ServedDocument],
        content_policy: str,
    ) -> None:
        self.table = table
        self.content_policy = content_policy
        self.answered: collections.deque[ServedRequest] = collections.deque(maxlen=_LOG_LINES)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)
        port = self.server_address[1]
        self.hosts = {f"{name}:{port}" for name in _NAMES}

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._open) >= _CONNECTIONS_MAX
            if not full:
                self._open.add(request)
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        with self._lock:
            waiting = list(self._open)
        for connection in waiting:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent: a browser drops connections whenever it likes."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout: ClassVar[float] = _IDLE_S
    server: _Server

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _other_method(self) -> None:
        self._refuse(http.HTTPStatus.METHOD_NOT_ALLOWED)

    def __getattr__(self, name: str) -> Any:
        """Answer every method that is not defined here: the base class looks for ``do_METHOD``."""
        if name.startswith("do_"):
            return self._other_method
        raise AttributeError(name)

    def _answer(self, *, with_body: bool) -> None:
        if not self._from_here():
            return
        try:
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        except ValueError:
            self._refuse(http.HTTPStatus.BAD_REQUEST)
            return
        entry = self.server.table.get("/index.html" if path == "/" else path)
        if entry is None:
            self._refuse(http.HTTPStatus.NOT_FOUND)
        elif isinstance(entry, ServedDocument):
            self._head(http.HTTPStatus.OK, entry.content_type, len(entry.body))
            if with_body:
                self.wfile.write(entry.body)
        else:
            self._file(entry, with_body=with_body)

    def _from_here(self) -> bool:
        """Return whether the request names this server and comes from one of its own pages.

        A name other than loopback's is DNS rebinding; a foreign page may open the page, as a
        link does, but may not read files.
        """
        if self.headers.get_all("Host", []) != [self.headers.get("Host")] or (
            self.headers.get("Host", "").lower() not in self.server.hosts
        ):
            self._refuse(http.HTTPStatus.MISDIRECTED_REQUEST)
            return False
        foreign = self.headers.get("Sec-Fetch-Site", "none") not in {"same-origin", "none"}
        if foreign and self.headers.get("Sec-Fetch-Mode") != "navigate":
            self._refuse(http.HTTPStatus.FORBIDDEN)
            return False
        return True

    def _file(self, entry: ServedFile, *, with_body: bool) -> None:
        opened = open_regular(entry)
        if opened is None:
            self._refuse(http.HTTPStatus.NOT_FOUND)
            return
        file, size = opened
        with file:
            status, span = self._span(size)
            if span is None:
                self._refuse(status, {"Content-Range": f"bytes */{size}"})
                return
            start, length = span
            extra = {"Accept-Ranges": "bytes"}
            if status == http.HTTPStatus.PARTIAL_CONTENT:
                extra["Content-Range"] = f"bytes {start}-{start + length - 1}/{size}"
            self._head(status, entry.content_type, length, extra)
            if with_body and length:
                self.wfile.flush()
                sent = self.connection.sendfile(file, start, length)
                self.close_connection |= sent != length

    def _span(self, size: int) -> tuple[http.HTTPStatus, tuple[int, int] | None]:
        """Return the status and ``(start, length)``; several ranges are answered with the whole."""
        match = _RANGE.fullmatch(self.headers.get("Range", "").replace(" ", ""))
        if match is None or match.groups() == ("", ""):
            return http.HTTPStatus.OK, (0, size)
        first, last = match.groups()
        if not first:
            length = min(int(last), size)
            start = size - length
        else:
            start = int(first)
            length = min(int(last) + 1 if last else size, size) - start
        if length <= 0:
            return http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, None
        return http.HTTPStatus.PARTIAL_CONTENT, (start, length)

    def _refuse(self, status: http.HTTPStatus, extra: Mapping[str, str] | None = None) -> None:
        self.close_connection = True  # a body that was sent along is not read
        body = f"{status.value} {status.phrase}\n".encode()
        headers = {"Connection": "close", **(extra or {})}
        if status == http.HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET, HEAD"
        self._head(status, TEXT_TYPE, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(
        self,
        status: http.HTTPStatus,
        content_type: str,
        length: int,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self.server.answered.append(
            ServedRequest(method=self.command, path=self.path, status=status.value)
        )
        self.send_response_only(status)
        self.send_header("Date", email.utils.formatdate(usegmt=True))
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length))
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Content-Security-Policy", self.server.content_policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        for name, value in (extra or {}).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Print nothing; the server keeps its last requests."""
