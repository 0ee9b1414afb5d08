"""No word of the request, the key or a header in a message, a value, a log or a traceback."""

from __future__ import annotations

import io
import logging
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.route.cloud.servers import (
    DONE,
    ECHO,
    FINISH,
    GOOD,
    KEY,
    OK_HEAD,
    PROMPT,
    Answer,
    Authority,
    Desk,
    RawServer,
    at,
    chunked,
    delta,
    event,
    hello,
    raw,
    status,
    stream,
)

from edgewise.core.request import Message
from edgewise.core.tools import Tool
from edgewise.route.cloud import CloudAnswer

CANARIES = (PROMPT, KEY, ECHO)
TOLD = {"error": {"message": f"{PROMPT} {KEY} {ECHO}", "code": PROMPT, "type": KEY, "param": ECHO}}
HEAD = OK_HEAD + f"X-Echo: {ECHO} {KEY}\r\nX-Request-Id: {ECHO}!\r\n".encode()
LOUD = {"X_Echo": f"{ECHO} {KEY}", "WWW_Authenticate": f"Bearer {KEY}", "Retry_After": ECHO}

ANSWERS: list[Answer] = [
    stream(*GOOD),
    raw(HEAD + b"\r\n", *GOOD),
    stream(event({"model": f"{PROMPT} {KEY}", "choices": []}), FINISH, DONE),
    stream(delta(PROMPT), b"data: {" + KEY.encode() + b"\n\n"),
    stream(event(TOLD)),
    stream(event({PROMPT: 1, KEY: 2})),
    stream(b'data: {"' + KEY.encode() + b'": 1, "' + KEY.encode() + b'": 1}\n\n'),
    stream(delta(finish=PROMPT)),
    stream(KEY.encode() + b"\n\n"),
    stream(
        delta(tool_calls=[{"index": 0, "id": KEY, "function": {"name": PROMPT, "arguments": KEY}}]),
        delta(finish="tool_calls"),
    ),
    chunked(delta(PROMPT), whole=False),
    *(status(number, TOLD, **LOUD) for number in (200, 302, 400, 401, 404, 429, 500, 511)),
    status(200, KEY.encode(), kind="text/html"),
    status(200, KEY.encode(), kind=f"text/{KEY}"),
    raw(f"HTTP/1.1 200 {ECHO} {KEY}\r\nContent-Length: {KEY}\r\n\r\n".encode()),
    raw(f"{KEY} {ECHO}\r\n\r\n".encode()),
    raw(b"HTTP/1.1 200 OK\r\nX: \x00" + KEY.encode() + b"\r\n\r\n"),
    raw(b""),
]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Everything that any library logs, at its loudest."""
    for name in ("OPENAI_LOG", "HTTPX_LOG_LEVEL"):
        monkeypatch.setenv(name, "debug")
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s %(args)s %(exc_info)s"))
    names = ("openai", "httpx", "httpcore", "httpx2", "httpcore2", "keyring", "asyncio")
    loggers = [logging.getLogger(name) for name in ("", *names)]
    before = [(one, one.level, one.propagate) for one in loggers]
    for one in loggers:
        one.setLevel(1)
        one.propagate = True
    loggers[0].addHandler(handler)
    yield written
    loggers[0].removeHandler(handler)
    for one, level, propagate in before:
        one.setLevel(level)
        one.propagate = propagate


def shown(found: Any) -> str:
    """Return all that a program may show of a result without meaning to show its text."""
    parts: list[Any] = [repr(found), str(found), list(found.__rich_repr__())]
    parts += [found.events, found.timings, found.usage, found.destination, found.request_id]
    if isinstance(found, CloudAnswer):
        parts += [found.model, found.finish]
    else:
        error = found.as_error()
        parts += [
            found.error,
            found.message,
            repr(error),
            str(error),
            traceback.format_exception(error),
        ]
        parts += [error.__cause__, error.__context__, found.retry_after_s, found.status]
    return " ".join(map(str, parts))


@pytest.mark.parametrize("number", range(len(ANSWERS)))
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_nothing_leaks(
    desk: Desk,
    authority: Authority,
    log: io.StringIO,
    capfd: pytest.CaptureFixture[str],
    number: int,
    tls: bool,
) -> None:
    payload = hello(tools=(Tool(name="look", description=PROMPT),), stop=(PROMPT,))
    with RawServer(ANSWERS[number], tls=authority.context() if tls else None).running() as server:
        destination = at(server, authority.file if tls else None, idempotent=False)
        found = desk.ask(destination, payload)
    output = capfd.readouterr()
    everything = shown(found) + log.getvalue() + output.out + output.err
    assert [word for word in CANARIES if word in everything] == []
    assert "openai" in log.getvalue()  # else nothing was listened to


def test_a_bug_shows_its_type_and_nothing_else(
    desk: Desk, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgewise.route.cloud import transport

    def bug(*_: Any) -> Any:
        raise RuntimeError(PROMPT + KEY)

    monkeypatch.setattr(transport, "_head", bug)
    with RawServer(stream(*GOOD)).running() as server:
        failure = desk.fails(at(server))
    assert (failure.fault.value, failure.code) == ("internal", "cloud-internal")
    assert failure.may_have_acted
    assert "RuntimeError" in failure.message
    assert not any(word in shown(failure) + log.getvalue() for word in CANARIES)


def test_a_refused_permit_shows_nothing(desk: Desk) -> None:
    from edgewise.errors import IntegrityError

    payload = hello()
    with RawServer(stream(*GOOD)).running() as server:
        destination = at(server)
        permit = desk.office.mint(destination, hello(max_tokens=9).body)
        with pytest.raises(IntegrityError) as caught:
            desk.client.ask(permit, destination, payload)
    lines = "".join(traceback.format_exception(caught.value))
    assert not any(word in lines + str(caught.value.to_dict()) for word in CANARIES)


def test_what_a_caller_raises_is_shown_without_the_request(desk: Desk) -> None:
    def fails(_text: str) -> None:
        raise RuntimeError("the caller's own")

    with RawServer(stream(*GOOD)).running() as server:
        try:
            desk.ask(
                at(server), hello(messages=(Message(role="user", content=PROMPT),)), on_text=fails
            )
        except RuntimeError:
            lines = "".join(traceback.format_exception(*sys.exc_info()))
    assert not any(word in lines for word in CANARIES)
