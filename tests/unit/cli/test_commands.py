"""The command line as a whole: help, exit codes, and errors for people and for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from tests.builders import tiny_gguf
from tests.unit.core.values import evidence

from edgewise import errors
from edgewise._version import __version__
from edgewise.cli import _run
from edgewise.cli.root import COMMANDS, root
from edgewise.errors import EdgewiseError
from edgewise.store import EvidenceStore, Home

Capture = pytest.CaptureFixture[str]
HEAVY = ("numpy", "httpx", "jinja2", "rich", "llama_cpp", "rfc8785", "filelock")


def all_commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    def walk(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[Any, click.Command]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield (*path, name), command
            if isinstance(command, click.Group):
                yield from walk(command, (*path, name))

    yield from walk(root, ())


ALL = list(all_commands())
IDS = [" ".join(path) for path, _ in ALL]


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = _run(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "edgewise.cli", *arguments],
        check=False,
        timeout=60,
        **{"capture_output": True, **options},
    )


# -- help


def test_help_lists_every_command(capsys: Capture) -> None:
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    listed = out.partition("Commands:")[2]
    for name, (_, _, text) in COMMANDS.items():
        assert f"\n  {name} " in listed
        assert text.split(".", maxsplit=1)[0].split()[0] in listed
    assert "Exit codes: 0 ok, 1 bug, 2 input" in out


def test_commands_of_the_lifecycle_are_there() -> None:
    assert {"up", "probe", "plan", "fetch", "run", "chat", "fingerprint", "diff", "evidence"} <= {
        *COMMANDS
    }


@pytest.mark.parametrize(("path", "command"), ALL, ids=IDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_every_command(
    capsys: Capture, path: tuple[str, ...], command: click.Command, flag: str
) -> None:
    code, out, err = run(capsys, *path, flag)
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: edgewise {' '.join(path)}")
    assert command.help
    assert command.help.splitlines()[0].split()[0] in out


@pytest.mark.parametrize(("path", "command"), ALL, ids=IDS)
def test_every_option_says_what_it_does(path: tuple[str, ...], command: click.Command) -> None:
    silent = [
        option.opts[-1]
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("path", "command"),
    [pair for pair in ALL if not isinstance(pair[1], click.Group)],
    ids=[name for name, (_, c) in zip(IDS, ALL, strict=True) if not isinstance(c, click.Group)],
)
def test_json_everywhere(path: tuple[str, ...], command: click.Command) -> None:
    interactive_or_json_anyway = {("chat",), ("evidence", "show")}
    has = any("--json" in option.opts for option in command.params)
    assert has or path in interactive_or_json_anyway


def test_version(capsys: Capture) -> None:
    code, out, _ = run(capsys, "--version")
    assert (code, out) == (0, f"edgewise, version {__version__}\n")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from edgewise.cli import _run\n"
        "code = _run(['--help'])\n"
        f"bad = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "bad += [m for m in sys.modules if m.startswith(('edgewise.workflow', 'edgewise.run'))]\n"
        "sys.exit(code or ' '.join(bad) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_help_is_quick() -> None:
    def once() -> float:
        begin = time.perf_counter()
        process("--help")
        return time.perf_counter() - begin

    assert min(once() for _ in range(3)) < 1.0  # the aim is 0.15 s on an idle machine


# -- usage errors


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["--nosuch"],
        ["run", "--nosuch"],
        ["run", "a", "b"],
        ["run", "Hello", "--max-tokens", "many"],
        ["plan", "--kv", "q3"],
        ["diff"],
        ["evidence", "show"],
        ["evidence", "nosuch"],
        ["RUN"],
    ],
    ids=" ".join,
)
def test_wrong_usage(capsys: Capture, arguments: list[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0].startswith("error: usage: ")
    assert lines[-1].startswith("hint: see: edgewise")
    assert lines[-1].endswith("--help")


def test_wrong_usage_as_json(capsys: Capture) -> None:
    code, out, err = run(capsys, "plan", "--kv", "q3", "--json")
    assert code == 2
    data = json.loads(out)
    assert set(data) == {"error"}
    assert (data["error"]["type"], data["error"]["code"]) == ("InputError", "usage")
    assert data["error"]["hint"] == "see: edgewise plan --help"
    assert err.startswith("error: usage: ")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run", ""], "prompt-empty"),
        (["run", " \n"], "prompt-empty"),
        (["run", "\udcff"], "text-not-utf8"),
        (["run", "x", "--stop", "\udcff"], "text-not-utf8"),
        (["run", "x", "--stop", ""], "stop-empty"),
        (["run", "x", "--max-tokens", "0"], "request-invalid"),
        (["run", "x", "--max-tokens", str(2**80)], "request-invalid"),
        (["run", "x", "--temperature", "nan"], "request-invalid"),
        (["run", "x", "--deadline", "inf"], "request-invalid"),
        (["run", "x", "--top-k", "3"], "sampling-contradiction"),
        (["run", "x"], "nothing-active"),
        (["run", "x", "--fingerprint", "abc"], "bundle-not-found"),
        (["chat"], "nothing-active"),
        (["fingerprint"], "nothing-active"),
        (["diff", "abc"], "bundle-not-found"),
        (["evidence", "show", "abc"], "evidence-prefix-short"),
        (["evidence", "show", "abcd"], "evidence-not-found"),
        (["fetch", "no-such-model"], "reference-invalid"),
        (["fetch", "/no/such.gguf"], "file-missing"),
        (["plan", "/no/such.gguf"], "file-missing"),
        (["plan", "--tier", "toaster"], "tier-unknown"),
        (["plan", "--app", "much"], "size-invalid"),
        (["up", "--override", "nonsense"], "override-invalid"),
    ],
    ids=lambda value: ascii(value) if isinstance(value, list) else value,
)
def test_wrong_input(capsys: Capture, arguments: list[str], code: str) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert f"error: {code}: " in [line[: len(code) + 9] for line in err.splitlines()]


# -- exit codes


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("EdgewiseError", 1),
        ("InputError", 2),
        ("UnsupportedError", 3),
        ("IntegrityError", 4),
        ("ResourceError", 5),
        ("RemoteError", 6),
        ("AdapterError", 7),
    ],
)
def test_exit_code_of_each_error(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, kind: str, expected: int, as_json: bool
) -> None:
    error: EdgewiseError = getattr(errors, kind)(
        "some-code", "It broke.", context={"path": "/x"}, hint="mend it", retryable=True
    )

    def broken(*_arguments: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr("edgewise.workflow.checkpoints.fetch_checkpoint", broken)
    code, out, err = run(capsys, "fetch", *(["--json"] if as_json else []))
    assert code == expected
    assert err == "error: some-code: It broke.\nhint: mend it\n"
    if as_json:
        assert json.loads(out) == {"error": error.to_dict()}
    else:
        assert out == ""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, click.Abort])
def test_interrupt(capsys: Capture, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    def interrupted(*_arguments: Any, **_options: Any) -> None:
        raise kind

    monkeypatch.setattr("edgewise.workflow.checkpoints.fetch_checkpoint", interrupted)
    code, out, err = run(capsys, "fetch")
    assert (code, out) == (130, "")
    assert err.strip() == "interrupted"


def test_a_bug_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_arguments: Any, **_options: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("edgewise.workflow.checkpoints.fetch_checkpoint", bug)
    with pytest.raises(ZeroDivisionError):
        _run(["fetch"])


def test_fetch(capsys: Capture, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    code, out, err = run(capsys, "fetch", str(path))
    assert code == 0
    assert Path(out.strip()).read_bytes() == path.read_bytes()
    assert "ok fetch" in err
    code, out, _ = run(capsys, "fetch", str(path), "--json")
    assert code == 0
    assert json.loads(out)["reference"] == f"file:{path}"


@pytest.mark.parametrize(
    ("architecture", "extra", "code", "verdict"),
    [
        ("llama", [], 0, "fits"),
        ("mamba", [], 10, "unknown"),
        ("llama", ["--app", "100GiB"], 10, "does-not-fit"),
    ],
)
def test_plan(
    capsys: Capture, tmp_path: Path, architecture: str, extra: list[str], code: int, verdict: str
) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", architecture=architecture)
    command = ["plan", str(path), "--tier", "raspberry-pi", *extra]
    status, out, _ = run(capsys, *command)
    assert status == code
    assert out.startswith(verdict)
    assert "nan" not in out.lower().split()
    status, out, err = run(capsys, *command, "--json")
    data = json.loads(out, parse_constant=pytest.fail)
    assert (status, data["verdict"], err) == (code, verdict, "")
    assert data["memory"]["peak_bytes"]["kind"] in {"estimated", "unknown"}
    assert (data["memory"]["peak_bytes"]["kind"] == "unknown") == (architecture == "mamba")


def test_tier_list(capsys: Capture) -> None:
    code, out, _ = run(capsys, "plan", "--tier", "list")
    assert code == 0
    assert out.splitlines()[0] == "this-device"
    assert len(out.splitlines()) == 7


def test_evidence(capsys: Capture) -> None:
    assert run(capsys, "evidence", "list") == (0, "", "there is no evidence yet\n")
    assert run(capsys, "evidence", "list", "--json") == (0, "[]\n", "")
    digest = EvidenceStore(Home()).add(evidence())
    code, out, _ = run(capsys, "evidence", "list", "--json")
    assert (code, [entry["digest"] for entry in json.loads(out)]) == (0, [digest])
    code, out, _ = run(capsys, "evidence", "list")
    assert digest[:12] in out
    code, out, _ = run(capsys, "evidence", "show", digest[:8])
    assert (code, json.loads(out)["digest"]) == (0, digest)
    path = Home().root / "evidence" / f"{digest}.json"
    path.write_bytes(path.read_bytes() + b" ")
    code, out, err = run(capsys, "evidence", "show", digest)
    assert (code, out) == (4, "")
    assert err.startswith("error: evidence-corrupt: ")


# -- the process


@pytest.mark.slow
def test_standard_input_that_is_not_utf8() -> None:
    done = process("run", input=b"caf\xe9")
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"error: stdin-not-utf8: ")
    assert b"hint: " in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "--tier", "list"], 0),
        (["--help"], 0),
        (["evidence", "list", "--json"], 0),
        (["nosuch", "--json"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_reader_that_went_away(arguments: list[str], code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = process(*arguments, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
def test_a_closed_standard_input() -> None:
    closed = "import os, sys; os.close(0); os.execv(sys.executable, sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", closed, sys.executable, "-m", "edgewise.cli", "run"],
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: prompt-missing: ")


@pytest.mark.slow
def test_no_colour_and_no_spinner_off_a_terminal(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    for command in (["fetch", str(path)], ["plan", str(path), "--tier", "laptop"], ["nosuch"]):
        done = process(*command, env={**os.environ, "TERM": "xterm-256color"})
        assert b"\x1b" not in done.stdout + done.stderr
        assert b"\r" not in done.stderr
