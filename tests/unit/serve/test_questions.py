"""Questions in memory: one answer each, bounded, and forgotten in time."""

from __future__ import annotations

import threading

import pytest

from edgewise.errors import EdgewiseError, InputError, ResourceError
from edgewise.route.consent import ConsentPrompt, ConsentScope, SentField, consent_prompt
from edgewise.route.destinations import Basis, Destination
from edgewise.serve.clients import client_name
from edgewise.serve.questions import Questions


def prompt(purpose: str = "help") -> ConsentPrompt:
    return consent_prompt(
        ConsentScope(feature="f", data_class="personal", destination="far", purpose=purpose),
        Destination(name="far", url="https://far.example/v1", model="m", basis=Basis.CONSENT),
        fields=("messages",),
        reasons=("too long",),
        benefit="an answer",
        sent=(SentField(name="messages", characters=3),),
    )


def code(questions: Questions, name: str) -> str:
    with pytest.raises(InputError) as caught:
        questions.get(name)
    return caught.value.code


def test_a_flood_under_many_names_is_refused_and_ends_nobody_elses() -> None:
    now = [0.0]
    questions = Questions(per_address_max=8, total_max=12, clock=lambda: now[0])
    quiet = questions.ask(prompt(), client_name("127.0.0.1", "", "quiet", ""))
    for number in range(7):
        questions.ask(prompt(), client_name("127.0.0.1", "", f"agent {number}", f"user {number}"))
    with pytest.raises(ResourceError) as caught:
        questions.ask(prompt(), client_name("127.0.0.1", "", "another agent", "another user"))
    assert caught.value.code == "consent-questions-full"
    assert "from this address" in caught.value.message
    assert caught.value.context["retry_after_s"] == 900
    assert questions.get(quiet.id) is quiet
    for number in range(4):
        questions.ask(prompt(), client_name("::1", "", f"agent {number}", ""))
    with pytest.raises(ResourceError, match="too many questions of consent wait"):
        questions.ask(prompt(), client_name("::1", "", "agent", ""))
    now[0] = 900.0  # they have expired
    questions.ask(prompt(), client_name("127.0.0.1", "", "agent", ""))


def test_equal_questions_of_two_clients_have_names_of_their_own() -> None:
    questions = Questions()
    one, other = questions.ask(prompt(), "a"), questions.ask(prompt(), "b")
    assert one.id != other.id
    assert len(one.id) >= 32
    assert one.form_token not in (one.id, other.form_token)
    with questions.answering(one.id):
        pass
    assert questions.get(other.id) is other
    assert code(questions, one.id) == "consent-question-closed"
    assert code(questions, prompt().id) == "consent-question-unknown"


def test_it_ends_after_its_time() -> None:
    now = [0.0]
    questions = Questions(open_s=60, clock=lambda: now[0])
    asked = questions.ask(prompt(), "a")
    now[0] = 59.9
    assert questions.get(asked.id) is asked
    now[0] = 60.0
    assert code(questions, asked.id) == "consent-question-closed"
    with pytest.raises(InputError), questions.answering(asked.id):
        pass
    assert len(questions) == 0


def test_one_client_pushes_out_its_own_questions_only() -> None:
    questions = Questions(per_client_max=2, total_max=4)
    quiet = questions.ask(prompt(), "quiet")
    loud = [questions.ask(prompt(), "loud") for _ in range(50)]
    assert questions.get(quiet.id) is quiet
    assert [code(questions, one.id) for one in loud[:-2]] == ["consent-question-closed"] * 48
    assert questions.get(loud[-1].id) is loud[-1]
    questions.ask(prompt(), "third")
    with pytest.raises(ResourceError) as caught:
        questions.ask(prompt(), "fourth")
    assert caught.value.code == "consent-questions-full"
    assert caught.value.retryable


def test_an_answer_that_could_not_be_recorded_leaves_it_open() -> None:
    questions = Questions()
    asked = questions.ask(prompt(), "a")
    with pytest.raises(ResourceError, match="locked"), questions.answering(asked.id):
        raise ResourceError("database-locked", "locked")
    with questions.answering(asked.id):
        pass
    assert code(questions, asked.id) == "consent-question-closed"


def test_of_many_answers_at_once_one_counts() -> None:
    questions = Questions()
    asked = questions.ask(prompt(), "a")
    together, done = threading.Barrier(16), []

    def answer() -> None:
        together.wait(10)
        try:
            with questions.answering(asked.id):
                done.append("recorded")
        except EdgewiseError as error:
            done.append(error.code)

    threads = [threading.Thread(target=answer) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert done.count("recorded") == 1
    assert set(done) <= {"recorded", "consent-question-busy", "consent-question-closed"}


def test_it_shows_nothing_of_what_it_holds() -> None:
    questions = Questions()
    asked = questions.ask(prompt("a purpose to be seen"), "a")
    for text in (repr(questions), repr(asked), str(asked)):
        assert "purpose" not in text
        assert asked.id not in text
        assert asked.form_token not in text
