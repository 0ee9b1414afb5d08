"""Two servers with a real model, as processes: one routes by a signed policy, the other is where
its requests may go, over TLS. OpenAI's own client asks the first one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from openai import OpenAI
from tests.unit.route.calibrate.made import made_cases
from tests.unit.route.cloud.servers import Answer, Authority, Exchange, RawServer

from edgewise.store import Home
from edgewise.workflow.context import Context

pytestmark = [pytest.mark.model, pytest.mark.slow]

MAIL = "ada.lovelace@example.org"
TOKEN = "correct-horse-battery-staple"
LETTER: Any = [{"role": "user", "content": f"Whom do I write to? To {MAIL}, soon."}]
# The answer has the placeholder for certain, so that it can be seen to come back. It is spelled so
# that the structure does not read as a placeholder of the user's own, which would get another one.
WHOM: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "whom",
        "schema": {
            "type": "object",
            "properties": {"to": {"type": "string", "pattern": r"^\[[E][M]AIL_1\]$"}},
            "required": ["to"],
            "additionalProperties": False,
        },
    },
}
POLICY = """
name = "letters"
feature = "letters"
issued_at = "2026-01-01T00:00:00Z"
expires_at = "2999-01-01T00:00:00Z"

[[tasks]]
name = "chat"                      # answered here; in doubt, it may be asked elsewhere
cloud = "when-needed"
destinations = ["far"]
escalate = true

[[tasks]]
name = "draft"                     # this device has no such evidence, so it cannot answer
cloud = "when-needed"
destinations = ["far"]
evidence = ["drafts"]

[[destinations]]
name = "far"
url = "{url}"
model = "{model}"
purpose = "drafts that need a larger model"
region = "EU"
retention_days = 0
basis = "consent"
secret = "far-key"
ca_file = "{ca}"
timeout_s = 300

[[consent]]
destination = "far"
standing_days = 7

[[minimise]]
destination = "far"
fields = ["messages", "structure"]

[device]
links = ["online", "offline", "unknown"]   # a machine that runs tests may have no network
when_memory_short = true
when_storage_low = true
when_battery_low = true
"""


@dataclass
class Pair:
    """Both servers and what passed between them."""

    url: str
    model: str
    far: RawServer
    near_log: Path
    far_log: Path

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=300)

    def answer(self, question: dict[str, Any], choice: str, **more: Any) -> None:
        told = httpx.post(self.url + question["answer"], json={"choice": choice, **more})
        assert told.status_code == 200, told.text


def edgewise(home: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edgewise.cli", *arguments],
        env={**os.environ, "EDGEWISE_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def served(home: Path, log: Path, *arguments: str, **environment: str) -> Iterator[dict[str, Any]]:
    """Run ``edgewise serve`` until the block ends; yield what it says when it is ready."""
    command = [sys.executable, "-m", "edgewise.cli", "serve", "--port", "0", "--json", *arguments]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            env={**os.environ, "EDGEWISE_HOME": str(home), **environment},
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield json.loads(line)
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def copied(home: Path, folder: Path) -> Path:
    """Return a home of its own with the same deployment; its large files are shared."""

    def take(source: str, target: str) -> None:
        if Path(source).stat().st_size > 1 << 20:
            with contextlib.suppress(OSError):
                os.link(source, target)
                return
        shutil.copy2(source, target)

    shutil.copytree(home, folder, copy_function=take)
    return folder


def passed_on(port: int) -> Answer:
    """Hand a request to the server at a port, and its answer back: what ends TLS for a server."""

    def answer(exchange: Exchange) -> None:
        lines = exchange.head.split(b"\r\n")
        lines = [line for line in lines if not line.lower().startswith(b"connection:")]
        with socket.create_connection(("127.0.0.1", port)) as server:
            server.sendall(b"\r\n".join([*lines, b"Connection: close", b"", exchange.body]))
            while data := server.recv(1 << 16):
                exchange.send(data)

    return answer


def calibrate(home: Path, folder: Path) -> None:
    """Have it proved that only answers without any doubt are kept, which no real one is."""
    bundle = Context(Home(home)).bundles.active()
    lines = [
        msgspec.json.encode(
            msgspec.structs.replace(case, signals={"entropy_mean": case.signals["u"] / 1e6})
        )
        for case in made_cases(500, 1, fingerprint=bundle.fingerprint)
    ]
    file = folder / "cases.jsonl"
    file.write_bytes(b"\n".join(lines) + b"\n")
    edgewise(home, "calibrate", str(file))


@pytest.fixture(scope="module")
def pair(ready_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    authority = Authority(folder)
    near_home = copied(ready_home, folder / "near")
    calibrate(near_home, folder)
    logs = folder / "near.log", folder / "far.log"
    with contextlib.ExitStack() as stack:
        far_home = copied(ready_home, folder / "far")
        there = stack.enter_context(served(far_home, logs[1], EDGEWISE_API_TOKEN=TOKEN))
        ends = RawServer(passed_on(httpx.URL(there["url"]).port or 0), tls=authority.context())
        far = stack.enter_context(ends.running())
        policy = folder / "policy.toml"
        told = POLICY.format(url=far.url, model=there["model"], ca=authority.file)
        policy.write_text(told, encoding="utf-8")
        edgewise(near_home, "policy", "keygen", "team", "--key", str(folder / "team.key"))
        edgewise(near_home, "policy", "sign", str(policy), "--key", str(folder / "team.key"))
        arguments = ("--policy", str(policy))
        here = stack.enter_context(
            served(near_home, logs[0], *arguments, EDGEWISE_SECRET_FAR_KEY=TOKEN)
        )
        yield Pair(here["url"], here["model"], far, *logs)


def asked(client: OpenAI, pair: Pair, edgewise: dict[str, Any], **fields: Any) -> Any:
    body: dict[str, Any] = {"model": pair.model, "messages": LETTER, "max_tokens": 40} | fields
    made = client.chat.completions.with_raw_response.create(
        **body, extra_body={"edgewise": edgewise}
    )
    return made.headers, made.parse()


def question_of(client: OpenAI, pair: Pair, edgewise: dict[str, Any], **fields: Any) -> Any:
    with pytest.raises(openai.PermissionDeniedError) as caught:
        asked(client, pair, edgewise, **fields)
    body: Any = caught.value.body
    assert (caught.value.code, body["edgewise"]["outcome"]) == (
        "consent-required",
        "consent_required",
    )
    return body["edgewise"]["question"]


DRAFT = {"task": "draft", "data_class": "personal"}


def test_what_is_local_is_answered_here_and_what_may_not_leave_is_declined(pair: Pair) -> None:
    before = pair.far.connections
    with pair.client() as client:
        headers, reply = asked(client, pair, {})
        assert headers["x-edgewise-route"] == "local"
        assert reply.choices[0].message.content
        with pytest.raises(openai.PermissionDeniedError) as caught:
            asked(client, pair, {"task": "draft", "data_class": "local-only"})
    body: Any = caught.value.body
    assert (caught.value.code, body["edgewise"]["outcome"]) == ("declined-by-policy", "declined")
    assert "question" not in body["edgewise"]
    assert "local-only data never leaves the device" in body["edgewise"]["reasons"]
    assert pair.far.connections == before


def test_what_was_agreed_to_is_asked_over_tls_and_comes_back_whole(pair: Pair) -> None:
    before = pair.far.connections
    with pair.client() as client:
        question = question_of(client, pair, DRAFT, response_format=WHOM)
        assert pair.far.connections == before
        # All that an application shows: why, what for, what leaves, to whom, and what to choose.
        assert any("drafts" in reason for reason in question["reasons"])
        assert question["benefit"] == f"an answer by {pair.model}"
        assert [one["name"] for one in question["sent"]] == ["messages", "structure"]
        assert question["replaced"] == [{"kind": "email", "count": 1}]
        recipient = question["recipient"]
        assert (recipient["name"], recipient["region"]) == ("far", "EU")
        assert pair.far.url.startswith(recipient["origin"])
        assert question["choices"] == ["once", "until", "no"]
        pair.answer(question, "once")
        headers, reply = asked(client, pair, DRAFT, response_format=WHOM)
        assert headers["x-edgewise-route"] == "cloud"
        assert headers["x-edgewise-destination"] == "far"
        assert MAIL in json.loads(reply.choices[0].message.content)["to"]
        # It was for one use.
        question_of(client, pair, DRAFT, response_format=WHOM)
    assert pair.far.connections == before + 1


def test_a_standing_consent_and_a_stream(pair: Pair) -> None:
    until = (dt.datetime.now(dt.UTC) + dt.timedelta(days=2)).isoformat()
    with pair.client() as client:
        pair.answer(question_of(client, pair, DRAFT), "until", until=until)
        for _ in range(2):
            headers, stream = asked(client, pair, DRAFT, response_format=WHOM, stream=True)
            assert headers["x-edgewise-route"] == "cloud"
            chunks = list(stream)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert MAIL in json.loads(text)["to"]
            assert chunks[-1].model_extra["edgewise"]["destination"] == "far"
        decisions = httpx.get(f"{pair.url}/edgewise/v1/consent").json()["data"]
        (standing,) = [one for one in decisions if one["state"] == "granted"]
        httpx.delete(f"{pair.url}/edgewise/v1/consent/{standing['id']}").raise_for_status()
        question_of(client, pair, DRAFT)


def test_a_doubted_answer_is_offered_and_another_request_asks_elsewhere(pair: Pair) -> None:
    chat = {"data_class": "personal"}
    before = pair.far.connections
    with pair.client() as client:
        headers, first = asked(client, pair, chat | {"signals": True})
        assert headers["x-edgewise-route"] == "local"
        assert headers["x-edgewise-verification"] == "unverified"
        told = first.model_extra["edgewise"]
        assert told["escalation"]["suggested"]
        assert told["signals"]["raw"]["entropy_mean"] > 0
        assert pair.far.connections == before, "a doubt sends nothing"
        question = question_of(client, pair, chat | {"after": first.id})
        pair.answer(question, "once")
        headers, second = asked(client, pair, chat | {"after": first.id})
        assert headers["x-edgewise-route"] == "cloud"
        assert second.choices[0].message.content
        with pytest.raises(openai.NotFoundError) as caught:
            asked(client, pair, chat | {"after": "chatcmpl-invented"})
        assert caught.value.code == "escalation-unknown"
    assert pair.far.connections == before + 1


def test_only_what_was_minimised_left_and_no_log_holds_a_word(pair: Pair) -> None:
    with pair.client() as client:
        pair.answer(question_of(client, pair, DRAFT), "once")
        asked(client, pair, DRAFT)
    assert pair.far.exchanges
    for exchange in pair.far.exchanges:
        assert MAIL.encode() not in exchange.body
        assert b"lovelace" not in exchange.body
        assert b"[EMAIL_1]" in exchange.body
        assert b"personal" not in exchange.body
    far = pair.far_log.read_text()
    assert far.count("POST /v1/chat/completions 200") == len(pair.far.exchanges)
    for log in (far, pair.near_log.read_text()):
        for word in (MAIL, "lovelace", "EMAIL_1", "Whom", TOKEN):
            assert word not in log
