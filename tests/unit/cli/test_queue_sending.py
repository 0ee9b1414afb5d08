"""``edgewise queue add`` and ``drain``: a question that waits, and its answer in a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.unit.route.cloud.servers import Authority, RawServer
from tests.unit.workflow.queue_world import Effects, World

from edgewise.cli import _run
from edgewise.cli.queue import queue as command
from edgewise.errors import InputError
from edgewise.route.policy import Policy
from edgewise.store import Home


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[RawServer]:
    with RawServer(Effects(dedupe=True).answer, tls=authority.context()).running() as found:
        yield found


@pytest.fixture
def world(
    tmp_path: Path, server: RawServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> World:
    home = Home(tmp_path / "device")
    monkeypatch.setenv("EDGEWISE_HOME", str(home.root))
    found = World(home, server, authority.file)
    found.policy = msgspec.structs.replace(found.policy, require_signature=False)
    home.root.mkdir(exist_ok=True)
    put(home, found.policy)
    return found


def put(home: Home, policy: Policy) -> None:
    (home.root / "policy.json").write_bytes(msgspec.json.encode(policy))


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, list(args), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.stdout, result.stderr


def told(*args: str) -> tuple[int, Any]:
    code, out, _ = run(*args, "--json")
    return code, json.loads(out)


ADD = ("add", "--task", "summarise", "--data-class", "personal")
ONLINE = ("drain", "--link", "online")


def test_a_question_about_a_document_and_its_answer(
    world: World, server: RawServer, tmp_path: Path
) -> None:
    note, target = tmp_path / "note.txt", tmp_path / "summary.txt"
    note.write_text("The meeting is on Tuesday.")
    about = ("--document", str(note), "--apply-to", str(target))
    code, out, err = run(*ADD, *about, "Shorten this.")
    name = out.strip()
    assert code == 0
    assert "waits to be sent to far" in err
    assert str(target) in run("show", name)[1]

    code, _, err = run("drain", "--link", "offline")
    assert (code, server.connections) == (10, 0)
    assert "far: offline" in err

    code, _, err = run(*ONLINE)
    assert (code, server.connections) == (10, 0)
    assert "waits for consent" in err
    assert "edgewise consent grant --feature assistant --data-class personal" in err
    assert run("list")[1].count("waits for consent") == 1

    code, _, err = run(*ONLINE)
    assert (code, server.connections) == (0, 0)
    assert "nothing is due" in err
    assert "edgewise queue retry OPERATION" in err

    world.agree()  # what waits for it is due at once
    code, _, err = run(*ONLINE)
    assert code == 0, err
    assert f"the answer is in {target}" in err
    assert target.read_text() == "Short: Shorten this.\n\nThe meeting is on Tuesday."
    assert json.loads(server.exchanges[0].body)["messages"][0]["content"].endswith("Tuesday.")
    code, _, err = run(*ONLINE)
    assert (code, err) == (0, "nothing is due\n")


def test_a_document_that_changed_before_it_was_sent_is_not_sent(
    world: World, server: RawServer, tmp_path: Path
) -> None:
    note = tmp_path / "note.txt"
    note.write_text("Tuesday.")
    _, added = told(*ADD, "--document", str(note), "--apply-to", str(note), "Shorten this.")
    name = added["entry"]["operation"]["operation_id"]
    world.agree()
    note.write_text("Friday.")
    code, drained = told(*ONLINE)
    assert (code, server.connections) == (10, 0)
    (entry,) = drained["report"]["handled"]
    assert (entry["operation"]["operation_id"], entry["state"]) == (name, "declined")
    assert "changed since it was queued; nothing was sent" in entry["reason"]
    assert [one.uses for one in world.ledger.entries()] == [0]
    note.write_text("Tuesday.")
    assert run("retry", name)[0] == 0
    assert run(*ONLINE)[0] == 0


def test_a_document_that_is_gone_is_waited_for(
    world: World, server: RawServer, tmp_path: Path
) -> None:
    note, away = tmp_path / "note.txt", tmp_path / "away.txt"
    note.write_text("Tuesday.")
    _, out, _ = run(*ADD, "--document", str(note), "--apply-to", str(note), "Shorten this.")
    world.agree()
    note.rename(away)
    code, _, err = run(*ONLINE)
    assert (code, server.connections) == (10, 0)
    assert "document-gone" in err
    away.rename(note)
    assert run("retry", out.strip())[0] == 0
    assert run(*ONLINE)[0] == 0


def test_a_link_is_no_document_and_no_place_for_an_answer(
    world: World, server: RawServer, tmp_path: Path
) -> None:
    secret, link, nowhere = (tmp_path / n for n in ("secret.txt", "link.txt", "nowhere.txt"))
    secret.write_text("what nobody meant to send")
    link.symlink_to(secret)
    nowhere.symlink_to(tmp_path / "absent" / "profile")
    for arguments in (("--document", str(link)), ("--apply-to", str(nowhere))):
        with pytest.raises(InputError) as caught:
            run(*ADD, *arguments, "Shorten this.")
        assert caught.value.code == "document-is-link"
        assert caught.value.context["target"]
    assert world.queue.entries() == ()
    folder = tmp_path / "folder"
    folder.symlink_to(tmp_path)  # a folder may be one: its place is kept as it is now
    code, added = told(*ADD, "--document", str(folder / "secret.txt"), "Shorten this.")
    assert code == 0
    assert added["entry"]["operation"]["document"]["document_id"] == str(secret)


def test_a_link_that_took_a_documents_place_is_not_followed(
    world: World, server: RawServer, tmp_path: Path
) -> None:
    note, same = tmp_path / "note.txt", tmp_path / "same.txt"
    note.write_text("Tuesday.")
    same.write_text("Tuesday.")
    run(*ADD, "--document", str(note), "--apply-to", str(note), "Shorten this.")
    world.agree()
    note.unlink()
    note.symlink_to(same)
    code, _, err = run(*ONLINE)
    assert (code, server.connections) == (10, 0)
    assert "changed since it was queued" in err
    assert same.read_text() == "Tuesday."


def test_an_operation_is_named_whole_on_a_narrow_terminal(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = world.queued()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    _run(["queue", "list"])
    out = capsys.readouterr().out
    assert name in out


def test_a_document_that_changed_in_between(
    world: World, server: RawServer, tmp_path: Path
) -> None:
    note = tmp_path / "note.txt"
    note.write_text("Tuesday.")
    about = ("--document", str(note), "--apply-to", str(note))
    code, added = told(*ADD, *about, "Shorten this.")
    name = added["entry"]["operation"]["operation_id"]
    assert (code, added["type"]) == (0, "queued")
    world.agree()
    answer = Effects(dedupe=True).answer
    server.answers = [lambda exchange: (note.write_text("Friday."), answer(exchange))[-1]]
    code, drained = told(*ONLINE)
    assert code == 10
    (applied,) = drained["applied"]
    assert (applied["result"], applied["entry"]["state"]) == ("stale", "stale")
    assert drained["report"]["handled"][0]["state"] == "answered"
    assert note.read_text() == "Friday."
    code, out, _ = run("show", name, "--answer")
    assert (code, out) == (0, "Short: Shorten this.\n\nTuesday.\n")
    assert "answer" in told("show", name, "--answer")[1]


def test_stale_is_told_in_words(world: World, server: RawServer, tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("Tuesday.")
    run(*ADD, "--document", str(note), "--apply-to", str(note), "Shorten this.")
    world.agree()
    answer = Effects(dedupe=True).answer
    server.answers = [lambda exchange: (note.rename(tmp_path / "away.txt"), answer(exchange))[-1]]
    code, _, err = run(*ONLINE)
    assert code == 10
    assert "stale: the document is gone" in err
    assert "--answer" in err


def test_what_may_not_wait_is_told_with_its_reasons(world: World) -> None:
    code, _, err = run("add", "--task", "chat", "--data-class", "local-only", "x")
    assert code == 10
    assert "not-delay-safe" in err
    assert "its [[tasks]] needs delay_safe = true" in err
    assert "local-only" in err
    code, refused = told("add", "--task", "summarise", "--data-class", "sensitive", "x")
    assert (code, refused["type"]) == (10, "refused")
    assert [one["code"] for one in refused["reasons"]] == ["data-class-not-stored"]
    code, refused = told("add", "--task", "unheard", "--data-class", "public", "x")
    assert (code, refused["reasons"][0]["code"]) == (10, "not-delay-safe")
    assert world.queue.entries() == ()


def test_placeholders_have_to_be_accepted(world: World, tmp_path: Path) -> None:
    contacts = tmp_path / "contacts.txt"
    contacts.write_text("Grace Hopper\n\n")
    asked = (*ADD, "--contacts", str(contacts), "Write to Grace Hopper.")
    code, refused = told(*asked)
    assert (code, refused["reasons"][0]["code"]) == (10, "placeholders")
    assert refused["reasons"][0]["words"].startswith("1 identifier would be replaced")
    assert "--accept-placeholders" in refused["reasons"][0]["words"]
    target = tmp_path / "answer.txt"
    assert run(*asked, "--accept-placeholders", "--apply-to", str(target))[0] == 0
    world.agree()
    code, _, err = run(*ONLINE)
    assert code == 0
    assert "placeholders-kept" in err
    assert "Grace" not in target.read_text()


def test_targets_and_files_that_cannot_be_used(world: World, tmp_path: Path) -> None:
    del world
    mine = tmp_path / "mine.txt"
    mine.write_text("Mine.")
    for more, code in [
        (("--apply-to", str(mine)), "apply-target-exists"),
        (("--document", str(tmp_path / "none.txt")), "document-unreadable"),
        (("--contacts", str(tmp_path / "none.txt")), "minimise-unreadable"),
        (("--expires", "-1"), "operation-invalid"),
        (("--key", "no key"), "operation-invalid"),
    ]:
        with pytest.raises(InputError) as found:
            run(*ADD, *more, "Shorten this.")
        assert found.value.code == code
    assert mine.read_text() == "Mine."


def test_a_key_makes_it_one_operation_and_wake_tries_again(
    world: World, server: RawServer, authority: Authority, tmp_path: Path
) -> None:
    asked = (*ADD, "--key", "k1", "--system", "Be short.", "Shorten this.")
    name = run(*asked)[1].strip()
    code, out, err = run(*asked)
    assert (code, out.strip()) == (0, name)
    assert "there already" in err
    (tmp_path / "portal").mkdir()
    server._tls = Authority(tmp_path / "portal").context()
    world.agree(uses=9)
    code, _, err = run(*ONLINE)
    assert code == 10
    assert "captive-portal" in err
    assert "waits for link" in err
    server._tls = authority.context()
    code, drained = told(*ONLINE, "--wake", "--limit", "1")
    assert (code, drained["report"]["handled"][0]["state"]) == (0, "answered")


def test_without_a_policy_of_its_own_everything_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "empty"))
    code, refused = told(*ADD[:1], "--task", "chat", "--data-class", "public", "x")
    assert code == 10
    assert "not-delay-safe" in [one["code"] for one in refused["reasons"]]
    assert run("drain")[0] == 0


def test_a_drain_is_told_contacts_that_may_not_leave(
    world: World, server: RawServer, tmp_path: Path
) -> None:
    assert told(*ADD, "Write to Ada Lovelace.")[0] == 0
    world.agree()
    names = tmp_path / "names.txt"
    names.write_text("Ada Lovelace\n")
    code, drained = told(*ONLINE, "--contacts", str(names))
    (entry,) = drained["report"]["handled"]
    assert (code, entry["state"]) == (10, "declined")
    assert server.connections == 0
