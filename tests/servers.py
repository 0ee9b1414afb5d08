"""Loopback HTTP(S) servers that misbehave on request, and a hub that speaks the real protocol."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

Fault = Callable[["Exchange"], None]


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    owner: LoopbackServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients of these servers break off on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.owner.answer(Exchange(self))

    def do_HEAD(self) -> None:
        self.server.owner.answer(Exchange(self))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        return


class Exchange:
    """One request and the means to answer it, properly or not."""

    def __init__(self, handler: _Handler) -> None:
        self._handler = handler
        self.method = handler.command
        self.target = handler.path
        self.path = unquote(urlsplit(handler.path).path)
        self.headers = {key.lower(): value for key, value in handler.headers.items()}
        self.served: Served | None = None

    def head(self, status: int, headers: dict[str, str]) -> None:
        self._handler.send_response(status)
        for key, value in headers.items():
            self._handler.send_header(key, value)
        self._handler.end_headers()

    def write(self, data: bytes) -> None:
        if self.method != "HEAD":
            self._handler.wfile.write(data)
            self._handler.wfile.flush()

    def hang_up(self) -> None:
        self._handler.close_connection = True

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        self.head(status, {"Content-Length": str(len(body)), **named})
        self.write(body)


@dataclass
class Served:
    """A file at a path; ``script`` holds one fault per request, then it is served properly."""

    body: bytes
    etag: str | None = '"v1"'
    last_modified: str | None = None
    content_type: str = "application/octet-stream"
    script: list[Fault] = field(default_factory=list)

    def headers(self) -> dict[str, str]:
        found = {"Content-Type": self.content_type, "Accept-Ranges": "bytes"}
        if self.etag:
            found["ETag"] = self.etag
        if self.last_modified:
            found["Last-Modified"] = self.last_modified
        return found

    def answer(self, exchange: Exchange) -> None:
        wanted = exchange.headers.get("range")
        condition = exchange.headers.get("if-range")
        if wanted is None or condition not in {None, self.etag, self.last_modified}:
            exchange.head(200, {"Content-Length": str(len(self.body)), **self.headers()})
            exchange.write(self.body)
            return
        start = int(wanted.removeprefix("bytes=").split("-")[0])
        if start >= len(self.body):
            exchange.head(
                416,
                {"Content-Range": f"bytes */{len(self.body)}", "Content-Length": "9"}
                | self.headers(),
            )
            exchange.write(b"error 416")
            return
        rest = self.body[start:]
        span = f"bytes {start}-{len(self.body) - 1}/{len(self.body)}"
        exchange.head(
            206, {"Content-Range": span, "Content-Length": str(len(rest)), **self.headers()}
        )
        exchange.write(rest)


class LoopbackServer:
    """Serves ``files`` on 127.0.0.1 and keeps every request in ``log``."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.files: dict[str, Served] = {}
        self.log: list[Exchange] = []
        self.release = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, path: str, served: Served) -> str:
        self.files[path] = served
        return f"{self.url}{path}"

    def answer(self, exchange: Exchange) -> None:
        self.log.append(exchange)
        served = self.files.get(exchange.path) or self.files.get(exchange.target)
        if served is None:
            exchange.send(404, b"nothing here")
            return
        exchange.served = served
        fault = served.script.pop(0) if served.script else served.answer
        fault(exchange)


def _body(exchange: Exchange) -> Served:
    assert exchange.served is not None
    return exchange.served


def cut_after(sent_bytes: int) -> Fault:
    """The whole file is announced, ``sent_bytes`` come, the connection ends. Ignores Range."""

    def fault(exchange: Exchange) -> None:
        served = _body(exchange)
        exchange.head(200, {"Content-Length": str(len(served.body)), **served.headers()})
        exchange.write(served.body[:sent_bytes])
        exchange.hang_up()

    return fault


def stall_after(sent_bytes: int, release: threading.Event) -> Fault:
    """``sent_bytes`` come, then nothing until ``release`` is set, then the rest."""

    def fault(exchange: Exchange) -> None:
        served = _body(exchange)
        exchange.head(200, {"Content-Length": str(len(served.body)), **served.headers()})
        exchange.write(served.body[:sent_bytes])
        release.wait(60)
        exchange.write(served.body[sent_bytes:])

    return fault


def ignore_range(exchange: Exchange) -> None:
    """A 200 with the whole file, whatever was asked for."""
    served = _body(exchange)
    exchange.head(200, {"Content-Length": str(len(served.body)), **served.headers()})
    exchange.write(served.body)


def unannounced(body: bytes) -> Fault:
    """A body without a length, ended by the end of the connection."""

    def fault(exchange: Exchange) -> None:
        exchange.head(200, {"Connection": "close", **_body(exchange).headers()})
        exchange.write(body)
        exchange.hang_up()

    return fault


def status(code: int, body: bytes = b"", **headers: str) -> Fault:
    """A bare status."""

    def fault(exchange: Exchange) -> None:
        exchange.send(code, body, **headers)

    return fault


def partial_content(content_range: str, body: bytes, **headers: str) -> Fault:
    """A 206 with any Content-Range and any body."""
    return status(206, body, Content_Range=content_range, **headers)


def hang_up(exchange: Exchange) -> None:
    """The connection ends without an answer."""
    exchange.hang_up()


class HubServer(LoopbackServer):
    """One repository of a hub: revision look-up, file metadata and file content."""

    def __init__(
        self, repo_id: str, files: dict[str, bytes], *, gated: bool = False, commit: str = "c" * 40
    ) -> None:
        super().__init__()
        self.repo_id, self.commit, self.gated = repo_id, commit, gated
        self.content = files
        self.stated = {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
        self.get_faults: list[Fault] = []

    def answer(self, exchange: Exchange) -> None:
        self.log.append(exchange)
        api, resolve = f"/api/models/{self.repo_id}", f"/{self.repo_id}/resolve/"
        if self.gated:
            exchange.send(403, b"{}", X_Error_Code="GatedRepo", X_Error_Message="restricted")
        elif exchange.path == api or exchange.path.startswith(api + "/revision/"):
            revision = exchange.path.removeprefix(api).removeprefix("/revision/")
            self._information(exchange, revision or "main")
        elif exchange.path.startswith(resolve):
            revision, _, name = exchange.path.removeprefix(resolve).partition("/")
            self._file(exchange, revision, name)
        else:
            exchange.send(404, b"{}", X_Error_Code="RepoNotFound")

    def _information(self, exchange: Exchange, revision: str) -> None:
        if revision not in {"main", self.commit}:
            exchange.send(404, b"{}", X_Error_Code="RevisionNotFound")
            return
        siblings = [
            {
                "rfilename": name,
                "size": len(body),
                "blobId": "b" * 40,
                "lfs": {"sha256": self.stated[name], "size": len(body), "pointerSize": 134},
            }
            for name, body in self.content.items()
        ]
        data = {
            "id": self.repo_id,
            "sha": self.commit,
            "siblings": siblings,
            "cardData": {"license": "mit"},
        }
        exchange.send(200, json.dumps(data).encode(), Content_Type="application/json")

    def _file(self, exchange: Exchange, revision: str, name: str) -> None:
        if revision != self.commit or name not in self.content:
            exchange.send(404, b"", X_Error_Code="EntryNotFound")
            return
        body = self.content[name]
        exchange.served = Served(body, etag=f'"{self.stated[name]}"')
        if exchange.method == "HEAD":
            exchange.head(
                200,
                {
                    "Content-Length": str(len(body)),
                    "ETag": f'"{self.stated[name]}"',
                    "X-Repo-Commit": self.commit,
                    "X-Linked-Etag": f'"{self.stated[name]}"',
                    "X-Linked-Size": str(len(body)),
                },
            )
            return
        fault = self.get_faults.pop(0) if self.get_faults else exchange.served.answer
        fault(exchange)
