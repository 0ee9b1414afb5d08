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
from tests.unit.serve.fakes import FakeSession, serving

from edgewise.serve.limits import Limits

OFF = "positive_data_acceptance,unsupported_method"
EXAMPLES = 25


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "phases"),
    [(None, "examples,coverage,fuzzing,stateful"), ("correct-horse-battery", "examples,fuzzing")],
)
def test_the_server_keeps_to_its_document(token: str | None, phases: str, tmp_path: Path) -> None:
    session = FakeSession()
    limits = Limits(queue_max=1000, queue_per_client_max=1000, grace_s=0.2)
    with serving(session, token=token, limits=limits) as served:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"),
            *("--checks", "all", "--exclude-checks", OFF),
            *("--max-examples", str(EXAMPLES), "--seed", "7", "--generation-database", "none"),
            *("--no-color", "--continue-on-failure", "--phases", phases),
        ]
        if token is not None:
            command += ["--header", f"Authorization: Bearer {token}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
        assert "internal error" not in "\n".join(served.lines)
        for route in ("chat/completions", "completions", "responses"):
            taken = [line for line in served.lines if line.startswith(f"POST /v1/{route} 200")]
            assert taken or phases != "examples,coverage,fuzzing,stateful", route
