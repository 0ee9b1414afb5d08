"""Against a second Edgewise, over TLS: what one side sends is what the other takes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.route.cloud.servers import KEY, PROMPT, Authority, Desk, hello
from tests.unit.serve.fakes import MODEL, FakeSession, declined, failed, wait_for

from edgewise.core.outcome import FinishReason
from edgewise.core.request import Message, Request, Sampling
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolChoice
from edgewise.route.cloud import CancelToken, CloudFault, CloudPayload
from edgewise.route.destinations import Destination
from edgewise.serve.guard import Guard
from edgewise.serve.limits import Limits
from edgewise.serve.server import ApiServer

TOOL = Tool(name="look", parameters='{"type":"object","properties":{"a":{"type":"integer"}}}')


class TlsServer(ApiServer):
    """An Edgewise server that speaks TLS, as one behind a terminator does to its clients."""

    certificate: Path

    def _config(self) -> Any:
        config = super()._config()
        config.ssl_certfile = str(self.certificate)
        return config


@contextlib.contextmanager
def serving(
    authority: Authority, folder: Path, *sessions: Any, token: str | None = KEY, **fields: Any
) -> Iterator[Destination]:
    """Serve over TLS; yield the destination."""
    certificate = folder / "server.pem"
    issued = authority.ca.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(certificate)
    made = type("Served", (TlsServer,), {"certificate": certificate})(
        sessions,
        guard=Guard(host="127.0.0.1", token=token, origins=frozenset()),
        limits=Limits(grace_s=1.0),
    )
    ready = threading.Event()
    thread = threading.Thread(target=made.run, kwargs={"on_ready": lambda _ready: ready.set()})
    thread.start()
    try:
        assert ready.wait(10)
        yield Destination(
            **{
                "name": "far",
                "url": f"https://127.0.0.1:{made.port}/v1",
                "model": MODEL,
                "secret": "far-key",
                "ca_file": str(authority.file),
            }
            | fields
        )
    finally:
        made.stop()
        thread.join(20)
        assert not thread.is_alive()


def ask(**fields: Any) -> Request:
    return Request(**({"messages": (Message(role="user", content=PROMPT),)} | fields))


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer(desk: Desk, authority: Authority, tmp_path: Path, stream: bool) -> None:
    session = FakeSession()
    request = ask(max_tokens=20, sampling=Sampling(temperature=0.5, seed=7), stop=("END",))
    with serving(authority, tmp_path, session) as far:
        answer = desk.answers(far, CloudPayload.of(request, far, stream=stream))
    (asked,) = session.asked
    assert asked.messages == request.messages
    assert (asked.max_tokens, asked.sampling, asked.stop) == (20, request.sampling, ("END",))
    assert (answer.text, answer.finish) == ("Hello wörld", FinishReason.STOP)
    assert desk.heard == (["Hel", "lo ", "wörld"] if stream else ["Hello wörld"])
    assert answer.usage.prompt_tokens.number == 5
    assert answer.usage.completion_tokens.number == 3
    assert [e.code for e in answer.events] == []


def test_an_answer_cut_at_its_limit(desk: Desk, authority: Authority, tmp_path: Path) -> None:
    with serving(authority, tmp_path, FakeSession()) as far:
        answer = desk.answers(far, hello(model=MODEL, max_tokens=2))
    assert (answer.text, answer.finish) == ("Hello ", FinishReason.LENGTH)


@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_call(desk: Desk, authority: Authority, tmp_path: Path, stream: bool) -> None:
    request = ask(tools=(TOOL,), tool_choice=ToolChoice(mode="required", name="look"))
    with serving(authority, tmp_path, FakeSession(words=())) as far:
        answer = desk.answers(far, CloudPayload.of(request, far, stream=stream))
    assert answer.finish is FinishReason.TOOL_CALLS
    assert [(c.name, c.arguments) for c in answer.tool_calls] == [("look", '{"a":1}')]


def test_a_structure_reaches_the_other_side(
    desk: Desk, authority: Authority, tmp_path: Path
) -> None:
    structure = Structure(kind=StructureKind.JSON_SCHEMA, source='{"type":"object"}')
    session = FakeSession()
    with serving(authority, tmp_path, session) as far:
        desk.answers(far, CloudPayload.of(ask(structure=structure), far))
    assert session.asked[0].structure is not None
    assert session.asked[0].structure.kind is StructureKind.JSON_SCHEMA


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (lambda _request: declined("memory"), {CloudFault.OUTAGE, CloudFault.PERMISSION}),
        (lambda _request: failed(), {CloudFault.OUTAGE}),
    ],
)
def test_the_other_side_cannot_answer(
    desk: Desk, authority: Authority, tmp_path: Path, stream: bool, script: Any, fault: Any
) -> None:
    with serving(authority, tmp_path, FakeSession(script=script)) as far:
        failure = desk.fails(far, hello(model=MODEL, stream=stream))
    assert failure.fault in fault


def test_the_other_side_breaks_in_the_middle(
    desk: Desk, authority: Authority, tmp_path: Path
) -> None:
    class Breaking(FakeSession):
        def _answer(self, request: Request, on_chunk: Any) -> Any:
            super()._answer(request, on_chunk)
            return failed("Hello wörld")

    with serving(authority, tmp_path, Breaking()) as far:
        failure = desk.fails(far, hello(model=MODEL))
    assert failure.fault is CloudFault.BROKEN_ANSWER
    assert failure.partial_text == "Hello wörld"
    assert failure.may_have_acted


def test_a_wrong_key_and_a_wrong_model(desk: Desk, authority: Authority, tmp_path: Path) -> None:
    with serving(authority, tmp_path, FakeSession()) as far:
        other = msgspec.structs.replace(far, model="another")
        assert desk.fails(other, hello(model="another")).fault is CloudFault.MODEL_NOT_FOUND
        desk.key = "wrong"
        assert desk.fails(far, hello(model=MODEL)).fault is CloudFault.PERMISSION


def test_what_the_other_side_finds_wrong(desk: Desk, authority: Authority, tmp_path: Path) -> None:
    payload = hello(model=MODEL, top_p=0.5, temperature=0.0)  # a contradiction for Edgewise
    with serving(authority, tmp_path, FakeSession()) as far:
        failure = desk.fails(far, payload)
    assert (failure.fault, failure.may_have_acted) == (CloudFault.VALIDATION, False)


def test_cancelling_reaches_the_other_side(
    desk: Desk, authority: Authority, tmp_path: Path
) -> None:
    session = FakeSession(words=("a ",) * 2000, step_s=0.01)
    token = CancelToken()
    with serving(authority, tmp_path, session) as far:
        failure = desk.fails(
            far, hello(model=MODEL, max_tokens=2000), cancel=token, on_text=lambda _: token.cancel()
        )
        wait_for(lambda: session.cancelled == 1)
    assert failure.fault is CloudFault.CANCELLED
    assert failure.partial_text.startswith("a ")


def test_an_answer_of_many_pieces(desk: Desk, authority: Authority, tmp_path: Path) -> None:
    words = tuple(f"w{i} é " for i in range(500))
    session = FakeSession(words=words)
    with serving(authority, tmp_path, session) as far:
        answer = desk.answers(far, hello(model=MODEL, max_tokens=1000))
    assert answer.text == "".join(words) == "".join(desk.heard)


@pytest.mark.model
@pytest.mark.slow
def test_a_real_model_answers(
    desk: Desk, authority: Authority, tmp_path: Path, session: Any
) -> None:
    from edgewise.serve.app import model_id

    name = model_id(session.bundle)
    with serving(authority, tmp_path, session, model=name) as far:
        request = ask(messages=(Message(role="user", content="Name a fruit."),), max_tokens=12)
        answer = desk.answers(far, CloudPayload.of(request, far), deadline_s=120.0)
    assert answer.text.strip()
    assert answer.text == "".join(desk.heard)
    assert answer.usage.completion_tokens.number >= 1
    assert answer.model == name
