"""Calibrating from recorded cases and from prompts, as a user does."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tests.unit.core.values import DEPLOYMENT
from tests.unit.route.calibrate.made import made_cases

from edgewise.cli.calibrate import calibrate as command
from edgewise.core.signals import Signals
from edgewise.errors import EdgewiseError, InputError, ResourceError
from edgewise.route.calibrate import CalibrateSettings, CheckKind
from edgewise.store import Home
from edgewise.workflow.calibrating import (
    CalibrateRequest,
    active_calibration,
    calibrate,
    load_cases,
    write_plots,
    write_report,
)
from edgewise.workflow.context import Context, Step
from edgewise.workflow.recording import prompt_cases

QUICK = CalibrateSettings(bootstrap_rounds=0)
FEW = CalibrateSettings(bootstrap_rounds=0, target_error=0.9, fit_share=0.9)


def write(path: Path, cases) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(case) + b"\n" for case in cases))
    return path


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return write(tmp_path / "cases.jsonl", made_cases(500, 1, fingerprint=DEPLOYMENT.fingerprint))


def test_recorded_cases_become_evidence(tmp_path: Path, recorded: Path) -> None:
    context = Context(Home(tmp_path / "home"))
    report, digest = calibrate(context, CalibrateRequest(cases=str(recorded), settings=QUICK))
    assert report.enabled
    assert digest is not None
    found, piece = context.evidence.get(digest)
    assert (found, piece.kind, piece.subject) == (digest, "calibration", DEPLOYMENT.fingerprint)
    assert piece.device == context.device.digest
    active = active_calibration(context, DEPLOYMENT)
    assert active.digest == digest
    assert active.evidence == report.evidence
    assert active.standing.stands
    signals = Signals(raw=None, finish="stop", prompt_tokens=1, context_tokens=9)
    assert active.judge(signals).suggested  # it has no "u", so that it cannot be kept


def test_the_calibration_of_another_deployment_is_named_and_does_not_stand(
    tmp_path: Path, recorded: Path
) -> None:
    context = Context(Home(tmp_path / "home"))
    assert not active_calibration(context, DEPLOYMENT).standing.stands
    calibrate(context, CalibrateRequest(cases=str(recorded), settings=QUICK))
    other = msgspec.structs.replace(DEPLOYMENT, adapters=())
    active = active_calibration(context, other)
    assert not active.standing.stands
    assert active.standing.needed == "recalibration"
    signals = Signals(raw=None, finish="stop", prompt_tokens=1, context_tokens=9)
    assert not active.judge(signals).judged


def test_the_newest_that_stands_counts_and_a_refusal_ends_older_ones(
    tmp_path: Path, recorded: Path
) -> None:
    context = Context(Home(tmp_path / "home"))
    _, good = calibrate(context, CalibrateRequest(cases=str(recorded), settings=QUICK))
    assert good is not None
    piece = context.evidence.get(good)[1]
    made = dt.datetime.fromisoformat(piece.created)

    def add(days: int, **changes) -> str:
        created = (made + dt.timedelta(days=days)).isoformat()
        figures = {**piece.figures, **changes}
        return context.evidence.add(
            msgspec.structs.replace(piece, created=created, figures=figures)
        )

    def active():
        return active_calibration(context, DEPLOYMENT, now=made + dt.timedelta(days=2))

    add(300)
    add(1, score="another form")
    assert (active().digest, active().standing.stands) == (good, True)
    off = [{**one, "threshold": None} for one in piece.figures["thresholds"]]
    refused = add(2, thresholds=off)
    assert (active().digest, active().standing.stands) == (refused, False)
    assert "refused" in active().standing.reasons[0]


def test_without_one_that_stands_the_newest_is_named(tmp_path: Path, recorded: Path) -> None:
    context = Context(Home(tmp_path / "home"))
    _, good = calibrate(context, CalibrateRequest(cases=str(recorded), settings=QUICK))
    assert good is not None
    piece = context.evidence.get(good)[1]
    made = dt.datetime.fromisoformat(piece.created)
    later = context.evidence.add(
        msgspec.structs.replace(piece, created=(made + dt.timedelta(days=1)).isoformat())
    )
    active = active_calibration(context, DEPLOYMENT, now=made + dt.timedelta(days=900))
    assert (active.digest, active.standing.stands) == (later, False)


def test_cases_of_nobody_knows_which_deployment_prove_nothing_for_one(tmp_path: Path) -> None:
    cases = write(tmp_path / "cases.jsonl", made_cases(500, 1))
    context = Context(Home(tmp_path / "home"))
    report, digest = calibrate(context, CalibrateRequest(cases=str(cases), settings=QUICK))
    assert report.enabled
    assert digest is None
    assert "nobody noted" in report.notes[0]
    assert context.evidence.find(kind="calibration") == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"settings": CalibrateSettings(slice_by="nonsense")}, "slice-key-unknown"),
        ({"cases": "missing.jsonl"}, "cases-unreadable"),
        ({"cases": "."}, "cases-unreadable"),
        ({"fingerprint": "abcd"}, "bundle-not-found"),
    ],
)
def test_what_cannot_be_calibrated(tmp_path: Path, recorded: Path, fields, code: str) -> None:
    context = Context(Home(tmp_path / "home"))
    request = CalibrateRequest(**{"cases": str(recorded), "settings": QUICK, **fields})
    with pytest.raises(EdgewiseError) as caught:
        calibrate(context, request)
    assert caught.value.code == code


def test_files_that_cannot_be_written(tmp_path: Path, recorded: Path) -> None:
    context = Context(Home(tmp_path / "home"))
    report, _ = calibrate(context, CalibrateRequest(cases=str(recorded), settings=QUICK))
    for call in (
        lambda: write_plots(report, recorded),
        lambda: write_report(report, tmp_path / "none" / "report.json"),
    ):
        with pytest.raises(ResourceError):
            call()


def prompts(*cases) -> bytes:
    return b"".join(json.dumps(case).encode() + b"\n" for case in cases)


@pytest.mark.parametrize(
    ("count", "changes", "have"),
    [
        (48, {}, (19, 29)),
        (48, {"slice_by": "odd"}, (20, 14)),
        (400, {"target_error": 0.01}, (160, 240)),
    ],
)
def test_too_few_prompts_are_refused_before_one_is_asked(
    tmp_path: Path, count: int, changes, have
) -> None:
    cases = [{**GOOD, "id": str(n), "slices": {"odd": str(n % 2)}} for n in range(count)]
    path, record = tmp_path / "prompts.jsonl", tmp_path / "recorded.jsonl"
    path.write_bytes(prompts(*cases))
    context = Context(Home(tmp_path / "home"))  # nothing is active: asking would be another error
    settings = msgspec.structs.replace(QUICK, **changes)
    request = CalibrateRequest(cases=str(path), settings=settings, record=str(record))
    with pytest.raises(InputError) as caught:
        calibrate(context, request)
    assert caught.value.code == "too-few-cases"
    found = caught.value.context
    assert (found["fit"]["have"], found["calibrate"]["have"]) == have
    assert not record.exists()
    assert context.evidence.find(kind="calibration") == []


def test_as_many_prompts_as_are_needed_are_asked(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(prompts(*({**GOOD, "id": str(n)} for n in range(49))))
    request = CalibrateRequest(cases=str(path), settings=QUICK)
    with pytest.raises(EdgewiseError) as caught:
        calibrate(Context(Home(tmp_path / "home")), request)
    assert caught.value.code == "nothing-active"  # the model that would be asked is missing
    sliced = msgspec.structs.replace(request, settings=CalibrateSettings(slice_by="nonsense"))
    with pytest.raises(InputError) as unknown:
        calibrate(Context(Home(tmp_path / "home")), sliced)
    assert unknown.value.code == "slice-key-unknown"


GOOD = {"id": "a", "prompt": "2 + 2?", "reference": "4", "check": "number"}


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"id": "b", "prompt": "Hi"}, "case-malformed"),
        ({"id": "b", "prompt": "Hi", "reference": "x", "nonsense": 1}, "case-malformed"),
        ({"id": "b", "prompt": "Hi", "reference": "x"}, "case-malformed"),
        ({**GOOD, "id": "b", "slices": {"task": "all"}}, "case-malformed"),
        ({**GOOD, "id": "b", "reference": "four"}, "case-reference-invalid"),
        ({**GOOD, "id": "b", "prompt": ""}, "prompt-empty"),
        ({**GOOD, "id": "b", "max_tokens": -1}, "request-invalid"),
        (GOOD, "case-duplicate"),
    ],
)
def test_prompts_that_are_no_cases_are_named_by_line(tmp_path: Path, bad, code: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(prompts(GOOD, bad))
    with pytest.raises(InputError) as caught:
        prompt_cases(load_cases(path), check=None, max_tokens=16)
    assert caught.value.code == code
    assert caught.value.context["line"] == 2


@pytest.mark.model
@pytest.mark.slow
def test_prompts_are_asked_recorded_and_gone_on_with(tmp_path: Path, ready_home: Path) -> None:
    home = tmp_path / "copy"
    shutil.copytree(ready_home, home)
    secret = "PURPLE-ELEPHANT"
    asked = [
        {
            "id": f"{secret}-{number}",
            "prompt": f"{secret} says: {number}. Repeat the number.",
            "reference": str(number),
            "slices": {"parity": str(number % 2)},
        }
        for number in range(26)
    ]
    path, record = tmp_path / "prompts.jsonl", tmp_path / "recorded.jsonl"
    path.write_bytes(prompts(*asked[:24]))
    steps: list[Step] = []
    context = Context(Home(home), report=steps.append)
    request = CalibrateRequest(
        cases=str(path),
        settings=FEW,
        check=CheckKind.NUMBER,
        record=str(record),
        max_tokens=4,
        self_assessment=True,
    )
    report, digest = calibrate(context, request)
    assert not report.enabled  # so few prove nothing, and that is a result
    assert digest is not None
    assert report.recorded == str(record)
    assert {step.total for step in steps if step.status == "progress"} == {24}
    first = record.read_bytes()
    # What the runtime cannot hold an answer to is that case's fault, not the run's.
    schema = {"kind": "json-schema", "source": '{"type": "object", "nonsense": 1}'}
    path.write_bytes(prompts(*asked, {**asked[0], "id": "odd", "structure": schema}))
    report, _ = calibrate(context, request)
    assert any("1 of 27 cases; structure-unsupported" in note for note in report.notes)
    assert record.read_bytes().startswith(first)
    lines = [json.loads(line) for line in record.read_bytes().splitlines()]
    assert len(lines) == 26
    assert secret not in record.read_text()
    for line in lines:
        assert line["fingerprint"] == context.bundles.active().fingerprint
        assert 0 <= line["signals"]["self_yes"] <= 1
        assert line["signals"]["entropy_max"] > 0
    other = record.read_text().replace(lines[0]["fingerprint"], "f" * 64)
    record.write_text(other)
    with pytest.raises(InputError) as caught:
        calibrate(context, request)
    assert caught.value.code == "cases-mixed"


def test_the_command(tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    arguments = [str(recorded), "--plots", str(tmp_path / "p"), "--out", str(tmp_path / "r.json")]
    runner = CliRunner()
    done = runner.invoke(command, [*arguments, "--json"], standalone_mode=False)
    assert done.return_value == 0, done.exception
    found = json.loads(done.stdout)
    assert found["report"]["enabled"]
    assert found["evidence"]
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == [
        "risk-coverage.svg",
        "threshold-0.svg",
    ]
    assert json.loads((tmp_path / "r.json").read_text()) == found["report"]
    done = runner.invoke(command, [*arguments, "--target-error", "0.001"], standalone_mode=False)
    assert done.return_value == 10, done.exception
    assert "too-few-cases" in done.stderr
    assert "threshold" in done.stdout


@pytest.mark.parametrize(
    ("option", "code"), [("--out", "report-unwritable"), ("--plots", "plots-unwritable")]
)
def test_a_place_that_cannot_take_the_result_is_refused_before_anything_is_asked(
    tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch, option: str, code: str
) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    arguments = [str(recorded), option, str(recorded / "below")]
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert isinstance(done.exception, ResourceError)
    assert done.exception.code == code
    assert not (tmp_path / "home" / "evidence").exists()


def test_without_a_plot_there_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    cases = write(tmp_path / "cases.jsonl", made_cases(10, 1))
    arguments = [str(cases), "--plots", str(tmp_path / "p")]
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert done.return_value == 10, done.exception
    assert "no plot" in done.stderr
    assert not (tmp_path / "p").exists()
