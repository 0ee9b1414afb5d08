"""The question of consent on a terminal: answered, refused, or read in whole first."""

from __future__ import annotations

import datetime as dt
import io
import sys
from pathlib import Path

import pytest

from edgewise.cli.routed import _agreed
from edgewise.route.consent import (
    ConsentLedger,
    ConsentPrompt,
    ConsentScope,
    SentField,
    consent_prompt,
)
from edgewise.route.destinations import Basis, Destination
from edgewise.store import Home
from edgewise.workflow.context import Context

CAVEATS = ("strangers are not found", "a second thing is not found", "nor is a third")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def question(until: dt.datetime | None = None) -> ConsentPrompt:
    place = Destination(name="acme", url="https://a.example/v1", model="m", basis=Basis.CONSENT)
    scope = ConsentScope(feature="f", data_class="personal", destination="acme", purpose="help")
    sent = (SentField(name="messages", characters=7),)
    return consent_prompt(
        scope,
        place,
        fields=("messages",),
        reasons=("it is long",),
        benefit="help",
        sent=sent,
        caveats=CAVEATS,
        until_at_most=until,
    )


@pytest.mark.parametrize(
    ("typed", "agreed", "shown"),
    [
        ("once\n", True, False),
        ("no\n", False, False),
        ("details\nonce\n", True, True),
        ("perhaps\ndetails\nno\n", False, True),
    ],
)
def test_details_are_shown_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, agreed: bool, shown: bool
) -> None:
    err = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr(sys, "stderr", err)
    context = Context(Home(tmp_path / "home"))
    assert _agreed(context, question(), None) is agreed
    said = err.getvalue()
    assert CAVEATS[0] in said
    assert (CAVEATS[1] in said) is shown
    (entry,) = ConsentLedger(context.home).entries()
    assert entry.kind == ("grant" if agreed else "deny")
    assert ("agreed" if agreed else "refused; nothing was sent") in said
    assert f"take it back with: edgewise consent revoke {entry.id}\n" in said


LATEST = (dt.datetime.now(dt.UTC) + dt.timedelta(days=7)).replace(microsecond=0)
DAY = (dt.datetime.now().astimezone() + dt.timedelta(days=3)).date()


@pytest.mark.parametrize(
    ("typed", "ends", "said"),
    [
        ("\n", LATEST, ""),
        (f"{LATEST.astimezone().date()}\n", LATEST, ""),
        (
            f"{DAY}\n",
            dt.datetime.combine(DAY + dt.timedelta(days=1), dt.time()).astimezone(),
            "",
        ),
        ("tomorrow\n\n", LATEST, "consent-date-invalid: 'tomorrow' is no date"),
        ("2001-01-01\n\n", LATEST, "consent-date-invalid"),
        ("2999-01-01\n\n", LATEST, f"later than was offered, which is {LATEST.isoformat()}"),
    ],
)
def test_until_asks_for_the_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, ends: dt.datetime, said: str
) -> None:
    err = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(f"until\n{typed}"))
    monkeypatch.setattr(sys, "stderr", err)
    context = Context(Home(tmp_path / "home"))
    assert _agreed(context, question(LATEST), None)
    assert f"Until which day [{LATEST.astimezone().date()}]" in err.getvalue()
    assert said in err.getvalue()
    (entry,) = ConsentLedger(context.home).entries()
    assert (entry.once, entry.expires_at) == (False, ends)


def test_off_a_terminal_all_of_it_is_shown_and_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("once\n"))
    context = Context(Home(tmp_path / "home"))
    assert not _agreed(context, question(), Path("my policy.toml"))
    said = capsys.readouterr().err
    assert all(caveat in said for caveat in CAVEATS)
    assert (
        "edgewise consent grant --feature f --data-class personal --destination acme "
        "--purpose help --policy 'my policy.toml'\n"
    ) in said
    assert ConsentLedger(context.home).entries() == ()
