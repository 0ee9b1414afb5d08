"""When a calibration stands, and what it says of an answer."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from tests.unit.core.values import DEPLOYMENT, evidence
from tests.unit.route.calibrate.made import made_cases

from edgewise.core.outcome import FinishReason
from edgewise.core.signals import Escalation, Signals, TokenSignals
from edgewise.errors import InputError
from edgewise.route.calibrate import (
    EscalationEvidence,
    ScoreDefinition,
    SliceThreshold,
    Standing,
    Term,
    calibrate_cases,
    judge,
    read_evidence,
    sections_of,
    stands,
)
from edgewise.route.calibrate.report import CalibrateSettings

NOW = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
TOKENS = TokenSignals(
    tokens=3,
    entropy_mean=0.2,
    entropy_max=0.5,
    margin_mean=2.0,
    margin_min=0.5,
    margin_first=1.0,
    logprob_mean=-0.4,
    logprob_min=-1.0,
)
SIGNALS = Signals(
    raw=TOKENS, finish="stop", validator="passed", prompt_tokens=50, context_tokens=200
)
PROVED = EscalationEvidence(
    target_error=0.1,
    confidence=0.95,
    score=ScoreDefinition(
        intercept=0.0,
        terms=(Term(signal="entropy_mean", mean=0.2, scale=0.1, weight=1.0),),
        penalty=1.0,
    ),
    thresholds=(
        SliceThreshold(
            slice="all",
            cases=100,
            wrong=30,
            share=1,
            threshold=0.6,
            kept=50,
            kept_wrong=1,
            delta=0.05,
        ),
        SliceThreshold(slice="off", cases=3, wrong=1, share=0, delta=0.05),
    ),
    dataset_sha256="d" * 64,
    n_fit=60,
    n_calibrate=100,
    seed=0,
    prompt_sha256="p" * 64,
    sections=sections_of(DEPLOYMENT),
)
STANDS = Standing(stands=True)


def piece(**changes):
    fields = {
        "kind": "calibration",
        "subject": DEPLOYMENT.fingerprint,
        "created": "2026-10-01T12:00:00Z",
        "figures": msgspec.to_builtins(PROVED),
        **changes,
    }
    return evidence(**fields)


def test_it_stands() -> None:
    assert stands(piece(), DEPLOYMENT, now=NOW) == STANDS
    assert stands(piece(device="another"), DEPLOYMENT, now=NOW, prompt_sha256="p" * 64).stands
    assert read_evidence(piece()) == PROVED


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        ("recipe", msgspec.structs.replace(DEPLOYMENT.recipe, weights="q4_0")),
        ("text", msgspec.structs.replace(DEPLOYMENT.text, template_sha256="9" * 64)),
        ("runtime", msgspec.structs.replace(DEPLOYMENT.runtime, version="2")),
        ("environment", msgspec.structs.replace(DEPLOYMENT.environment, device_class="other")),
        ("policy", msgspec.structs.replace(DEPLOYMENT.policy, routing="r@2")),
    ],
)
def test_another_deployment_asks_for_recalibration(section: str, changed) -> None:
    other = msgspec.structs.replace(DEPLOYMENT, **{section: changed})
    found = stands(piece(), other, now=NOW)
    assert not found.stands
    assert found.needed == "recalibration"
    assert f"(changed: {section})" in found.reasons[0]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"created": "2026-01-01T00:00:00Z"}, "days old"),
        ({"created": "2027-01-01T00:00:00Z"}, "future"),
        ({"created": "yesterday"}, "date"),
        ({"created": "2026-10-01T12:00:00"}, "date"),
        ({"kind": "smoke"}, "no calibration"),
        ({"figures": {"passed": True}}, "no calibration"),
        ({"subject": "f" * 64}, "ffffffffffff"),
    ],
)
def test_it_does_not_stand(changes, word: str) -> None:
    found = stands(piece(**changes), DEPLOYMENT, now=NOW)
    assert not found.stands
    assert found.needed == "recalibration"
    assert any(word in reason for reason in found.reasons)


def test_another_prompt_template_and_a_refused_one_do_not_stand() -> None:
    assert not stands(piece(), DEPLOYMENT, now=NOW, prompt_sha256="q" * 64).stands
    off = msgspec.structs.replace(PROVED, thresholds=PROVED.thresholds[1:])
    found = stands(piece(figures=msgspec.to_builtins(off)), DEPLOYMENT, now=NOW)
    assert "refused" in found.reasons[0]


def at(entropy: float, **changes) -> Signals:
    raw = msgspec.structs.replace(TOKENS, entropy_mean=entropy)
    return msgspec.structs.replace(SIGNALS, raw=raw, **changes)


def judged(signals, **changes) -> Escalation:
    fields = {"digest": "e" * 64, "standing": STANDS, **changes}
    return judge(signals, PROVED, **fields)


def test_an_answer_is_kept_or_offered() -> None:
    kept = judged(at(0.2))
    assert (kept.judged, kept.suggested, kept.score) == (True, False, 0.5)
    assert (kept.threshold, kept.target_error, kept.evidence) == (0.6, 0.1, "e" * 64)
    offered = judged(at(0.5))
    assert (offered.judged, offered.suggested) == (True, True)
    assert offered.score > 0.6
    assert "above" in offered.reasons[0]


def test_a_score_at_the_threshold_is_kept_as_in_calibration() -> None:
    exact = PROVED.score.risk(at(0.31).features())
    one = msgspec.structs.replace(PROVED.thresholds[0], threshold=exact)
    found = judge(
        at(0.31),
        msgspec.structs.replace(PROVED, thresholds=(one,)),
        digest="e" * 64,
        standing=STANDS,
    )
    assert not found.suggested


@pytest.mark.parametrize(
    ("signals", "word"),
    [
        (None, "missing"),
        (at(0.0, finish="length"), "end"),
        (at(0.0, finish="deadline"), "end"),
        (at(0.0, validator="failed"), "form"),
        (msgspec.structs.replace(SIGNALS, raw=None), "missing"),
    ],
)
def test_what_cannot_be_scored_is_offered_and_never_kept(signals, word: str) -> None:
    found = judged(signals)
    assert (found.judged, found.suggested, found.score) == (True, True, None)
    assert word in found.reasons[0]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"digest": ""}, "at hand"),
        ({"standing": None}, "nobody checked"),
        (
            {"standing": Standing(stands=False, reasons=("too old",), needed="recalibration")},
            "too old",
        ),
        ({"slice_value": "unknown"}, "unknown"),
        ({"slice_value": "off"}, "proved nothing"),
    ],
)
def test_without_a_calibration_that_stands_nothing_is_suggested(changes, word: str) -> None:
    for signals in (at(0.0), at(0.9), None):
        found = judged(signals, **changes)
        assert (found.judged, found.suggested, found.evidence) == (False, False, "")
        assert word in found.reasons[0]


@pytest.mark.parametrize("slice_value", [None, "all"])
def test_a_slice_of_the_name_all_is_not_the_bound_of_everything(slice_value) -> None:
    sliced = msgspec.structs.replace(PROVED, slice_by="task")
    fields = {"digest": "e" * 64, "standing": STANDS, "slice_value": slice_value}
    found = judge(at(0.2), sliced, **fields)
    assert (found.judged, found.suggested) == (False, False)
    assert "nobody said the request's slice" in found.reasons[0]
    assert judge(at(0.2), PROVED, **fields).judged


def test_further_signals_of_the_callers() -> None:
    term = Term(signal="mine", mean=0.0, scale=1.0, weight=1.0)
    score = ScoreDefinition(intercept=0.0, terms=(term,), penalty=1.0)
    mine = msgspec.structs.replace(PROVED, score=score)
    assert judge(SIGNALS, mine, digest="e" * 64, standing=STANDS).score is None
    found = judge(SIGNALS, mine, digest="e" * 64, standing=STANDS, more={"mine": 0.0})
    assert found.score == 0.5


def test_what_is_calibrated_is_what_is_judged() -> None:
    """All the way: the evidence of a calibration keeps exactly the cases that it counted."""
    cases = made_cases(500, 1)
    report = calibrate_cases(cases, CalibrateSettings(bootstrap_rounds=0), dataset_sha256="d" * 64)
    from edgewise.route.calibrate.cases import split

    _, rest = split(cases, fit_share=0.4, seed=0, key=None)
    again = msgspec.json.decode(msgspec.json.encode(report.evidence), type=EscalationEvidence)
    kept = [
        not judge(
            SIGNALS, again, digest="e" * 64, standing=STANDS, more={"u": float(case.signals["u"])}
        ).suggested
        for case in rest
    ]
    assert sum(kept) == report.evidence.thresholds[0].kept > 0


def test_features() -> None:
    found = msgspec.structs.replace(SIGNALS, allowed=TOKENS, checks={"sources": False}).features()
    assert found["context_share"] == 0.25
    assert found["entropy_mean"] == found["allowed_entropy_mean"] == 0.2
    assert found["logprob_sum"] == pytest.approx(-1.2)
    assert (found["cut"], found["invalid"], found["check_sources"]) == (0, 0, 0)
    bare = Signals(raw=None, finish="length", prompt_tokens=0, context_tokens=1).features()
    assert bare == {"context_share": 0, "cut": 1, "invalid": 0}


def test_the_names_of_finish_reasons_are_those_of_the_outcome() -> None:
    for reason in FinishReason:
        data = msgspec.to_builtins(msgspec.structs.replace(SIGNALS, finish=reason.value))
        assert msgspec.convert(data, Signals).finish == reason.value


def test_values_that_contradict_themselves() -> None:
    with pytest.raises(InputError):
        Escalation(judged=True, suggested=False, reasons=("why",))
    with pytest.raises(InputError):
        Escalation(judged=False, suggested=False, reasons=())
    with pytest.raises(InputError):
        Signals(raw=None, finish="stop", prompt_tokens=0, context_tokens=0)


@pytest.mark.parametrize("field", ["scale", "mean"])
def test_a_calibration_with_broken_numbers_is_read_as_none(field: str) -> None:
    figures = msgspec.to_builtins(PROVED)
    figures["score"]["terms"][0][field] = {"scale": 0.0, "mean": float("inf")}[field]
    broken = msgspec.structs.replace(piece(), figures=figures)
    assert read_evidence(broken) is None
    found = stands(broken, DEPLOYMENT, now=NOW)
    assert not found.stands
    assert "holds no calibration" in found.reasons[0]


@pytest.mark.parametrize(
    ("of", "field", "value"),
    [
        ("evidence", "schema_version", 99),
        ("evidence", "target_error", -5.0),
        ("evidence", "target_error", 1.0),
        ("evidence", "confidence", 7.0),
        ("evidence", "n_fit", -1),
        ("evidence", "thresholds", 2 * msgspec.to_builtins(PROVED)["thresholds"]),
        ("slice", "threshold", 1e9),
        ("slice", "kept", 101),
        ("slice", "kept_wrong", -1),
        ("slice", "wrong", 101),
        ("slice", "share", 9.0),
        ("slice", "delta", -0.1),
    ],
)
def test_a_calibration_that_none_can_be_is_read_as_none(of: str, field: str, value) -> None:
    figures = msgspec.to_builtins(PROVED)
    (figures if of == "evidence" else figures["thresholds"][0])[field] = value
    with pytest.raises(InputError) as caught:
        msgspec.convert(figures, EscalationEvidence)
    assert caught.value.code == "calibration-invalid"
    broken = piece(figures=figures)
    found = stands(broken, DEPLOYMENT, now=NOW)
    assert not found.stands
    mine = judge(at(0.2), read_evidence(broken), digest="e" * 64, standing=found)
    assert (mine.judged, mine.suggested) == (False, False)
    assert "holds no calibration that this version reads" in mine.reasons[0]


def test_a_score_that_is_no_number_keeps_nothing() -> None:
    terms = (
        Term(signal="a", mean=0.0, scale=1.0, weight=1e308),
        Term(signal="b", mean=0.0, scale=1.0, weight=-1e308),
    )
    score = ScoreDefinition(intercept=0.0, terms=terms, penalty=1.0)
    assert score.risk({"a": 5.0, "b": 5.0}) is None
    assert score.risk({"a": -5.0, "b": 5.0}) is None
    assert score.risk({"a": 0.5, "b": 0.5}) is not None
