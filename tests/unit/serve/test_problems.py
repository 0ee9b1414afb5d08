"""Errors in the API's own shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.serve.fakes import FINGERPRINT, completed, declined, failed

from edgewise.core.outcome import FinishReason
from edgewise.errors import AdapterError, EdgewiseError, InputError, IntegrityError, ResourceError
from edgewise.serve.problems import ProblemError, answered


def problem_of(outcome) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        answered(outcome)
    return caught.value


def body_of(problem: ProblemError) -> Any:
    return msgspec.json.decode(msgspec.json.encode(problem.reply))["error"]


def test_an_error_keeps_its_code_hint_and_context() -> None:
    error = InputError("prompt-too-long", "too long", context={"field": "prompt"}, hint="shorten")
    problem = ProblemError(error)
    assert problem.status == 400
    assert body_of(problem) == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "prompt",
        "code": "prompt-too-long",
        "edgewise": {"type": "InputError", "hint": "shorten", "context": {"field": "prompt"}},
    }


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InputError("token-refused", "no"), 401, "authentication_error"),
        (InputError("host-refused", "no"), 403, "permission_error"),
        (InputError("model-not-found", "no"), 404, "invalid_request_error"),
        (ResourceError("queue-full", "no"), 429, "rate_limit_error"),
        (ResourceError("deadline-exceeded", "no"), 504, "server_error"),
        (ResourceError("something-else", "no"), 503, "server_error"),
        (IntegrityError("artifact-corrupt", "no"), 500, "server_error"),
        (AdapterError("worker-crashed", "no"), 500, "server_error"),
        (EdgewiseError("internal-error", "no"), 500, "server_error"),
    ],
)
def test_each_error_has_its_status(error: EdgewiseError, status: int, kind: str) -> None:
    problem = ProblemError(error)
    assert (problem.status, body_of(problem)["type"]) == (status, kind)


def test_headers_say_when_to_come_back_and_whether() -> None:
    busy = ResourceError("queue-full", "no", context={"retry_after_s": 7}, retryable=True)
    assert ("retry-after", "7") in ProblemError(busy).headers
    assert ("x-should-retry", "false") in ProblemError(IntegrityError("x", "no")).headers
    assert ("www-authenticate", "Bearer") in ProblemError(InputError("token-refused", "")).headers


@pytest.mark.parametrize(
    ("rules", "status", "code"),
    [
        (("data-class-allowed",), 403, "declined-by-policy"),
        (("memory", "task-allowed"), 403, "declined-by-policy"),
        (("memory",), 503, "declined-by-state"),
        (("thermal", "battery"), 503, "declined-by-state"),
    ],
)
def test_a_declined_request_gives_its_reasons(
    rules: tuple[str, ...], status: int, code: str
) -> None:
    problem = problem_of(declined(*rules))
    body = body_of(problem)
    assert (problem.status, body["code"]) == (status, code)
    assert body["edgewise"]["reasons"] == [f"no: {rule}" for rule in rules]
    assert ("x-edgewise-route", "decline") in problem.headers
    assert ("x-edgewise-fingerprint", FINGERPRINT) in problem.headers


def test_an_answer_that_was_ended_from_outside_is_no_answer() -> None:
    late = body_of(problem_of(completed("par", 1, finish=FinishReason.DEADLINE)))
    assert (late["code"], late["edgewise"]["partial_text"]) == ("deadline-exceeded", "par")
    assert problem_of(completed("", 0, finish=FinishReason.CANCELLED)).error.code == (
        "answer-cancelled"
    )
    broken = problem_of(failed("par"))
    assert (broken.status, broken.error.code) == (500, "worker-crashed")
    assert body_of(broken)["edgewise"]["partial_text"] == "par"
    assert answered(completed("whole", 1)).text == "whole"
    assert answered(completed("cut", 1, finish=FinishReason.LENGTH)).text == "cut"


def test_a_context_that_is_no_json_is_left_out_not_fatal() -> None:
    problem = ProblemError(InputError("x", "y", context={"path": Path("a"), "n": 1}))
    assert body_of(problem)["code"] == "x"
