"""Clients in JavaScript against the server: OpenAI's own and Vercel's AI SDK, from their packages.

`make test` puts the packages, locked in ``node/package-lock.json``, into ``.cache/clients``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.unit.serve.fakes import (
    MODEL,
    FakeSession,
    Served,
    declined,
    failed,
    serving,
    wait_for,
)

from edgewise.core.outcome import Outcome
from edgewise.core.structure import StructureKind
from edgewise.serve.limits import Limits

SCRIPTS = Path(__file__).parent / "node"
PACKAGES = Path(__file__).parents[3] / ".cache" / "clients" / "node_modules"
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NODE is None, reason="Node.js is not on the search path"),
    pytest.mark.skipif(
        not PACKAGES.is_dir(), reason=f"no packages in {PACKAGES.parent}: run `make test` once"
    ),
]


def run(served: Served, folder: Path, script: str, check: str) -> None:
    """Run one check of a script beside the packages that it imports."""
    shutil.copy(SCRIPTS / f"{script}.mjs", folder)
    (folder / "node_modules").symlink_to(PACKAGES)
    command = [str(NODE), f"{script}.mjs", check, f"{served.url}/v1", MODEL]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert not [line for line in served.lines if "internal error" in line]


@pytest.mark.parametrize(
    ("script", "check"),
    [
        ("openai", "models"),
        ("openai", "chat"),
        ("openai", "defaults"),
        ("openai", "stream"),
        ("openai", "tools"),
        ("openai", "completions"),
        ("openai", "responses"),
        ("openai", "refused"),
        ("ai", "text"),
        ("ai", "stream"),
        ("ai", "tools"),
        ("ai", "refused"),
    ],
)
def test_what_an_ordinary_server_answers(tmp_path: Path, script: str, check: str) -> None:
    with serving(FakeSession()) as served:
        run(served, tmp_path, script, check)


@pytest.mark.parametrize("script", ["openai", "ai"])
def test_a_schema_reaches_the_session_and_the_answer_its_types(tmp_path: Path, script: str) -> None:
    session = FakeSession(('{"name":"apple",', '"grams":5}'))
    with serving(session) as served:
        run(served, tmp_path, script, "schema")
    asked = [request.structure for request in session.asked]
    assert len(asked) == 2
    for structure in asked:
        assert structure.kind is StructureKind.JSON_SCHEMA
        assert json.loads(structure.source)["required"] == ["name", "grams"]


@pytest.mark.parametrize("script", ["openai", "ai"])
def test_who_asks_too_often_is_told_when_to_come_back(tmp_path: Path, script: str) -> None:
    with serving(FakeSession(), limits=Limits(requests_per_minute=1)) as served:
        run(served, tmp_path, script, "busy")


def test_a_token(tmp_path: Path) -> None:
    with serving(FakeSession(), token="correct-horse-battery") as served:
        run(served, tmp_path, "openai", "token")


def test_declined_requests(tmp_path: Path) -> None:
    outcomes: list[Outcome] = [declined("task-allowed"), declined("memory")]
    with serving(FakeSession(script=lambda _request: outcomes.pop(0))) as served:
        run(served, tmp_path, "openai", "declined")


def test_a_failure_that_may_pass_is_tried_again(tmp_path: Path) -> None:
    outcomes: list[Outcome | None] = [failed(), None]
    session = FakeSession(script=lambda _request: outcomes.pop(0))
    with serving(session) as served:
        run(served, tmp_path, "openai", "retried")
    assert len(session.asked) == 2


@pytest.mark.parametrize(("script", "cancelled"), [("openai", 2), ("ai", 1)])
def test_an_abort_cancels_and_the_next_is_answered(
    tmp_path: Path, script: str, cancelled: int
) -> None:
    session = FakeSession(("word ",) * 4000, step_s=0.002)
    with serving(session) as served:
        run(served, tmp_path, script, "abort")
        wait_for(lambda: session.cancelled == cancelled)


@pytest.mark.parametrize("script", ["openai", "ai"])
def test_an_error_in_the_stream_never_looks_like_an_end(tmp_path: Path, script: str) -> None:
    with serving(FakeSession(("word ",) * 4000, step_s=0.002)) as served:
        run(served, tmp_path, script, "broken")
