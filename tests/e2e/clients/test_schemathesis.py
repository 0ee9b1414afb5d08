"""Schemathesis reads the OpenAPI document and tries the server against it.

All of its checks are on, but two:

- ``positive_data_acceptance``: rules between parameters (such as ``top_p`` at temperature 0, or a
  last message that is not the user's) cannot be said in the document, so data that is right by the
  document may be refused. Which data that is, ``tests/unit/serve/test_asking.py`` holds.
- ``unsupported_method``: it asks with ``TRACE`` and methods that uvicorn answers for every path
  alike; ``tests/unit/serve/test_api.py`` holds what other methods get.

``negative_data_rejection`` is on: what is wrong by the document is never taken.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.route.cloud.servers import Authority
from tests.unit.serve.fakes import FakeSession, Served, serving
from tests.unit.serve.routed import routed

from edgewise.serve.limits import Limits

OFF = "positive_data_acceptance,unsupported_method"
EXAMPLES = 25


LIMITS = Limits(queue_max=1000, queue_per_client_max=1000, grace_s=0.2)
ALL = "examples,coverage,fuzzing,stateful"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "phases"), [(None, ALL), ("correct-horse-battery", "examples,fuzzing")]
)
def test_the_server_keeps_to_its_document(token: str | None, phases: str, tmp_path: Path) -> None:
    with serving(FakeSession(), token=token, limits=LIMITS) as served:
        try_all(served, tmp_path, token, phases)


@pytest.mark.slow
def test_a_server_under_a_policy_does_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with routed(tmp_path / "home", authority, able=True, serve={"limits": LIMITS}) as place:
        try_all(place.served, tmp_path, None, ALL)
        lines = place.served.lines
        assert [line for line in lines if line.startswith("GET /edgewise/v1/consent 200")]
        assert [line for line in lines if line.startswith("POST /edgewise/v1/consent/{id} 404")]
        assert place.far.connections == 0
        assert place.decisions() == []


def try_all(served: Served, folder: Path, token: str | None, phases: str) -> None:
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"),
        *("--checks", "all", "--exclude-checks", OFF),
        *("--max-examples", str(EXAMPLES), "--seed", "7", "--generation-database", "none"),
        *("--no-color", "--continue-on-failure", "--phases", phases),
    ]
    if token is not None:
        command += ["--header", f"Authorization: Bearer {token}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    assert "internal error" not in "\n".join(served.lines)
    for route in ("chat/completions", "completions", "responses"):
        taken = [line for line in served.lines if line.startswith(f"POST /v1/{route} 200")]
        assert taken or phases != ALL, route
