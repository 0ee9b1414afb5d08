"""Destinations: what may stand in an allow-list, and what an address means."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.errors import InputError
from edgewise.route.destinations import Basis, Destination, Price


def destination(**fields: Any) -> Destination:
    return Destination(**({"name": "far", "url": "https://far.example/v1", "model": "m"} | fields))


@pytest.mark.parametrize(
    ("url", "origin", "header"),
    [
        ("https://far.example/v1", "https://far.example:443", "far.example"),
        ("https://FAR.example:8443", "https://far.example:8443", "far.example:8443"),
        ("https://192.0.2.1/", "https://192.0.2.1:443", "192.0.2.1"),
        ("https://[2001:db8::1]/v1", "https://[2001:db8::1]:443", "[2001:db8::1]"),
        ("http://localhost:8080/v1", "http://localhost:8080", "localhost:8080"),
        ("http://127.0.0.1", "http://127.0.0.1:80", "127.0.0.1"),
        ("http://[::1]:9/v1", "http://[::1]:9", "[::1]:9"),
        ("https://xn--bcher-kva.example/v1", "https://xn--bcher-kva.example:443",
         "xn--bcher-kva.example"),
    ],
)  # fmt: skip
def test_addresses(url: str, origin: str, header: str) -> None:
    found = destination(url=url)
    assert (found.origin, found.host_header) == (origin, header)
    assert found.origin == f"{found.scheme}://{found.authority}"
    assert found.is_loopback == any(name in origin for name in ("localhost", "127.0.0.1", "[::1]"))


@pytest.mark.parametrize(
    "url",
    [
        "", "far.example", "ftp://far.example", "http://far.example/v1", "https://", "https:///v1",
        "https://user@far.example", "https://user:word@far.example", "https://@far.example",
        "https://far.example?x", "https://far.example/?", "https://far.example#x",
        "https://far.example:0", "https://far.example:99999", "https://far.example:x",
        "https://far.example/a b", "https://far.exam\nple", "https://far.example\t",
        "https://b\u00fccher.example", "https://far.example\\@evil.example", "https://[::1",
        "http://127.0.0.1.evil.example", "http://localhost.evil.example", "http://192.168.0.1",
        "javascript:alert(1)", "file:///etc/passwd", "https://" + "a" * 3000,
    ],
)  # fmt: skip
def test_what_is_no_address_of_a_server(url: str) -> None:
    with pytest.raises(InputError) as caught:
        destination(url=url)
    assert caught.value.code == "destination-invalid"
    assert "word" not in caught.value.message  # no credentials in messages


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""}, {"name": "a b"}, {"name": "-a"}, {"name": "a\n"}, {"name": "x" * 65},
        {"model": ""}, {"model": "a b"}, {"model": "a\r\n"}, {"secret": ""}, {"secret": "a b"},
        {"secret": "a=b"}, {"timeout_s": 0.0}, {"timeout_s": float("nan")}, {"timeout_s": 3601.0},
        {"connect_timeout_s": -1.0}, {"connect_timeout_s": 601.0}, {"retries": -1},
        {"retries": 11}, {"retention_days": -1}, {"ca_file": ""}, {"proxy": ""},
        {"proxy": "socks4://p:1"}, {"proxy": "socks5h://u:w@p:1"}, {"proxy": "p:3128"}, {"proxy": "http://u:w@p:1"},
        {"proxy": "http://"}, {"max_tokens_field": "n"},
    ],
)  # fmt: skip
def test_what_cannot_be_used(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        destination(**fields)
    assert caught.value.code == "destination-invalid"
    assert caught.value.hint


@pytest.mark.parametrize("field", ["input_per_million", "output_per_million", "daily_limit"])
@pytest.mark.parametrize("value", [-0.01, float("nan"), float("inf"), 1e12])
def test_what_is_no_price(field: str, value: float) -> None:
    told: dict[str, Any] = {"input_per_million": 1, "output_per_million": 1, "daily_limit": 1}
    Price(currency="EUR", **told)
    with pytest.raises(InputError):
        Price(currency="EUR", **(told | {field: value}))
    with pytest.raises(InputError):
        Price(currency="", **told)


def test_the_defaults_allow_nothing() -> None:
    found = destination()
    assert found.basis is Basis.NONE
    assert not found.idempotent
    assert found.secret is None


def test_it_survives_a_policy_file() -> None:
    price = Price(currency="EUR", input_per_million=1, output_per_million=2, daily_limit=3)
    found = destination(price=price, proxy="http://p.example:1", secret="far-key")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Destination) == found
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(
            {"name": "far", "url": "https://f", "model": "m", "verify": False}, Destination
        )


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    for url in (text, f"https://{text}", f"https://far.example/{text}"):
        try:
            found = destination(url=url)
        except InputError:
            continue
        assert found.url.isascii()
        assert found.host
        assert found.scheme == "https" or found.is_loopback
