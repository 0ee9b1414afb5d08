"""Who may speak to the server."""

from __future__ import annotations

import pytest

from edgewise.errors import InputError
from edgewise.serve.guard import Guard, is_loopback, valid_origin

TOKEN = "correct-horse-battery"


def refused(call) -> str:
    with pytest.raises(InputError) as caught:
        call()
    return caught.value.code


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:80", "127.9.9.9"]
)
def test_loopback_names_are_this_server(host: str) -> None:
    Guard(host="127.0.0.1").check_host(host)


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "192.168.0.7",
        "10.0.0.1:8080",
        "localhost:8080:8080",
        "127.0.0.1@evil.example",
        " 127.0.0.1",
        "0.0.0.0",
        "[::1",
    ],
)
def test_other_names_are_refused(host: str | None) -> None:
    assert refused(lambda: Guard(host="127.0.0.1").check_host(host)) == "host-refused"


def test_the_address_it_listens_on_is_this_server() -> None:
    Guard(host="192.168.0.7", token=TOKEN).check_host("192.168.0.7:8080")
    Guard(host="box.local", token=TOKEN).check_host("BOX.local:8080")
    everywhere = Guard(host="0.0.0.0", token=TOKEN)
    everywhere.check_host("192.168.0.7:8080")
    assert refused(lambda: everywhere.check_host("rebound.example")) == "host-refused"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "box.local", ""])
def test_beyond_loopback_a_token_is_needed(host: str) -> None:
    assert refused(lambda: Guard(host=host)) == "token-required"
    Guard(host=host, token=TOKEN)


@pytest.mark.parametrize("token", ["", "short", "p\u00e4ssword-p\u00e4ssword"])
def test_a_weak_token_is_refused(token: str) -> None:
    assert refused(lambda: Guard(host="127.0.0.1", token=token)) == "token-weak"


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Basic " + TOKEN, TOKEN, "Bearer wrong", f"Bearer {TOKEN}x"],
)
def test_the_token_has_to_be_right(authorization: str | None) -> None:
    guard = Guard(host="127.0.0.1", token=TOKEN)
    assert refused(lambda: guard.check_token(authorization)) == "token-refused"


def test_the_right_token_and_none_where_none_is_needed() -> None:
    Guard(host="127.0.0.1", token=TOKEN).check_token(f"bearer {TOKEN}")
    Guard(host="127.0.0.1").check_token(None)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:8080"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_web_pages_are_refused(headers: dict[str, str]) -> None:
    assert refused(lambda: Guard(host="127.0.0.1").check_origin(headers)) == "origin-refused"


def test_programs_and_allowed_pages_pass() -> None:
    guard = Guard(host="127.0.0.1", origins=frozenset({"https://app.example"}))
    guard.check_origin({})
    guard.check_origin({"sec-fetch-site": "none"})
    guard.check_origin({"origin": "https://app.example", "sec-fetch-site": "cross-site"})
    denied = {"origin": "https://app.example.evil", "sec-fetch-site": "cross-site"}
    assert refused(lambda: guard.check_origin(denied)) == "origin-refused"


def test_origins_are_written_as_browsers_do() -> None:
    assert valid_origin("HTTPS://App.Example/") == "https://app.example"
    for text in ("*", "app.example", "https://a/b", "https://", "null", ""):
        assert refused(lambda text=text: valid_origin(text)) == "origin-invalid"


def test_loopback_is_told_by_address_not_by_looks() -> None:
    assert is_loopback("::1")
    assert not is_loopback("127.0.0.1.nip.io")
    assert not is_loopback("localhost.localdomain")
