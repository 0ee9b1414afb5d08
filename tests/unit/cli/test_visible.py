"""What files, servers and models say is shown on a terminal, never obeyed."""

from __future__ import annotations

import pytest

from edgewise.cli import _run
from edgewise.cli.output import paint, say, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 漢字 👩‍👧", "plain ünïcode 漢字 👩‍👧"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\nb\tc", "a\nb\tc"),
        ("\x9b2J\r\x00", "\\x9b2J\\x0d\\x00"),
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_our_own_colours_pass_and_others_do_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    say(f"{paint('error', 'red')}: \x1b[2J gone")
    assert capsys.readouterr().err == "\x1b[31merror\x1b[0m: \\x1b[2J gone\n"


def test_secrets_in_a_reference_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["fetch", "http://user:S3CRET@example.com/m.gguf?token=S3CRET2"]) == 2
    shown = capsys.readouterr().err
    assert "S3CRET" not in shown
    assert "***" in shown
