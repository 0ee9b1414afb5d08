"""The rate of requests: a burst, then the rate, each address by itself."""

from __future__ import annotations

import httpx
import pytest
from tests.unit.serve.fakes import FakeSession, serving

from edgewise.errors import ResourceError
from edgewise.serve.limits import Limits
from edgewise.serve.rate import RateLimit


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_minute_of_requests_at_once_and_then_the_rate() -> None:
    clock = Clock()
    rate = RateLimit(30, clock=clock)
    for _ in range(30):
        rate.take("a")
    with pytest.raises(ResourceError) as caught:
        rate.take("a")
    assert caught.value.code == "rate-limited"
    assert caught.value.context["retry_after_s"] == 2
    rate.take("b")
    clock.now += 2.0
    rate.take("a")
    with pytest.raises(ResourceError):
        rate.take("a")
    clock.now += 3600
    for _ in range(30):
        rate.take("a")
    with pytest.raises(ResourceError):
        rate.take("a")


def test_none_is_no_limit() -> None:
    rate = RateLimit(None)
    for _ in range(1000):
        rate.take("a")


def test_the_server_turns_an_address_away_whatever_it_calls_itself_and_says_when_to_come_back() -> (
    None
):
    limits = Limits(requests_per_minute=2, grace_s=1.0)
    with serving(FakeSession(), limits=limits) as served:

        def models(**headers: str) -> httpx.Response:
            return httpx.get(f"{served.url}/v1/models", headers=headers)

        replies = [models() for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert replies[2].json()["error"]["code"] == "rate-limited"
        # One request in 30 seconds, less what the three took.
        assert 0 < int(replies[2].headers["retry-after"]) <= 30
        for chosen in ({"user-agent": "another client"}, {"authorization": "Bearer another"}):
            assert models(**chosen).status_code == 429
        assert httpx.get(f"{served.url}/healthz").status_code == 200
