"""``edgewise consent``: what a person and a program see of it."""

from __future__ import annotations

import datetime as dt
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgewise.cli import _run
from edgewise.route.consent import ConsentLedger, ConsentScope, Origin
from edgewise.store import Home

Capture = pytest.CaptureFixture[str]
SCOPE = [
    "--feature", "letters", "--data-class", "personal",
    "--destination", "acme", "--purpose", "Answer a letter",
]  # fmt: skip
LATER = (dt.datetime.now(dt.UTC) + dt.timedelta(days=30)).date().isoformat()


POLICY = """
name = "letters"
feature = "letters"
tasks = [{{ name = "letter", cloud = "when-needed", destinations = ["acme"] }}]
consent = [{{ data_class = "personal", destination = "acme", standing_days = {days} }}]
[[destinations]]
name = "acme"
url = "https://acme.example/v1"
model = "m"
purpose = "Answer a letter"
basis = "consent"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Path:
    """A home with a policy that allows consent for one use."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "policy.toml").write_text(POLICY.format(days=0))
    return folder


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC-05:30")  # as POSIX writes it: east of Greenwich
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = _run(["consent", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def told(capsys: Capture, *arguments: str) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, ""), out
    return json.loads(out)


def error(capsys: Capture, *arguments: str) -> str:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 2
    assert err.startswith("error: ")
    return str(json.loads(out)["error"]["code"])


def test_the_life_of_a_consent(capsys: Capture) -> None:
    assert run(capsys, "list") == (0, "", "nothing was decided yet\n")
    code, out, err = run(capsys, "grant", *SCOPE)
    assert (code, err) == (0, "")
    name = out.split()[-1]
    assert out == f"agreed for one use; take it back with: edgewise consent revoke {name}\n"
    (entry,) = told(capsys, "list")
    assert entry["id"] == name
    assert (entry["state"], entry["once"], entry["origin"]) == ("granted", True, "cli")
    assert entry["scope"]["purpose"] == "Answer a letter"
    _, out, _ = run(capsys, "list")
    assert out.split("\n")[0].split() == [
        "decision", "state", "use", "feature", "data", "class", "destination", "purpose",
    ]  # fmt: skip
    assert out.split("\n")[1].split()[:5] == [name, "granted", "once", "letters", "personal"]
    assert run(capsys, "revoke", name) == (0, "1 decision taken back\n", "")
    assert run(capsys, "revoke", *SCOPE) == (0, "nothing stood\n", "")
    assert run(capsys, "list", "--in-force") == (0, "", "no consent stands\n")
    denial = told(capsys, "deny", *SCOPE)["decision"]
    assert [e["id"] for e in told(capsys, "list", "--in-force")] == [denial]
    assert told(capsys, "revoke", *SCOPE) == {"ended": 1}


def test_a_scope_is_named_in_full(capsys: Capture) -> None:
    assert error(capsys, "grant", *SCOPE[:-2]) == "usage"
    assert error(capsys, "grant", *SCOPE[:-1], "*") == "consent-scope-invalid"
    assert error(capsys, "revoke", *SCOPE[:-2]) == "consent-scope-invalid"
    assert error(capsys, "revoke") == "consent-scope-invalid"
    assert error(capsys, "revoke", "0123456789abcdef", *SCOPE) == "consent-scope-invalid"
    assert error(capsys, "revoke", "0123456789abcdef") == "consent-not-found"
    assert error(capsys, "erase") == "consent-scope-invalid"
    assert error(capsys, "erase", "--all", *SCOPE) == "consent-scope-invalid"
    local = [*SCOPE[:2], "--data-class", "local-only", *SCOPE[4:]]
    assert error(capsys, "grant", *local) == "consent-local-only"


def test_one_approval_is_no_standing_licence(capsys: Capture) -> None:
    arguments = ("grant", *SCOPE, "--until", LATER, "--standing")
    assert error(capsys, *arguments) == "consent-standing-forbidden"
    assert told(capsys, "list") == []


def test_standing_consent_where_a_policy_allows_it(capsys: Capture, home: Path) -> None:
    (home / "policy.toml").write_text(POLICY.format(days=10))
    assert (
        error(capsys, "grant", *SCOPE, "--until", LATER, "--standing")
        == "consent-standing-forbidden"
    )
    (home / "policy.toml").write_text(POLICY.format(days=60))
    assert error(capsys, "grant", *SCOPE, "--standing") == "consent-date-invalid"
    _, out, _ = run(capsys, "grant", *SCOPE, "--until", LATER, "--standing")
    assert out.startswith("agreed for every use, until ")
    _, out, _ = run(capsys, "list")
    assert " 0 times until " in out


@pytest.mark.usefixtures("zone")
def test_a_day_counts_to_its_end_here(capsys: Capture) -> None:
    day = dt.date.fromisoformat(LATER)
    given = told(capsys, "grant", *SCOPE, "--until", LATER)
    assert given["once"]
    assert given["expires_at"] == f"{LATER}T18:30:00Z"
    given = told(capsys, "grant", *SCOPE, "--until", f"{day}T18:00+02:00")
    assert given["expires_at"] == f"{LATER}T16:00:00Z"
    given = told(capsys, "grant", *SCOPE, "--until", f"{day}T18:00")
    assert given["expires_at"] == f"{LATER}T12:30:00Z"


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "2027-02-30", "9999-12-31", "0001-01-01", "2020-01-01", "*"]
)
def test_what_is_no_date_of_the_next_year(capsys: Capture, text: str) -> None:
    assert error(capsys, "grant", *SCOPE, "--until", text) == "consent-date-invalid"


def test_export_and_erase(capsys: Capture) -> None:
    told(capsys, "grant", *SCOPE)
    for arguments in (["export"], ["export", "--json"]):
        code, out, err = run(capsys, *arguments)
        assert (code, err) == (0, "")
        data = json.loads(out)
        assert [row["event"] for row in data["audit"]] == ["grant"]
    assert run(capsys, "erase", *SCOPE) == (0, "1 scope erased, 1 decision ended\n", "")
    assert run(capsys, "erase", *SCOPE) == (0, "nothing is known\n", "")
    _, out, _ = run(capsys, "list")
    assert out.split("\n")[1].split()[1:4] == ["revoked", "once", "(erased)"]
    assert "letters" not in out
    assert told(capsys, "erase", "--all") == {"scopes": 0, "ended": 0, "log_emptied": True}


def test_verify(capsys: Capture) -> None:
    told(capsys, "grant", *SCOPE)
    code, out, err = run(capsys, "verify")
    assert (code, err) == (0, "")
    head = out.split()[-1]
    assert out == f"intact: 1 row, head {head}\n"
    assert told(capsys, "verify", "--head", head)["intact"]
    assert error(capsys, "verify", "--head", "latest") == "consent-head-invalid"
    path = Path(os.environ["EDGEWISE_HOME"]) / "state.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER consent_audit_unchanged")
        connection.execute("UPDATE consent_audit SET origin = 'api'")
    connection.close()
    code, out, err = run(capsys, "verify")
    assert code == 10
    assert out.startswith("damaged: 1 row, ")
    assert "row 1 (grant): it was changed" in err
    code, out, _ = run(capsys, "verify", "--json")
    assert (code, json.loads(out)["intact"]) == (10, False)


def test_trust_clock(capsys: Capture) -> None:
    told(capsys, "grant", *SCOPE, "--until", LATER)
    told(capsys, "grant", *SCOPE)
    trusted = "the clock is trusted again; 1 decision with a date ended\n"
    assert run(capsys, "trust-clock") == (0, trusted, "")
    assert [e["state"] for e in told(capsys, "list")] == ["expired", "granted"]


def test_a_purpose_cannot_act_on_the_terminal(capsys: Capture) -> None:
    hostile = ConsentScope(
        feature="letters",
        data_class="personal",
        destination="acme",
        purpose="\x1b[2J\u202eevil",
    )
    ConsentLedger(Home(Path(os.environ["EDGEWISE_HOME"]))).deny(hostile, origin=Origin.API)
    _, out, _ = run(capsys, "list")
    assert "\\x1b[2J\\u202eevil" in out.replace("\n", "")
    assert "\x1b" not in out


def test_a_damaged_database_is_no_empty_list(capsys: Capture) -> None:
    told(capsys, "grant", *SCOPE)
    path = Path(os.environ["EDGEWISE_HOME"]) / "state.sqlite"
    path.write_bytes(b"no database" * 400)
    for command in (["list"], ["verify"], ["export"]):
        code, out, err = run(capsys, *command)
        assert (code, out) == (4, "")
        assert err.startswith("error: database-damaged: ")


@pytest.mark.parametrize(
    ("option", "text", "told_why"),
    [
        ("--feature", "other", "its feature is 'letters', not 'other'"),
        ("--data-class", "persnal", "it knows no data class 'persnal', only public, personal"),
        ("--destination", "acm", "it has no destination 'acm', only acme"),
        ("--purpose", "answer a letter", "the purpose of acme is 'Answer a letter', not"),
    ],
)
def test_a_consent_that_nothing_asks_for_is_refused(
    capsys: Capture, option: str, text: str, told_why: str
) -> None:
    wrong = list(SCOPE)
    wrong[wrong.index(option) + 1] = text
    for answer in ("grant", "deny"):
        code, out, err = run(capsys, answer, *wrong, "--json")
        assert code == 2
        assert json.loads(out)["error"]["code"] == "consent-never-matches"
        assert told_why in err
    assert told(capsys, "list") == []


@pytest.mark.parametrize(
    ("before", "after", "told_why"),
    [
        ('cloud = "when-needed", ', "", "none of its tasks lets personal data leave for acme"),
        ('basis = "consent"', 'basis = "contract"', "nobody has to agree before personal data"),
    ],
)
def test_a_consent_that_is_never_asked_for_is_refused(
    capsys: Capture, home: Path, before: str, after: str, told_why: str
) -> None:
    text = POLICY.format(days=0).replace(before, after)
    (home / "policy.toml").write_text(text.replace("consent = [{ ", "consent = [{ ask = false, "))
    _, _, err = run(capsys, "grant", *SCOPE)
    assert told_why in err


def test_the_policy_may_be_another_than_the_homes(
    capsys: Capture, home: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.toml"
    (home / "policy.toml").rename(other)
    assert error(capsys, "grant", *SCOPE) == "consent-never-matches"
    given = told(capsys, "grant", *SCOPE, "--policy", str(other))
    assert given["terms"]["url"] == "https://acme.example/v1"
    (entry,) = told(capsys, "list", "--policy", str(other))
    assert (entry["covers"], entry["uncovered"]) == (True, "")
    (entry,) = told(capsys, "list")
    assert entry["covers"] is False
    assert "no destination 'acme'" in entry["uncovered"]


def test_the_list_says_what_covers_nothing_any_more(capsys: Capture, home: Path) -> None:
    name = told(capsys, "grant", *SCOPE)["id"]
    text = POLICY.format(days=0).replace("https://acme.example/v1", "https://evil.example/v1")
    (home / "policy.toml").write_text(text)
    _, out, err = run(capsys, "list")
    assert f"{name}  granted, covers nothing" in out
    assert f"look: {name} covers nothing now: the address was 'https://acme.example/v1'" in err
    (home / "policy.toml").write_text("no policy")
    _, out, err = run(capsys, "list")
    assert "covers nothing" not in out
    assert "what is covered cannot be told" in err


def test_a_decision_is_named_by_its_beginning(capsys: Capture) -> None:
    names = [told(capsys, "grant", *SCOPE)["id"] for _ in range(17)]  # two begin alike
    first = min(names)
    heads = [name[0] for name in names]
    twice = next(head for head in heads if heads.count(head) > 1)
    assert error(capsys, "revoke", twice) == "consent-ambiguous"
    assert error(capsys, "revoke", "xyz") == "consent-not-found"
    assert error(capsys, "revoke", "") == "consent-not-found"
    assert run(capsys, "revoke", first[:8]) == (0, "1 decision taken back\n", "")
    states = {e["id"]: e["state"] for e in told(capsys, "list")}
    assert states.pop(first) == "revoked"
    assert set(states.values()) == {"granted"}


def test_the_name_is_whole_on_a_narrow_terminal(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = told(capsys, "grant", *SCOPE)["id"]
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _, out, _ = run(capsys, "list")
    assert name in out
