"""Commands go the policy's way: chat, the check of egress, and contacts in all that may send."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.unit.route.cloud.servers import Authority, RawServer
from tests.unit.workflow.test_route_records import unqualified
from tests.unit.workflow.worlds import SECRET_KEY, World, echo

from edgewise.cli import _run
from edgewise.cli.root import root
from edgewise.core.request import Message, Request
from edgewise.core.state import LinkState
from edgewise.route.consent import Choice
from edgewise.route.policy import CloudUse, DeviceLimits, Policy, TaskRule
from edgewise.store import Home
from edgewise.workflow.contacts import read_contacts
from edgewise.workflow.context import Context

WAITS = TaskRule(name="chat", cloud=CloudUse.WHEN_NEEDED, destinations=("far",), delay_safe=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[RawServer]:
    with RawServer(echo, tls=authority.context()).running() as found:
        yield found


@pytest.fixture
def world(
    tmp_path: Path, server: RawServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> World:
    """Return a home whose policy lets personal data go to a destination, with consent."""
    made = World(
        Home(tmp_path / "home"),
        server,
        authority,
        tasks=(WAITS,),
        require_signature=False,
        device=DeviceLimits(links=tuple(LinkState)),
    )
    made.context.home.root.mkdir(parents=True, exist_ok=True)
    file = made.context.home.root / "policy.json"
    file.write_bytes(msgspec.json.encode(made.policy))
    monkeypatch.setenv("EDGEWISE_HOME", str(made.context.home.root))
    monkeypatch.setenv("EDGEWISE_SECRET_FAR_KEY", SECRET_KEY)
    return made


def agree(world: World, times: int = 1) -> None:
    request = Request(messages=(Message(role="user", content="hello"),), data_class="personal")
    if times == 1:
        world.agree(request)
        return
    question = world.hybrid.question(request)
    assert question is not None
    world.agree(request, Choice.UNTIL, until=question.until_at_most)


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_each_turn_of_a_chat_has_a_route(
    world: World,
    server: RawServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    agree(world, times=2)
    (world.context.home.root / "contacts.txt").write_text("Grace Hopper\n", "utf-8")
    typed(monkeypatch, "Greet Grace Hopper", "Once more", "/quit")
    assert _run(["chat", "--data-class", "personal", "--max-tokens", "50"]) == 0
    out, err = capsys.readouterr()
    assert "You wrote: Greet Grace Hopper" in out
    assert f"by the policy {world.policy.name} revision {world.policy.revision} (" in err
    assert err.count(f"cloud by {world.policy.version} | cloud:far") == 2
    bodies = [json.loads(one.body) for one in server.exchanges]
    assert "Hopper" not in json.dumps(bodies)
    roles = [one["role"] for one in bodies[1]["messages"] if one["role"] != "system"]
    assert roles == ["user", "assistant", "user"]


def test_a_turn_that_lacks_consent_asks_for_it_and_sends_nothing(
    world: World,
    server: RawServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed(monkeypatch, "hello", "/quit")
    assert _run(["chat", "--data-class", "personal"]) == 0
    err = capsys.readouterr().err
    assert "declined: " in err
    assert "edgewise consent grant --feature assistant --data-class personal" in err
    typed(monkeypatch, "hello", "/quit")
    assert _run(["chat"]) == 0
    assert "local-only data never leaves the device" in capsys.readouterr().err
    assert server.connections == 0


def test_a_chat_by_a_policy_takes_no_other_bundle(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert world.policy.tasks == (WAITS,)
    assert _run(["chat", "--fingerprint", "abc"]) == 2
    assert "request-contradiction" in capsys.readouterr().err


def test_the_check_of_egress_goes_the_way_of_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    context = unqualified(Home(tmp_path / "home"))
    policy = Policy(name="strict", tasks=(TaskRule(name="letters"),))
    file = context.home.root / "policy.json"
    file.write_bytes(msgspec.json.encode(policy))
    monkeypatch.setenv("EDGEWISE_HOME", str(context.home.root))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def check(*words: str) -> dict[str, object]:
        root.main(["egress", "check", "--json", *words], standalone_mode=False)
        told: dict[str, object] = json.loads(capsys.readouterr().out)["outcome"]
        return told

    declined = {"outcome": "declined", "route": "decline"}
    assert check() == {**declined, "policy": policy.version}
    other = msgspec.structs.replace(policy, name="other")
    (tmp_path / "other.json").write_bytes(msgspec.json.encode(other))
    assert check("--policy", "other.json") == {**declined, "policy": other.version}


@pytest.mark.parametrize(
    "words",
    [
        ("run", "hello"),
        ("chat",),
        ("serve", "--port", "0"),
        ("queue", "add", "hello", "--task", "chat", "--data-class", "personal"),
        ("queue", "drain", "--link", "online"),
        ("minimise", "hello"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("lies", ["given", "in the home"])
def test_contacts_that_cannot_be_read_stop_all_that_may_send(
    world: World,
    server: RawServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    lies: str,
) -> None:
    agree(world)
    more: tuple[str, ...] = ("--contacts", str(tmp_path / "none.txt"))
    if lies == "in the home":
        (world.context.home.root / "contacts.txt").write_bytes(b"\xff")
        more = ()
    assert _run([*words, *more]) == 2
    assert "minimise-unreadable" in capsys.readouterr().err
    assert server.connections == 0


def test_contacts_are_replaced_in_what_leaves(
    world: World, server: RawServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("\ufeffAda Lovelace\r\n\r\n", "utf-8")
    agree(world)
    words = ["run", "Greet Ada Lovelace", "--data-class", "personal", "--max-tokens", "50"]
    assert _run([*words, "--contacts", str(names)]) == 0
    assert "You wrote: Greet Ada Lovelace" in capsys.readouterr().out
    assert "Lovelace" not in server.exchanges[0].body.decode()


def test_a_home_without_contacts_has_none(tmp_path: Path) -> None:
    assert read_contacts(Context(Home(tmp_path / "home"))) == ()
