"""Payloads read back from the queue, and what failures of the client mean to it."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.core.quantity import Measured, Quantity, Unknown
from edgewise.core.request import Message, Request, Sampling
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolCall, ToolChoice
from edgewise.errors import RemoteError
from edgewise.route.cloud import CloudFailure, CloudFault, CloudPayload, CloudTimings, faults
from edgewise.route.cloud.faults import Fault
from edgewise.route.destinations import Destination
from edgewise.route.offline import (
    LinkState,
    MaybeSent,
    NotSent,
    RefusedPermanently,
    RetryLater,
)
from edgewise.workflow.queue_sender import result_of
from edgewise.workflow.queued_payload import fields_of, payload_of, request_of

FAR = Destination(name="far", url="https://far.example/v1", model="far-1b")
WEATHER = Tool(
    name="weather",
    description="Tells it",
    parameters='{"type": "object", "properties": {"at": {"type": "string"}}}',
)
CALL = ToolCall(id="c1", name="weather", arguments='{"at":"Paris"}')
TURNS = (
    Message(role="system", content="Be short."),
    Message(role="user", content="Weather?"),
    Message(role="assistant", content="", tool_calls=(CALL,)),
    Message(role="tool", content="rain", tool_call_id="c1", name="weather"),
)
HELLO = (Message(role="user", content="Hello"),)
SCHEMA = Structure(kind=StructureKind.JSON_SCHEMA, source='{"type": "object", "required": ["a"]}')

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
REQUESTS = st.builds(
    Request,
    messages=st.lists(
        st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=TEXTS),
        max_size=3,
    ).map(lambda turns: (*turns, Message(role="user", content="so?"))),
    max_tokens=st.none() | st.integers(1, 10**6),
    sampling=st.builds(
        Sampling,
        temperature=st.floats(0.01, 2),
        top_p=st.floats(0.01, 1),
        seed=st.none() | st.integers(0, 2**53 - 1),
    ),
    stop=st.lists(TEXTS, max_size=4).map(tuple),
)


@given(REQUESTS)
@settings(max_examples=200, deadline=None)
def test_what_was_queued_is_read_back_byte_for_byte(request: Request) -> None:
    body = CloudPayload.of(request, FAR).body
    payload = payload_of(body)
    assert payload is not None
    assert payload.body == body
    again = request_of(payload, task="summarise", data_class="personal")
    assert (again.messages, again.stop) == (request.messages, request.stop)
    assert (again.task, again.data_class) == ("summarise", "personal")


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({"messages": TURNS, "tools": (WEATHER,)}, ("messages", "tools")),
        (
            {
                "messages": HELLO,
                "tools": (WEATHER,),
                "tool_choice": ToolChoice(mode="required", name="weather", parallel=False),
            },
            ("messages", "tools"),
        ),
        (
            {"messages": HELLO, "tools": (WEATHER,), "tool_choice": ToolChoice(mode="none")},
            ("messages", "tools"),
        ),
        ({"messages": HELLO, "structure": SCHEMA}, ("messages", "structure")),
        (
            {"messages": HELLO, "structure": Structure(kind=StructureKind.JSON), "stop": ("x",)},
            ("messages", "structure", "stop"),
        ),
    ],
)
def test_every_field_is_read_back(fields: dict[str, Any], held: tuple[str, ...]) -> None:
    for place in (FAR, Destination(name="o", url=FAR.url, model="m",
                                   max_tokens_field="max_completion_tokens")):  # fmt: skip
        body = CloudPayload.of(Request(**fields), place).body
        payload = payload_of(body)
        assert payload is not None
        assert payload.body == body
        assert fields_of(payload) == held


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"model":"m","messages":"x","max_tokens":1,"stream":true}',
        b'{"extra":1,"max_tokens":1,"messages":[{"content":"x","role":"user"}],"model":"m"}',
        b'{"max_tokens":1,"messages":[{"content":"x","role":"user"}],"model":"m" ,"stream":false}',
        b"[" * 100_000,
    ],
)
def test_what_does_not_come_out_the_same_is_nothing(data: bytes) -> None:
    assert payload_of(data) is None


def failure(
    fault: Fault, *, acted: bool, attempts: int = 1, connected: bool = False
) -> CloudFailure:
    none = Unknown(reason="")
    connect: Quantity = Measured(value=1.0, source="clock") if connected else none
    return CloudFailure(
        destination="far",
        fault=fault.kind,
        error=fault.error.to_dict(),
        may_have_acted=acted,
        attempts=attempts,
        timings=CloudTimings(connect_ms=connect, ttft_ms=none, total_ms=none),
        retry_after_s=fault.retry_after_s,
        status=fault.status,
    )


def refused_certificate(number: int) -> Fault:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] x")
    error.verify_code, error.reason = number, "CERTIFICATE_VERIFY_FAILED"
    return faults.tls_refused(error, "https://far.example:443")


@pytest.mark.parametrize(
    ("fault", "link"),
    [
        (faults.nameless("far.example"), LinkState.OFFLINE),
        (faults.silence("looking up far.example", 1), LinkState.OFFLINE),
        (faults.silence("connecting", 1), LinkState.OFFLINE),
        (faults.silence("waiting for the server", 1), LinkState.HALF_OPEN),
        (faults.cut("connecting"), LinkState.OFFLINE),
        (faults.cut("TLS was negotiated"), LinkState.HALF_OPEN),
        (faults.unreachable("far:443", None), LinkState.OFFLINE),
        (faults.deadline(), LinkState.OFFLINE),
        (faults.proxy_refused(502), LinkState.OFFLINE),
        (faults.proxy_refused(511), LinkState.CAPTIVE_PORTAL),
        (faults.redirected(302), LinkState.CAPTIVE_PORTAL),
        (faults.status_fault(511, None, retry_after_s=None), LinkState.CAPTIVE_PORTAL),
        (refused_certificate(9), LinkState.CLOCK_SKEWED),
        (refused_certificate(10), LinkState.CLOCK_SKEWED),
        (refused_certificate(62), LinkState.DNS_LIES),
        (refused_certificate(19), LinkState.CAPTIVE_PORTAL),
        (faults.internal(ValueError()), LinkState.ONLINE),
        (faults.cancelled(), LinkState.ONLINE),
    ],
)
def test_what_was_not_sent(fault: Fault, link: LinkState) -> None:
    found = result_of(failure(fault, acted=False))
    assert isinstance(found, NotSent)
    assert found.link is link
    assert fault.error.code in found.reason


@pytest.mark.parametrize(
    ("fault", "link"),
    [
        (faults.silence("waiting for the server", 1), LinkState.HALF_OPEN),
        (faults.cut("waiting for the answer"), LinkState.HALF_OPEN),
        (faults.deadline(), LinkState.HALF_OPEN),
        (faults.web_page(200), LinkState.CAPTIVE_PORTAL),
        (faults.broken("it is not whole"), LinkState.ONLINE),
        (faults.status_fault(500, None, retry_after_s=5), LinkState.ONLINE),
        (faults.status_fault(503, None, retry_after_s=None), LinkState.ONLINE),
        (faults.status_fault(409, None, retry_after_s=None), LinkState.ONLINE),
        (refused_certificate(0), LinkState.HALF_OPEN),
        (faults.internal(ValueError()), LinkState.HALF_OPEN),
    ],
)
def test_what_may_have_been_done(fault: Fault, link: LinkState) -> None:
    found = result_of(failure(fault, acted=True))
    assert isinstance(found, MaybeSent)
    assert found.link is link


@pytest.mark.parametrize("number", [408, 425, 429])
def test_what_comes_later(number: int) -> None:
    found = result_of(failure(faults.status_fault(number, None, retry_after_s=7), acted=False))
    assert isinstance(found, RetryLater)
    assert found.after_s == 7


def test_a_limit_of_spending_is_another_one_tomorrow() -> None:
    fault = faults.over_limit("far", needed="2 EUR", left="1 EUR", day="2026-12-01")
    found = result_of(failure(fault, acted=False, attempts=0))
    assert isinstance(found, RetryLater)
    assert found.after_s is not None
    assert 0 <= found.after_s <= 86400


@pytest.mark.parametrize("number", [400, 401, 402, 403, 404, 413, 422])
def test_what_never_comes(number: int) -> None:
    found = result_of(failure(faults.status_fault(number, None, retry_after_s=None), acted=False))
    assert isinstance(found, RefusedPermanently)
    assert found.status == number


def test_a_key_that_is_missing_here_is_no_refusal() -> None:
    fault = faults.here(CloudFault.PERMISSION, RemoteError("secret-missing", "there is none"))
    found = result_of(failure(fault, acted=False, attempts=0))
    assert found == NotSent(link=LinkState.ONLINE, reason="secret-missing: there is none")
