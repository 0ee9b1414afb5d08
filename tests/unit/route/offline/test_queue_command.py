"""``edgewise queue``: what a person sees and decides, in words and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.route.offline.world import (
    SAFE,
    Scripted,
    answered,
    document,
    draft,
    permit,
)

from edgewise.cli.queue import queue as command
from edgewise.route.offline import (
    Drainer,
    LinkState,
    MaybeSent,
    NeedsConsent,
    OfflineQueue,
    RefusedPermanently,
    SendResult,
)
from edgewise.store import Home


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OfflineQueue:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "other-home"))
    return OfflineQueue(Home(tmp_path / "other-home"), delay_safe=SAFE)


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, list(args), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.stdout, result.stderr


def told(*args: str) -> tuple[int, Any]:
    code, out, _ = run(*args, "--json")
    return code, json.loads(out)


def filled(opened: OfflineQueue, *results: SendResult, **changes: Any) -> list[str]:
    for _ in results:
        opened.enqueue(draft(**{"deduplicates": False, **changes}))
    Drainer(opened, Scripted(*results), permit).drain()
    return [entry.operation.operation_id for entry in opened.entries()]


MAYBE = MaybeSent(link=LinkState.ONLINE, reason="silence")


def test_an_empty_queue(opened: OfflineQueue) -> None:
    assert run("list")[::2] == (0, "the queue is empty\n")
    assert told("list")[1]["operations"] == []
    assert run("receipts")[::2] == (0, "there are no receipts\n")


def test_list_shows_what_waits_and_what_needs_somebody(opened: OfflineQueue) -> None:
    unknown, done, failed = filled(
        opened, MAYBE, answered(b"The answer"), RefusedPermanently(status=400, reason="no")
    )
    opened.enqueue(draft())
    Drainer(opened, Scripted(), lambda _outgoing: NeedsConsent()).drain()
    waiting = opened.entries()[-1].operation.operation_id
    code, out, err = run("list")
    assert code == 0
    for name in (unknown, done, failed, waiting):
        assert name in out
    assert "waits for consent" in out
    assert f"{unknown} may have happened at cloud" in err
    assert "--accept-duplicate" in err
    assert "Tuesday" not in out + err
    assert "The answer" not in out + err
    _, listed = told("list")
    assert [one["state"] for one in listed["operations"]] == [
        "unknown", "answered", "failed", "queued"
    ]  # fmt: skip
    assert listed["clock"]["skew_s"] < 60


def test_cancelled_ones_are_only_in_the_whole_list(opened: OfflineQueue) -> None:
    opened.enqueue(draft())
    name = opened.entries()[0].operation.operation_id
    code, _, err = run("cancel", name[:8])
    assert (code, err) == (0, f"{name}: it is cancelled\n")
    assert told("list")[1]["operations"] == []
    assert told("list", "--all")[1]["operations"][0]["state"] == "cancelled"
    code, change = told("cancel", name)
    assert (code, change["done"], change["reason"]["code"]) == (10, False, "not-waiting")
    assert "no: " in run("cancel", name)[2]


def test_show(opened: OfflineQueue) -> None:
    (name,) = filled(opened, answered(b'{"a": "\x1b[31m"}'), document=document())
    code, out, _ = run("show", name)
    assert code == 0
    assert "note-7" in out
    assert "sha256" in out
    assert "it happened, and was answered" in out
    assert "may have" not in out
    assert "count" not in out
    assert told("show", name)[1]["operation"]["operation_id"] == name
    code, out, _ = run("show", name, "--answer")
    assert (code, out) == (0, '{"a": "\\x1b[31m"}\n')
    assert told("show", name, "--answer")[1] == {"answer": '{"a": "\x1b[31m"}'}
    opened.erase(name)
    (name,) = filled(opened, MAYBE)
    assert run("show", name, "--answer")[0] == 10
    assert told("show", name, "--answer") == (10, {"answer": None})
    assert "it may have happened" in run("show", name)[1]
    opened.erase(name)
    opened.enqueue(draft())
    assert "nothing happened" in run("show", opened.entries()[-1].operation.operation_id)[1]


def test_retry_asks_before_something_may_happen_twice(opened: OfflineQueue) -> None:
    (name,) = filled(opened, MAYBE)
    code, _, err = run("retry", name)
    assert code == 10
    assert "it can happen twice" in err
    assert run("retry", name, "--accept-duplicate")[0] == 0
    assert told("show", name)[1]["state"] == "queued"


def test_receipts_and_erasing(opened: OfflineQueue) -> None:
    names = filled(opened, answered(), MAYBE)
    opened.enqueue(draft())
    assert names[0] in run("receipts")[1]
    (receipt,) = told("receipts")[1]
    assert (receipt["request_id"], receipt["status"]) == ("req-1", 200)
    waiting = opened.entries()[-1].operation.operation_id
    code, erased = told("erase", names[0], waiting)
    assert (code, erased["erased"]) == (10, [names[0]])
    assert erased["refused"][0]["reason"]["code"] == "not-ended"
    code, _, err = run("erase", "--ended")
    assert (code, err) == (0, "1 operations and 0 receipts are erased\n")
    assert len(told("receipts")[1]) == 1
    assert told("erase", "--receipts-before", "2001-01-01")[1]["receipts"] == 0
    assert told("erase", "--receipts-before", "2999-01-01T00:00:00")[1]["receipts"] == 1
    assert len(opened.entries()) == 1
    with pytest.raises(Exception, match="name operations"):
        run("erase")
