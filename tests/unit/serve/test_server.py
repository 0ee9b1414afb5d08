"""The server as a process: it binds, prewarms, and stops in order."""

from __future__ import annotations

import socket
import threading
import time

import httpx
import pytest
from tests.unit.serve.fakes import FINGERPRINT, MODEL, FakeSession, declined, serving, wait_for

from edgewise.errors import EdgewiseError, ResourceError
from edgewise.serve.guard import Guard
from edgewise.serve.limits import BACKLOG, Limits, connections_possible
from edgewise.serve.server import ApiServer, Ready

LONG = ("word ",) * 2000
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def test_it_listens_on_loopback_and_says_where() -> None:
    server = ApiServer([FakeSession()], guard=Guard(host="127.0.0.1"))
    found: list[Ready] = []
    thread = threading.Thread(target=server.run, kwargs={"on_ready": found.append})
    thread.start()
    wait_for(lambda: bool(found))
    assert found[0] == Ready(
        url=f"http://127.0.0.1:{server.port}", model=MODEL, fingerprint=FINGERPRINT
    )
    assert httpx.get(found[0].url + "/healthz").status_code == 200
    server.stop()
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(httpx.ConnectError):
        httpx.get(found[0].url + "/healthz")


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ResourceError) as caught:
            ApiServer([FakeSession()], guard=Guard(host="127.0.0.1"), port=taken.getsockname()[1])
        assert caught.value.code == "address-unavailable"
    with pytest.raises(ResourceError):
        ApiServer([FakeSession()], guard=Guard(host="no.such.host.invalid", token="x" * 16))


def test_prewarming_loads_before_it_is_ready_and_shows_the_cost() -> None:
    session = FakeSession(load_s=0.05)
    server = ApiServer([session], guard=Guard(host="127.0.0.1"))
    found: list[Ready] = []
    thread = threading.Thread(target=server.run, kwargs={"prewarm": True, "on_ready": found.append})
    thread.start()
    wait_for(lambda: bool(found))
    assert found[0].prewarm_ms is not None
    assert found[0].prewarm_ms >= 50
    assert found[0].load_ms is not None
    assert session.asked[0].max_tokens == 1
    assert httpx.get(server.url + "/readyz").json()["loaded"]
    server.stop()
    thread.join(10)


def test_a_model_that_cannot_be_loaded_is_an_error_not_a_server() -> None:
    session = FakeSession(script=lambda _request: declined("memory"))
    server = ApiServer([session], guard=Guard(host="127.0.0.1"))
    with pytest.raises(EdgewiseError) as caught:
        server.run(prewarm=True)
    assert caught.value.code == "declined-by-state"
    assert session.closed


@pytest.mark.parametrize("gentle", [True, False])
def test_stopping_lets_an_answer_end_or_ends_it_with_the_reason(gentle: bool) -> None:
    session = FakeSession(LONG, step_s=0.002)
    limits = Limits(grace_s=5.0 if gentle else 0.05)
    with serving(session, limits=limits) as served:
        lines: list[str] = []

        def read() -> None:
            url = f"{served.url}/v1/chat/completions"
            most = 100 if gentle else 2000
            with httpx.stream(
                "POST", url, json={**BODY, "stream": True, "max_tokens": most}
            ) as reply:
                lines.extend(line for line in reply.iter_lines() if line)

        reader = threading.Thread(target=read)
        reader.start()
        wait_for(lambda: bool(lines))
        served.server.stop()
        reader.join(10)
        if gentle:
            assert lines[-1] == "data: [DONE]"
        else:
            assert '"code":"server-stopping"' in lines[-1]
            assert "[DONE]" not in "".join(lines)
    assert session.closed


def test_a_second_stop_does_not_wait() -> None:
    session = FakeSession(LONG, step_s=0.005)
    with serving(session, limits=Limits(grace_s=60.0)) as served:
        url = f"{served.url}/v1/chat/completions"
        failures: list[Exception | int] = []

        def ask() -> None:
            try:
                failures.append(httpx.post(url, json=BODY, timeout=30).status_code)
            except httpx.HTTPError as error:
                failures.append(error)

        asker = threading.Thread(target=ask)
        asker.start()
        wait_for(lambda: session.running == 1)
        started = time.monotonic()
        served.server.stop()
        served.server.stop()
        asker.join(10)
        assert failures[0] == 503 or isinstance(failures[0], Exception)
        assert time.monotonic() - started < 5


def test_small_writes_do_not_wait_for_acknowledgements() -> None:
    with serving(FakeSession()) as served, httpx.Client() as client:
        client.get(f"{served.url}/healthz")
        (connection,) = served.server._server.server_state.connections
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_bound_on_connections_stays_below_that_on_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _what: (1024, 4096))
    assert connections_possible(512) == 512
    assert connections_possible(100_000) + BACKLOG < 1024
    monkeypatch.setattr("resource.getrlimit", lambda _what: (64, 64))
    assert connections_possible(512) == 1
