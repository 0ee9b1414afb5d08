"""What is remembered of judged answers: for one client, one request, and a while."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.serve.fakes import completed

from edgewise.core.request import Message, Request, Sampling
from edgewise.core.signals import Escalation
from edgewise.core.tools import Tool
from edgewise.errors import InputError
from edgewise.serve.judged import JudgedAnswers

ASKED = Request(
    messages=(Message(role="user", content="a-word-to-be-seen"),), data_class="personal"
)
DOUBTED = Escalation(judged=True, suggested=True, reasons=("0.7 is above 0.5",), evidence="e" * 64)


def keep(answers: JudgedAnswers, name: str, client: str = "a", request: Request = ASKED) -> None:
    answers.note(request, client)(name, completed("text", 1, escalation=DOUBTED))


def refusal(answers: JudgedAnswers, name: str, client: str = "a", request: Request = ASKED) -> str:
    with pytest.raises(InputError) as caught:
        answers.recall(name, client, request)
    assert caught.value.context["param"] == "edgewise.after"
    return caught.value.code


def test_it_is_the_clients_own_and_the_same_requests() -> None:
    answers = JudgedAnswers()
    keep(answers, "one")
    assert answers.recall("one", "a", ASKED) is DOUBTED
    assert answers.recall("one", "a", ASKED) is DOUBTED, "it is no licence, so it is not used up"
    assert refusal(answers, "one", "b") == "escalation-unknown"
    assert refusal(answers, "invented") == "escalation-unknown"


@pytest.mark.parametrize(
    "changed",
    [
        {"messages": (Message(role="user", content="another word"),)},
        {"messages": (Message(role="system", content="x"), *ASKED.messages)},
        {"data_class": "public"},
        {"task": "draft"},
        {"max_tokens": 7},
        {"stop": ("x",)},
        {"tools": (Tool(name="look"),)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_request_is_refused(changed: dict[str, Any]) -> None:
    answers = JudgedAnswers()
    keep(answers, "one")
    other = msgspec.structs.replace(ASKED, **changed)
    assert refusal(answers, "one", request=other) == "escalation-mismatch"


def test_how_it_is_sampled_and_reported_may_differ() -> None:
    answers = JudgedAnswers()
    keep(answers, "one")
    other = msgspec.structs.replace(
        ASKED, sampling=Sampling(temperature=0.5), signals=True, logprobs=1, deadline_s=3.0
    )
    assert answers.recall("one", "a", other) is DOUBTED


def test_what_nobody_judged_is_not_kept() -> None:
    answers = JudgedAnswers()
    answers.note(ASKED, "a")("one", completed("text", 1))
    assert (len(answers), refusal(answers, "one")) == (0, "escalation-unknown")


def test_it_is_kept_for_a_while() -> None:
    now = [0.0]
    answers = JudgedAnswers(kept_s=60, clock=lambda: now[0])
    keep(answers, "one")
    now[0] = 59.9
    assert answers.recall("one", "a", ASKED) is DOUBTED
    now[0] = 60.0
    assert refusal(answers, "one") == "escalation-expired"
    assert refusal(answers, "one", "b") == "escalation-unknown"
    assert len(answers) == 0


def test_one_client_pushes_out_its_own_first() -> None:
    answers = JudgedAnswers(per_client_max=2, total_max=4)
    keep(answers, "quiet", "quiet")
    for number in range(50):
        keep(answers, f"loud-{number}", "loud")
    assert answers.recall("quiet", "quiet", ASKED) is DOUBTED
    assert refusal(answers, "loud-47", "loud") == "escalation-expired"
    assert answers.recall("loud-48", "loud", ASKED) is DOUBTED
    for number in range(4):
        keep(answers, f"other-{number}", f"other-{number}")
    assert len(answers) == 4
    assert refusal(answers, "quiet", "quiet") == "escalation-expired"


def test_it_holds_nothing_of_what_was_asked_or_answered() -> None:
    answers = JudgedAnswers()
    keep(answers, "one")
    held = f"{answers!r} {vars(answers)}"
    assert "a-word" not in held
    assert "text" not in held
    other = JudgedAnswers()
    keep(other, "one")
    (first,), (second,) = answers._kept.values(), other._kept.values()
    assert first.asked != second.asked, "the digest tells nothing beyond one server's life"
