"""The recorder beside a request: drawn by chance, never in its way, and never silent."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.unit.route.records.recorded import NOTHING, ONLINE, asked, whole

from edgewise.core.outcome import Event
from edgewise.core.request import Request
from edgewise.errors import InputError
from edgewise.route.policy import Policy, RecordRule
from edgewise.route.records import Recorder, RecordStore
from edgewise.route.router import decide
from edgewise.store import Home
from edgewise.store.database import STATE_DATABASE


def keep(recorder: Recorder, policy: Policy, request: Request | None = None) -> None:
    request = request or asked()
    decision = decide(request, request.data_class, ONLINE, policy, NOTHING)
    recorder.keep(request, ONLINE, NOTHING, decision)


def tasks(root: Path) -> list[str | None]:
    return [one.task for one in RecordStore(Home(root)).read().records]


def test_without_the_table_nothing_is_drawn() -> None:
    def never() -> float:
        raise AssertionError("nobody draws")

    recorder = Recorder(Home(Path("nowhere")), whole(), draw=never)
    assert not recorder.drawn("public")


@pytest.mark.parametrize(
    ("data_class", "local_only", "drawn"),
    [
        ("ticket", False, True),
        ("public", False, True),
        ("local-only", False, False),
        ("health", False, False),  # a class of the policy's that it does not let leave
        ("unheard-of", False, False),
        ("local-only", True, True),
        ("health", True, True),
        ("unheard-of", True, True),
    ],
)
def test_what_never_leaves_is_drawn_only_where_the_policy_says_so(
    data_class: str, local_only: bool, drawn: bool, tmp_path: Path
) -> None:
    recorder = Recorder(Home(tmp_path), whole(share=1.0, local_only=local_only))
    assert recorder.drawn(data_class) is drawn


def test_the_share_is_that_of_chance_alone(tmp_path: Path) -> None:
    """The draw is compared with the share; the request is not asked."""
    numbers = iter([0.0, 0.2499, 0.25, 0.9])
    recorder = Recorder(Home(tmp_path), whole(share=0.25), draw=lambda: next(numbers))
    assert [recorder.drawn("ticket") for _ in range(4)] == [True, True, False, False]


def test_by_default_the_system_draws(tmp_path: Path) -> None:
    recorder = Recorder(Home(tmp_path), whole(share=0.5))
    drawn = Counter(recorder.drawn("ticket") for _ in range(4000))
    # Binomial: the standard deviation is 32, so a deviation of 320 has a chance below 1e-22.
    assert abs(drawn[True] - 2000) < 320


def test_what_is_kept_is_on_disk_after_a_flush(tmp_path: Path) -> None:
    policy = whole(share=1.0)
    recorder = Recorder(Home(tmp_path), policy, busy_timeout_s=60)
    for _ in range(50):
        keep(recorder, policy)
    assert recorder.flush(120)
    assert tasks(tmp_path) == ["draft"] * 50
    assert recorder.take_events() == ()


def test_a_process_that_ends_writes_first(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from tests.unit.route.records.recorded import whole\n"
        "from tests.unit.route.records.test_recorder import keep\n"
        "from edgewise.route.records import Recorder\nfrom edgewise.store import Home\n"
        "policy = whole(share=1.0)\n"
        "keep(Recorder(Home(Path(sys.argv[1])), policy, busy_timeout_s=60), policy)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert tasks(tmp_path) == ["draft"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_that_was_forked_writes_too(tmp_path: Path) -> None:
    policy = whole(share=1.0)
    recorder = Recorder(Home(tmp_path), policy, busy_timeout_s=60)
    keep(recorder, policy)
    assert recorder.flush(120)
    child = os.fork()
    if not child:
        keep(recorder, policy)
        os._exit(0 if recorder.flush(120) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(tasks(tmp_path)) == 2


def locked(root: Path) -> sqlite3.Connection:
    RecordStore(Home(root)).add((), RecordRule(share=1.0))
    connection = sqlite3.connect(root / STATE_DATABASE, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def no_database(root: Path) -> None:
    (root / STATE_DATABASE).mkdir()


def no_text(root: Path) -> None:
    (root / STATE_DATABASE).write_bytes(b"no database" * 1000)


def newer(root: Path) -> None:
    RecordStore(Home(root)).add((), RecordRule(share=1.0))
    with sqlite3.connect(root / STATE_DATABASE) as connection:
        connection.execute("UPDATE schemas SET version = 99")
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (locked, "database-locked"),
        (no_database, "database-not-writable"),
        (no_text, "database-damaged"),
        (newer, "database-newer"),
    ],
)
def test_what_cannot_be_written_is_said_and_hinders_nobody(
    spoil: Any, code: str, tmp_path: Path
) -> None:
    held = spoil(tmp_path)
    policy = whole(share=1.0)
    recorder = Recorder(Home(tmp_path), policy, busy_timeout_s=0.01)
    for _ in range(3):
        keep(recorder, policy)  # raises nothing
        assert recorder.flush(60)
    (event,) = recorder.take_events()
    assert (event.code, event.context) == ("record-lost", {"records": 3, "why": code})
    assert "3 decisions" in event.message
    assert recorder.take_events() == ()
    if held is not None:
        held.rollback()
        held.close()
        keep(recorder, policy)
        assert recorder.flush(60)
        found = RecordStore(Home(tmp_path)).read()
        assert (len(found.records), found.lost) == (1, 3)


def test_a_database_that_is_held_holds_no_request(tmp_path: Path) -> None:
    """``keep`` returns while the lock is held, however long that is waited for."""
    held = locked(tmp_path)
    policy = whole(share=1.0)
    told: list[Event] = []
    recorder = Recorder(Home(tmp_path), policy, busy_timeout_s=600, on_event=told.append)
    keep(recorder, policy)
    assert not recorder.flush(0)
    held.rollback()
    held.close()
    assert recorder.flush(300)
    assert tasks(tmp_path) == ["draft"]
    assert told == []


def test_a_backlog_is_bounded_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.route.records.recorder._PENDING_MAX", 5)
    held = locked(tmp_path)
    policy = whole(share=1.0)
    told: list[Event] = []
    recorder = Recorder(Home(tmp_path), policy, busy_timeout_s=600, on_event=told.append)
    for _ in range(20):
        keep(recorder, policy)
    held.rollback()
    held.close()
    assert recorder.flush(300)
    assert {event.context["why"] for event in told} == {"records-behind"}
    found = RecordStore(Home(tmp_path)).read()
    assert len(found.records) + len(told) == 20
    assert 9 <= len(told) <= 15  # some are in the writer's hands, and five wait


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    policy = whole(share=1.0)
    recorder = Recorder(Home(tmp_path), policy, busy_timeout_s=120)

    def work() -> None:
        for _ in range(25):
            keep(recorder, policy)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.flush(300)
    assert len(tasks(tmp_path)) == 200


@pytest.mark.parametrize(
    "rule", [{"share": 0}, {"share": 1.5}, {"share": 1, "keep": 0}, {"share": 1, "days": 0}]
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        RecordRule(**rule)
    assert caught.value.code == "policy-invalid"
