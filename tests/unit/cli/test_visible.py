"""What files, servers and models say is shown on a terminal, never obeyed."""

from __future__ import annotations

import pytest

from edgewise.cli import _run
from edgewise.cli.output import StepPrinter, paint, print_table, say
from edgewise.core import shown
from edgewise.core.shown import visible
from edgewise.workflow.context import Step


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 漢字 👩‍👧", "plain ünïcode 漢字 👩‍👧"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\nb\tc", "a\nb\tc"),
        ("\x9b2J\r\x00", "\\x9b2J\\x0d\\x00"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("no\u200bthing\u3164\u2800", "no\\u200bthing\\u3164\\u2800"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("line\u2028more", "line\\u2028more"),
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("\u0645\u0631\u062d\u0628\u0627 \u200fedgewise\u200e 1", None),  # Arabic with marks
        ("\u0e20\u0e32\u0e29\u0e32\u200b\u0e44\u0e17\u0e22", None),  # Thai, where lines may break
        ("\u06dd \u0600\u0661 \u1820\u180b \u2800\u2801 co\u00adop \u2764\ufe0e", None),
        ("\U0001fae8 \ue000", None),  # what this Python does not know yet, and private use
        ("if a:\n\tpass", None),
        ("a\u202e)b(\u202c", "a\\u202e)b(\\u202c"),
        ("x\u2067y\u2069", "x\\u2067y\\u2069"),
        ("hi\U000e0068\U000e0069", "hi\\U000e0068\\U000e0069"),
        ("\x1b]0;title\x07\r\u2028", "\\x1b]0;title\\x07\\x0d\\u2028"),
    ],
)
def test_an_answer_keeps_what_its_script_needs(text: str, printed: str | None) -> None:
    assert shown.answer(text) == (text if printed is None else printed)
    assert "".join(shown.answer(c) for c in text) == shown.answer(text)  # in any pieces


def test_a_cell_makes_up_no_row_and_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name"], [["a\nb\x1b[2J\u202e"]])
    assert capsys.readouterr().out.splitlines()[1].strip() == "a\\nb\\x1b[2J\\u202e"


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b]8;;http://a\x1b\\b", "\\x1b]8;;http://a\\x1b\\b"),
        ("\x9b2J\r", "\\x9b2J\\x0d"),
        ("a\tb", "a\\tb"),
    ],
)
def test_nothing_in_a_table_acts_on_a_terminal(
    raw: str, seen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table([raw], [[raw]])
    header, row = capsys.readouterr().out.splitlines()
    assert (header.strip(), row.strip()) == (seen, seen)


def test_a_step_in_progress_stays_on_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    StepPrinter()(Step(stage="fetch", status="progress", message="a\nok b\u202e"))
    assert "a\\nok b\\u202e" in capsys.readouterr().err


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
