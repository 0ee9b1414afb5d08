"""A classifier in a home: learned, kept, opened under a policy, and asked for a route."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.unit.route.classify.made import cases, lines
from tests.unit.route.cloud.servers import Authority, RawServer
from tests.unit.workflow.worlds import World

from edgewise.cli import _run
from edgewise.core.outcome import Completed, Declined, Route
from edgewise.core.request import Message, Request
from edgewise.errors import InputError, IntegrityError
from edgewise.route.classify import CLASSIFIER_KIND, LearnSettings
from edgewise.route.classify.model import MODEL_BYTES_MAX
from edgewise.route.facts import ClassifiedTask
from edgewise.route.policy import ClassifierRule, CloudUse, TaskRule
from edgewise.store import Home
from edgewise.workflow.classifying import (
    find_classifier,
    learn_classifier,
    load_model,
    model_path,
    open_classifier,
)
from edgewise.workflow.context import Context
from edgewise.workflow.hybrid import open_hybrid

LETTER = "Write a kind letter to Anna about the pears in the garden, and mention ropes."
SUMS = "Ivo has some coins and buys boxes at the market. How many are there in total?"
SECRET = "zanzibar"  # in one case only


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A home with a classifier, and the digest of its evidence. Copy it before altering it."""
    root = tmp_path_factory.mktemp("learned")
    found = cases(450)
    found[0] = type(found[0])(prompt=f"{found[0].prompt} {SECRET}", task=found[0].task)
    (root / "cases.jsonl").write_bytes(lines(found))
    context = Context(Home(root / "home"))
    report, digest = learn_classifier(context, root / "cases.jsonl", LearnSettings())
    assert [one.task for one in report.evidence.tasks if one.threshold is not None] == [
        "code",
        "letters",
        "sums",
    ]
    return root / "home", digest


@pytest.fixture
def own(learned: tuple[Path, str], tmp_path: Path) -> tuple[Context, ClassifierRule]:
    """A copy of that home, and the rule that trusts its classifier."""
    shutil.copytree(learned[0], tmp_path / "own")
    return Context(Home(tmp_path / "own")), ClassifierRule(evidence=learned[1])


def asked(text: str = LETTER, **fields) -> Request:
    fields.setdefault("data_class", "personal")
    fields.setdefault("max_tokens", 8)
    return Request(messages=(Message(role="user", content=text),), task="auto", **fields)


def test_what_is_kept_holds_no_text(learned: tuple[Path, str]) -> None:
    home, digest = learned
    for path in home.rglob("*"):
        if path.is_file():
            text = path.read_text("utf-8", "replace").lower()
            assert SECRET not in text
            assert "harbour" not in text
            assert "kind letter" not in text
    piece = json.loads((home / "evidence" / f"{digest}.json").read_bytes())
    assert piece["kind"] == CLASSIFIER_KIND


def test_it_says_a_task_with_a_score(own: tuple[Context, ClassifierRule]) -> None:
    context, rule = own
    classifier = open_classifier(context, rule)
    assert classifier.reasons() == ()
    said = classifier.say(asked())
    assert (said.stands, said.task, said.evidence) == (True, "letters", rule.evidence)
    assert said.score >= said.threshold > 0.5
    assert classifier.say(asked(SUMS)).task == "sums"


def test_the_users_last_turn_is_read(own: tuple[Context, ClassifierRule]) -> None:
    classifier = open_classifier(*own)
    turns = (
        Message(role="system", content=SUMS),
        Message(role="user", content=SUMS),
        Message(role="assistant", content="Three."),
        Message(role="user", content=LETTER),
        Message(role="tool", content=SUMS, tool_call_id="1", name="look"),
    )
    assert classifier.say(Request(messages=turns, task="auto")).task == "letters"
    assert classifier.say(Request(prompt=LETTER, task="auto")).task == "letters"


@pytest.mark.parametrize(
    "request_",
    [
        Request(prompt=(1, 2, 3), task="auto"),
        Request(messages=(Message(role="user", content="\u200b\u202e"),), task="auto"),
        Request(
            messages=(Message(role="tool", content=SUMS, tool_call_id="1", name="look"),),
            task="auto",
        ),
    ],
    ids=["token-ids", "invisible", "no-user"],
)
def test_where_nothing_can_be_read_it_says_so(
    own: tuple[Context, ClassifierRule], request_: Request
) -> None:
    said = open_classifier(*own).say(request_)
    assert said.stands
    assert (said.task, said.score) == ("", None)
    assert said.reason


def test_a_huge_text_is_read_in_part_and_that_is_said(own: tuple[Context, ClassifierRule]) -> None:
    classifier = open_classifier(*own)
    began = time.thread_time()
    said = classifier.say(asked(f"{LETTER} {'ropes ' * 2_000_000}"))
    assert time.thread_time() - began < 1  # of processor time
    assert "characters the first and last 2048 were read" in said.reason


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def altered(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def huge(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.truncate(MODEL_BYTES_MAX + 1)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("harm", [cut, altered, huge, pipe, Path.unlink], ids=lambda h: h.__name__)
def test_a_model_that_is_not_what_it_was_does_not_stand(
    own: tuple[Context, ClassifierRule], harm: Callable[[Path], None]
) -> None:
    context, rule = own
    sha256 = find_classifier(context).evidence.model_sha256
    harm(model_path(context, sha256))
    with pytest.raises(IntegrityError) as caught:
        load_model(context, sha256)
    assert caught.value.code in {"task-model-invalid", "task-model-missing"}
    said = open_classifier(context, rule).say(asked())
    assert not said.stands
    assert not said.task
    assert "file" in said.reason


def test_evidence_that_is_not_what_it_was_does_not_stand(
    own: tuple[Context, ClassifierRule],
) -> None:
    context, rule = own
    altered(context.home.root / "evidence" / f"{rule.evidence}.json")
    assert "has changed" in open_classifier(context, rule).say(asked()).reason


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"evidence": "0" * 64}, "no evidence"),
        ({"minimum_accuracy": 0.95}, "an accuracy of 90.0% was shown, and the policy asks"),
        ({"minimum_confidence": 0.99}, "95.0% confidence, and the policy asks for 99.0%"),
    ],
    ids=["other", "accuracy", "confidence"],
)
def test_a_policy_that_asks_for_more(
    own: tuple[Context, ClassifierRule], change: dict[str, object], why: str
) -> None:
    context, rule = own
    said = open_classifier(context, msgspec.structs.replace(rule, **change)).say(asked())
    assert not said.stands
    assert why in said.reason


def test_evidence_is_over_one_day(own: tuple[Context, ClassifierRule]) -> None:
    context, rule = own
    classifier = open_classifier(context, rule)
    now = dt.datetime.now(dt.UTC)
    for days, stands in ((179, True), (182, False), (-3, False)):
        classifier._clock = (now + dt.timedelta(days=days)).timestamp
        assert classifier.say(asked()).stands is stands


def test_evidence_of_something_else_is_no_classifier(own: tuple[Context, ClassifierRule]) -> None:
    context, _ = own
    found = find_classifier(context)
    for kind, figures in (
        ("smoke", found.evidence),
        (CLASSIFIER_KIND, {"passed": True}),
        (CLASSIFIER_KIND, msgspec.structs.replace(found.evidence, model_sha256="../../x")),
    ):
        digest = context.record(kind, "0" * 64, figures)
        with pytest.raises(InputError) as caught:
            find_classifier(context, digest)
        assert caught.value.code == "classifier-missing"
        said = open_classifier(context, ClassifierRule(evidence=digest)).say(asked())
        assert not said.stands


def test_what_could_not_be_shown_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(lines(cases(300, noise=1.0)))
    context = Context(Home(tmp_path / "home"))
    report, digest = learn_classifier(context, path, LearnSettings())
    assert not report.enabled
    assert not model_path(context, report.evidence.model_sha256).exists()
    said = open_classifier(context, ClassifierRule(evidence=digest)).say(asked())
    assert not said.stands
    assert "no task has a threshold" in said.reason


TASKS = (
    TaskRule(name="letters", cloud=CloudUse.WHEN_NEEDED, destinations=("far",)),
    TaskRule(name="sums", cloud=CloudUse.WHEN_NEEDED, destinations=("far",)),
)


def world(
    own: tuple[Context, ClassifierRule], server: RawServer, authority: Authority, **rule
) -> World:
    context, trusted = own
    trusted = msgspec.structs.replace(trusted, **rule)
    classify: Callable[[Request], ClassifiedTask] = open_classifier(context, trusted).say
    return World(
        context.home, server, authority, tasks=TASKS, classifier=trusted, classify=classify
    )


def test_by_default_nothing_leaves_on_a_guess(
    own: tuple[Context, ClassifierRule], server: RawServer, authority: Authority
) -> None:
    """The device cannot answer, the task may leave, and still nothing does; nobody is asked."""
    found = world(own, server, authority)
    said = msgspec.structs.replace(asked(), task="letters")
    assert found.hybrid.question(said) is not None
    outcome = found.hybrid.ask(asked())
    assert isinstance(outcome, Declined)
    assert outcome.provenance.route.task == "letters"
    assert any("lets nothing leave on a guess" in reason for reason in outcome.reasons)
    assert found.hybrid.question(asked()) is None
    assert server.connections == 0


def test_a_task_that_may_leave_does_after_consent(
    own: tuple[Context, ClassifierRule], server: RawServer, authority: Authority
) -> None:
    found = world(own, server, authority, may_leave=("letters",))
    assert isinstance(found.hybrid.ask(asked()), Declined)
    found.agree(asked())
    outcome = found.hybrid.ask(asked())
    assert isinstance(outcome, Completed)
    route = outcome.provenance.route
    assert (route.route, route.task) == (Route.CLOUD, "letters")
    assert any("takes it for a letters request" in reason for reason in route.reasons)
    # Another task is none of it, nor is data that stays.
    assert found.hybrid.question(asked(SUMS)) is None
    assert isinstance(found.hybrid.ask(asked(SUMS)), Declined)
    assert isinstance(found.hybrid.ask(asked(data_class="local-only")), Declined)
    assert server.connections == 1


def test_a_feature_answers_here_and_says_the_task(
    ready_home: Path, learned: tuple[Path, str], tmp_path: Path
) -> None:
    root = tmp_path / "both"
    shutil.copytree(ready_home, root, copy_function=os.link)
    for folder in ("evidence", "classifiers"):
        shutil.copytree(learned[0] / folder, root / folder, dirs_exist_ok=True)
    policy = tmp_path / "policy.toml"
    policy.write_text(
        f"""name = "test"
[classifier]
evidence = "{learned[1]}"
otherwise = "talk"
[[tasks]]
name = "letters"
[[tasks]]
name = "talk"
"""
    )
    with open_hybrid(Context(Home(root)), policy) as hybrid:
        outcome = hybrid.ask(asked())
        assert isinstance(outcome, Completed), outcome
        assert outcome.provenance.route.task == "letters"
        other = hybrid.decide(asked("\u200bQu'est-ce que c'est ?"))
        assert (other.route, other.task) == (Route.LOCAL, "talk")
        assert any("it is taken for a talk request" in reason for reason in other.reasons)
        unknown = hybrid.decide(asked(SUMS))
        assert unknown.route is Route.DECLINE
        assert any("does not answer 'sums' requests" in reason for reason in unknown.reasons)
    # Without the file every request says so, and is taken for something that stays.
    for path in (root / "classifiers").iterdir():
        path.unlink()
    with open_hybrid(Context(Home(root)), policy) as hybrid:
        lost = hybrid.decide(asked())
        assert (lost.route, lost.task) == (Route.LOCAL, "talk")
        assert any("the classifier does not stand" in reason for reason in lost.reasons)


def test_on_the_command_line(
    learned: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home, digest = learned
    monkeypatch.setenv("EDGEWISE_HOME", str(home))
    assert _run(["classify", "show"]) == 0
    shown = capsys.readouterr()
    assert f'evidence = "{digest}"' in shown.out
    assert _run(["classify", "ask", LETTER]) == 0
    assert capsys.readouterr().out.startswith("letters (")
    assert _run(["classify", "ask", "--json", "Qu'est-ce que c'est ?"]) == 10
    assert json.loads(capsys.readouterr().out)["sure"] is False
    assert _run(["classify", "ask", "--json", "zebra"]) == 10
    told = json.loads(capsys.readouterr().out)
    assert (told["sure"], told["task"], told["score"]) == (False, "", None)
    assert told["reason"] == "nothing in the text is known"
    policy = tmp_path / "policy.toml"
    policy.write_text(
        f'name = "t"\n[classifier]\nevidence = "{digest}"\n[[tasks]]\nname = "sums"\n'
    )
    assert _run(["policy", "check", str(policy)]) == 0
    capsys.readouterr()
    arguments = ["route", "--explain", "--policy", str(policy), "--task", "auto", "--json"]
    assert _run([*arguments, SUMS]) == 10  # no deployment is active in this home
    decision = json.loads(capsys.readouterr().out)["decision"]
    assert decision["task"] == "sums"
    told = next(one for one in decision["rules"] if one["rule"] == "task-classified")
    assert told["verdict"] == "allows"
    assert "takes it for a sums request" in told["reason"]


def test_learning_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    path = tmp_path / "cases.jsonl"
    path.write_bytes(lines(cases(60)))
    assert _run(["classify", "learn", str(path), "--json"]) == 10
    told = json.loads(capsys.readouterr().out)
    assert told["report"]["enabled"] is False
    assert _run(["classify", "learn", str(path), "--target-error", "0.4", "--split-seed", "3"]) == 0
    shown = capsys.readouterr()
    assert "minimum_accuracy = 0.6" in shown.out
    assert "enabled" in shown.err
    assert _run(["classify", "ask", "--evidence", told["evidence"], "hello"]) == 4
    assert _run(["classify", "learn", str(tmp_path / "none")]) == 2


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"prompt": "x", "task": NaN}', '{"prompt": 1, "task": "a"}', "{}"]
)
def test_a_malformed_case_is_told_what_a_case_is(tmp_path: Path, line: str) -> None:
    (tmp_path / "c.jsonl").write_text(line + "\n")
    with pytest.raises(InputError) as caught:
        learn_classifier(Context(Home(tmp_path / "home")), tmp_path / "c.jsonl", LearnSettings())
    assert '{"prompt": TEXT, "task": NAME}' in (caught.value.hint or "")
    assert "docs/classifying.md" in (caught.value.hint or "")
