"""Plots are well-formed, stand by themselves, and draw what the report says."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree as ET

import msgspec
import pytest
from tests.unit.route.calibrate.made import made_cases

from edgewise.route.calibrate import CalibrateSettings, calibrate_cases, plots

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def report():
    cases = [
        msgspec.structs.replace(
            case,
            signals={**case.signals, "entropy_mean": 0.5 * case.signals["u"]},
            slices={"k": "<a & b>"},
        )
        for case in made_cases(500, 2)
    ]
    settings = CalibrateSettings(bootstrap_rounds=0, slice_by="k")
    return calibrate_cases(cases, settings, dataset_sha256="d" * 64)


def test_they_are_whole_documents(report) -> None:
    found = plots(report)
    assert sorted(found) == ["risk-coverage.svg", "threshold-0.svg"]
    for text in found.values():
        root = ET.fromstring(text)
        assert root.tag == f"{SVG}svg"
        assert not re.search(r"<script|href|url\(|@import|<style|<foreignObject", text)
        assert "nan" not in text
        assert "inf" not in text.replace("information", "")
    assert "&lt;a &amp; b&gt;" in found["threshold-0.svg"]


def test_every_curve_is_drawn_and_named_once(report) -> None:
    root = ET.fromstring(plots(report)["risk-coverage.svg"])
    names = [line.find(f"{SVG}title").text for line in root.iter(f"{SVG}polyline")]
    assert [name.split(" ")[0] for name in names] == [curve.name for curve in report.curves]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert all(texts.count(name) == 1 for name in names)
    assert "target 10%" in texts


def test_points_lie_within_the_axes_and_names_apart(report) -> None:
    for text in plots(report).values():
        root = ET.fromstring(text)
        width, height = float(root.get("width", "")), float(root.get("height", ""))
        for line in root.iter(f"{SVG}polyline"):
            for point in line.get("points").split():
                x, y = map(float, point.split(","))
                assert 0 < x < width - 180
                assert 60 < y < height - 60
        legend = [
            float(t.get("y", "")) for t in root.iter(f"{SVG}text") if t.get("font-size") == "12"
        ]
        assert all(b - a >= 16.9 for a, b in itertools.pairwise(legend))
        assert max(legend) <= height - 45


def test_the_chosen_threshold_is_marked(report) -> None:
    root = ET.fromstring(plots(report)["threshold-0.svg"])
    (mark,) = root.iter(f"{SVG}circle")
    assert "chosen" in mark.find(f"{SVG}title").text


def test_a_single_threshold_is_drawn_as_a_point_with_its_bound(report) -> None:
    steps = {"<a & b>": (msgspec.structs.replace(report.steps["<a & b>"][0], passed=False),)}
    evidence = msgspec.structs.replace(
        report.evidence,
        thresholds=tuple(
            msgspec.structs.replace(one, threshold=None) for one in report.evidence.thresholds
        ),
    )
    (step,) = steps["<a & b>"]
    one = msgspec.structs.replace(report, steps=steps, evidence=evidence)
    root = ET.fromstring(plots(one)["threshold-0.svg"])
    assert list(root.iter(f"{SVG}polyline")) == []
    upper, observed = root.iter(f"{SVG}circle")
    assert upper.find(f"{SVG}title").text == f"upper bound: {step.bound:.1%}"
    assert observed.find(f"{SVG}title").text == f"observed: {step.wrong / step.kept:.1%}"
    assert float(upper.get("cy", "")) < float(observed.get("cy", ""))
    assert upper.get("cx") == observed.get("cx")
    assert any("above the target" in (text.text or "") for text in root.iter(f"{SVG}text"))


def test_nothing_learned_draws_nothing() -> None:
    report = calibrate_cases(
        made_cases(10, 1), CalibrateSettings(bootstrap_rounds=0), dataset_sha256="d" * 64
    )
    assert plots(report) == {}


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("\x01ctl", "\\x01ctl"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\ufffe\uffff", "\\ufffe\\uffff"),
        ("\ud800", "\\ud800"),
        ("a\u202eb", "a\\u202eb"),
        ('"/><script>', '"/><script>'),
        ("a" * 5000, "a" * 60 + " … (4940 characters more)"),
    ],
    ids=["control", "escape", "no-character", "surrogate", "override", "markup", "long"],
)
def test_any_name_of_a_slice_makes_a_whole_document(report, name: str, seen: str) -> None:
    thresholds = tuple(
        msgspec.structs.replace(one, slice=name) for one in report.evidence.thresholds
    )
    other = msgspec.structs.replace(
        report,
        evidence=msgspec.structs.replace(report.evidence, thresholds=thresholds),
        steps={name: report.steps["<a & b>"]},
    )
    root = ET.fromstring(plots(other)["threshold-0.svg"].encode())
    assert root.find(f"{SVG}title").text == f"Thresholds tested in slice {seen}"
