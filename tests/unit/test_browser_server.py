"""The loopback server: what it serves, what it refuses, and what every answer says."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgewise.errors import InputError, ResourceError
from edgewise.runtimes.browser.server import LoopbackServer, Mount, serve

MODEL = bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    page = tmp_path / "page"
    (page / "deep").mkdir(parents=True)
    (page / "index.html").write_text("<!doctype html><title>t</title>")
    (page / "app.js").write_text("export const a = 1;")
    (page / "deep" / "m.wasm").write_bytes(b"\0asm")
    (page / "model.gguf").write_bytes(MODEL)
    (page / "empty.bin").touch()
    (tmp_path / "secret.txt").write_text("secret")
    (page / "link.txt").symlink_to(tmp_path / "secret.txt")
    (page / "up").symlink_to(tmp_path)
    return page


@pytest.fixture
def server(folder: Path) -> Iterator[LoopbackServer]:
    documents = {"/session.json": {"a": [1]}, "/head.bin": b"\1\2"}
    with serve([Mount(prefix="/", source=folder)], documents=documents) as running:
        yield running


class Answer:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.body = answer.read()


def ask(server: LoopbackServer, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=sent)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def raw(server: LoopbackServer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request)
        found = b""
        while block := connection.recv(65536):
            found += block
        return found


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/index.html?x=1", "text/html; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/deep/m.wasm", "application/wasm"),
        ("/session.json", "application/json"),
        ("/head.bin", "application/octet-stream"),
        ("/model.gguf", "application/octet-stream"),
        ("/empty.bin", "application/octet-stream"),
    ],
)
def test_files_have_their_types_and_the_isolating_headers(
    server: LoopbackServer, path: str, kind: str
) -> None:
    answer = ask(server, path)
    assert (answer.status, answer.headers["Content-Type"]) == (200, kind)
    assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert answer.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "http" not in answer.headers["Content-Security-Policy"]
    assert int(answer.headers["Content-Length"]) == len(answer.body)


def test_documents_come_as_they_are(server: LoopbackServer) -> None:
    assert json.loads(ask(server, "/session.json").body) == {"a": [1]}
    assert ask(server, "/head.bin").body == b"\1\2"


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [("0-0", 0, 1), ("10-19", 10, 20), ("10200-", 10200, 10240), ("-5", 10235, 10240),
     ("10000-999999999", 10000, 10240)],
)  # fmt: skip
def test_ranges(server: LoopbackServer, wanted: str, start: int, end: int) -> None:
    answer = ask(server, "/model.gguf", Range=f"bytes={wanted}")
    assert answer.status == 206
    assert answer.body == MODEL[start:end]
    assert answer.headers["Content-Range"] == f"bytes {start}-{end - 1}/{len(MODEL)}"


@pytest.mark.parametrize("wanted", ["10240-", "99999-100000", "-0", "7-3"])
def test_ranges_outside_the_file(server: LoopbackServer, wanted: str) -> None:
    answer = ask(server, "/model.gguf", Range=f"bytes={wanted}")
    assert answer.status == 416
    assert answer.headers["Content-Range"] == f"bytes */{len(MODEL)}"


@pytest.mark.parametrize("wanted", ["bytes=0-1,3-4", "lines=1-2", "bytes=-", "bytes=a-b"])
def test_other_ranges_are_answered_with_the_whole(server: LoopbackServer, wanted: str) -> None:
    answer = ask(server, "/model.gguf", Range=wanted)
    assert (answer.status, answer.body) == (200, MODEL)


def test_head_has_no_body(server: LoopbackServer) -> None:
    answer = ask(server, "/model.gguf", method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Length"] == str(len(MODEL))


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/deep/../../secret.txt",
        "//etc/passwd",
        "/link.txt",
        "/up/secret.txt",
        "/deep",
        "/deep/",
        "/index.html%00.js",
        "/nothing",
        "/" + "a" * 5000,
        "/%ff%fe",
    ],
)
def test_nothing_else_is_served(server: LoopbackServer, path: str) -> None:
    answer = ask(server, path)
    assert answer.status == 404
    assert b"secret" not in answer.body


def test_a_file_that_became_a_link_is_not_served(server: LoopbackServer, folder: Path) -> None:
    (folder / "app.js").unlink()
    (folder / "app.js").symlink_to(folder.parent / "secret.txt")
    assert ask(server, "/app.js").status == 404
    (folder / "deep" / "m.wasm").unlink()
    (folder / "deep").rmdir()
    (folder.parent / "m.wasm").write_bytes(b"secret")
    (folder / "deep").symlink_to(folder.parent)
    assert ask(server, "/deep/m.wasm").status == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "", "localhost:80"])
def test_another_host_is_refused(server: LoopbackServer, host: str) -> None:
    assert ask(server, "/", Host=host).status == 421


def test_localhost_is_the_same_host(server: LoopbackServer) -> None:
    assert ask(server, "/", Host=f"localhost:{server.port}").status == 200


def test_missing_and_doubled_hosts_are_refused(server: LoopbackServer) -> None:
    own = f"Host: 127.0.0.1:{server.port}\r\n".encode()
    for lines in (b"", own + b"Host: evil.example\r\n"):
        answer = raw(server, b"GET / HTTP/1.1\r\n" + lines + b"Connection: close\r\n\r\n")
        assert answer.split(b" ")[1] == b"421"


def test_other_pages_may_link_but_not_read(server: LoopbackServer) -> None:
    foreign = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}
    assert ask(server, "/model.gguf", **foreign).status == 403
    assert ask(server, "/", **{**foreign, "Sec_Fetch_Mode": "navigate"}).status == 200
    same = {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "cors"}
    assert ask(server, "/model.gguf", **same).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(server: LoopbackServer, method: str) -> None:
    answer = ask(server, "/", method=method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET, HEAD"


def test_garbage_does_not_stop_the_server(server: LoopbackServer) -> None:
    host = f"Host: 127.0.0.1:{server.port}\r\n\r\n".encode()
    for request in (b"\r\n\r\n", b"\0\1\2\r\n\r\n", b"GET http://[ HTTP/1.1\r\n" + host):
        raw(server, request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert ask(server, "/").status == 200


def test_it_listens_on_loopback_only(server: LoopbackServer) -> None:
    assert server.url == f"http://127.0.0.1:{server.port}/"
    assert server._server.server_address[0] == "127.0.0.1"


def test_requests_are_remembered(server: LoopbackServer) -> None:
    ask(server, "/app.js")
    last = server.requests[-1]
    assert (last.method, last.path, last.status) == ("GET", "/app.js", 200)


def test_closing_ends_open_connections_and_may_be_repeated(folder: Path) -> None:
    server = serve([Mount(prefix="/", source=folder)])
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/app.js")
    connection.getresponse().read()
    server.close()
    server.close()
    connection.sock.settimeout(10)
    assert connection.sock.recv(1) == b""
    connection.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_named_files_only(folder: Path) -> None:
    mount = Mount(prefix="/npm/@a/b/", source=folder, names=("app.js", "deep/m.wasm"))
    with serve([mount, Mount(prefix="/model/", source=folder / "model.gguf")]) as server:
        assert server.paths == ("/model/model.gguf", "/npm/@a/b/app.js", "/npm/@a/b/deep/m.wasm")


def test_what_cannot_be_served(folder: Path) -> None:
    for mount in (
        Mount(prefix="/", source=folder / "absent"),
        Mount(prefix="/", source=folder, names=("absent.js",)),
        Mount(prefix="/../", source=folder),
        Mount(prefix="x", source=folder),
    ):
        with pytest.raises(InputError):
            serve([mount])


def test_a_taken_port(server: LoopbackServer, folder: Path) -> None:
    with pytest.raises(ResourceError, match="cannot listen"):
        serve([Mount(prefix="/", source=folder)], port=server.port)
