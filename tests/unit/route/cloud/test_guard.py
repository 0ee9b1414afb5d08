"""The last line: no permit, no byte."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import subprocess
import sys
from typing import Any

import httpx
import pytest
from tests.unit.route.cloud.servers import GOOD, Desk, RawServer, at, hello, stream

from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.route.cloud import CancelToken, CloudClient, Secrets
from edgewise.route.cloud.transport import GuardedTransport, Passage, chat_url
from edgewise.route.cloud.waiting import Span


def post(passage: Passage | None, url: str, method: str = "POST") -> httpx.Response:
    with httpx.Client(transport=GuardedTransport(passage), trust_env=False) as http:
        return http.request(method, url, content=b"{}")


def passage(server: RawServer, span: Span, **fields: Any) -> Passage:
    body = hello().body
    told: dict[str, Any] = {
        "destination": at(server),
        "body": body,
        "payload_sha256": hashlib.sha256(body).hexdigest(),
        "span": span,
        "trust": None,
    }
    return Passage(**(told | fields))


def test_without_a_permit_nothing_passes() -> None:
    with RawServer(stream(*GOOD)).running() as server:
        with pytest.raises(IntegrityError) as caught:
            post(None, chat_url(at(server)))
        assert server.connections == 0
    assert (caught.value.code, caught.value.context) == ("permit-refused", {"why": "missing"})


def test_one_request_passes_and_no_second() -> None:
    with RawServer(stream(*GOOD)).running() as server, Span(10, CancelToken()) as span:
        guard = GuardedTransport(passage(server, span))
        with httpx.Client(transport=guard, trust_env=False) as http:
            assert http.post(chat_url(at(server))).status_code == 200
            with pytest.raises(IntegrityError):
                http.post(chat_url(at(server)))
        (sent,) = server.exchanges
    assert sent.body == hello().body  # whatever the caller of the transport had built


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("GET", lambda url: url),
        ("POST", lambda url: url + "/x"),
        ("POST", lambda url: url + "?x=1"),
        ("POST", lambda url: url.replace("127.0.0.1", "localhost")),
        ("POST", lambda url: url.replace("http:", "https:")),
        ("POST", lambda url: url.replace("/v1/", "/v2/")),
    ],
)
def test_another_address_does_not_pass(method: str, change: Any) -> None:
    with RawServer(stream(*GOOD)).running() as server, Span(10, CancelToken()) as span:
        with pytest.raises(IntegrityError) as caught:
            post(passage(server, span), change(chat_url(at(server))), method)
        assert server.connections == 0
    assert caught.value.context == {"why": "destination"}


def test_other_bytes_do_not_pass() -> None:
    with RawServer(stream(*GOOD)).running() as server, Span(10, CancelToken()) as span:
        altered = dataclasses.replace(passage(server, span), body=hello(max_tokens=9).body)
        with pytest.raises(IntegrityError) as caught:
            post(altered, chat_url(at(server)))
        assert server.connections == 0
    assert caught.value.context == {"why": "payload"}


def test_plain_http_does_not_pass_for_a_destination_with_tls() -> None:
    with RawServer(stream(*GOOD)).running() as server, Span(10, CancelToken()) as span:
        far = at(server, url=server.url.replace("http:", "https:"))
        with pytest.raises(IntegrityError):
            post(passage(server, span, destination=far), chat_url(far))
        assert server.connections == 0


def test_a_passage_shows_nothing_of_the_request() -> None:
    with RawServer(stream(*GOOD)).running() as server, Span(10, CancelToken()) as span:
        assert "canary" not in repr(passage(server, span))


@pytest.mark.parametrize(
    "options",
    [{"deadline_s": 0}, {"deadline_s": float("nan")}, {"deadline_s": 1e9},
     {"idempotency_key": ""}, {"idempotency_key": "a b"}, {"idempotency_key": "a\r\nb"}],
)  # fmt: skip
def test_a_wrong_argument_leaves_the_permit_as_it_was(desk: Desk, options: dict[str, Any]) -> None:
    payload = hello()
    with RawServer(stream(*GOOD)).running() as server:
        destination = at(server)
        permit = desk.office.mint(destination, payload.body)
        with pytest.raises(InputError) as caught:
            desk.client.ask(permit, destination, payload, **options)
        assert caught.value.code == "cloud-ask-invalid"
        assert server.connections == 0
        desk.client.ask(permit, destination, payload)


def test_another_model_than_the_destinations_is_not_asked(desk: Desk) -> None:
    with RawServer(stream(*GOOD)).running() as server:
        with pytest.raises(InputError) as caught:
            desk.ask(at(server), hello(model="other"))
        assert server.connections == 0
    assert caught.value.code == "cloud-ask-invalid"


def test_a_refused_permit_touches_no_key_no_name_and_no_ledger(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    watching = True

    def audit(event: str, _arguments: Any) -> None:
        if watching and event.startswith(("socket.", "sqlite3.")):
            events.append(event)

    payload = hello()
    with RawServer(stream(*GOOD)).running() as server:
        destination = at(server)
        permit = desk.office.mint(destination, payload.body)
        sys.addaudithook(audit)
        with pytest.raises(IntegrityError):
            desk.client.ask(permit, destination, hello(max_tokens=9))
        watching = False
        assert server.connections == 0
    assert (events, desk.keys_read) == ([], [])


def test_importing_the_package_loads_nothing_of_the_network() -> None:
    code = (
        "import sys, edgewise.route.cloud\n"
        "found = {'openai', 'httpx', 'httpx2', 'h11', 'keyring', 'certifi'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_extra_there_is_no_client(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without(name: str) -> Any:
        return None if name == "openai" else found(name)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(UnsupportedError) as caught:
        CloudClient(desk.office.gate, spend=desk.ledger, secrets=Secrets())
    assert caught.value.code == "cloud-extra-missing"
    assert "edgewise[cloud]" in str(caught.value.hint)
