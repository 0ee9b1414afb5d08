"""Plots of a calibration, as SVG files that stand by themselves: no library, no script, no font.

Each says in its title what it shows, in a line below what is to be read from it, and carries its
figures as titles of its shapes, which a browser shows under the pointer and a screen reader reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

import msgspec

from edgewise.core.shown import plain
from edgewise.route.calibrate.report import CalibrationReport, CurveReport
from edgewise.route.calibrate.thresholds import Step

__all__ = ["plots"]

_WIDTH: Final = 760
_HEIGHT: Final = 460
_LEFT: Final = 70
_RIGHT: Final = 190  # names of the lines stand there
_TOP: Final = 64
_BOTTOM: Final = 62
# Okabe & Ito's palette, which colour-blind readers can tell apart, and dashes for print.
_STYLES: Final = {
    "combined": ("#0072B2", "", 2.6),
    "entropy-only": ("#D55E00", "7 4", 1.8),
    "self-assessment": ("#009E73", "2 3", 1.8),
    "random": ("#777777", "10 4 2 4", 1.3),
    "oracle": ("#000000", "4 4", 1.3),
}
_NAME_MAX: Final = 60
_TARGET: Final = "#CC79A7"


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    points: tuple[tuple[float, float], ...]
    colour: str
    dash: str = ""
    width: float = 1.8


def plots(report: CalibrationReport) -> dict[str, str]:
    """Return SVG documents by file name: the risk-coverage curves, and each slice's tests."""
    found: dict[str, str] = {}
    if report.curves:
        found["risk-coverage.svg"] = _risk_coverage(report)
    for number, (name, steps) in enumerate(report.steps.items()):
        if steps:
            found[f"threshold-{number}.svg"] = _thresholds(report, name, steps)
    return found


def _risk_coverage(report: CalibrationReport) -> str:
    lines = [_curve(one) for one in report.curves]
    target = report.settings.target_error
    highest = max(target, *(rate for line in lines for _, rate in line.points))
    chart = _Chart(
        title="Risk-coverage: how often kept answers are wrong",
        note=f"{report.evidence.n_calibrate} answers that nothing was fitted on, most certain "
        "first. Lower is better.",
        x="share of answers kept here",
        y="error rate of the kept",
        top=highest,
    )
    chart.level(target, f"target {target:.0%}")
    chart.lines(lines)
    return chart.svg()


def _curve(one: CurveReport) -> _Line:
    colour, dash, width = _STYLES[one.name]
    name = f"{one.name} (AURC {one.aurc:.3f})"
    return _Line(name=name, points=one.points, colour=colour, dash=dash, width=width)


def _thresholds(report: CalibrationReport, name: str, steps: Sequence[Step]) -> str:
    slices = {one.slice: one for one in report.evidence.thresholds}
    cases = max(slices[name].cases, 1)
    target = report.settings.target_error
    bound = tuple((step.kept / cases, step.bound) for step in steps)
    rate = tuple((step.kept / cases, step.wrong / max(step.kept, 1)) for step in steps)
    one = len(steps) == 1
    chart = _Chart(
        title=f"{'Threshold' if one else 'Thresholds'} tested in slice "
        f"{plain(name, longest=_NAME_MAX)}",
        note=f"{_passed(steps)} Each bound at {1 - slices[name].delta:.1%}.",
        x="share of answers kept here",
        y="error rate of the kept",
        top=max(target, *(value for _, value in (*bound, *rate))),
    )
    chart.level(target, f"target {target:.0%}")
    for upper, lower in zip(bound, rate, strict=True):
        chart.bar(upper, lower)
    chart.lines(
        [
            _Line(name="upper bound", points=bound, colour="#0072B2", width=2.2),
            _Line(name="observed", points=rate, colour="#D55E00", dash="7 4"),
        ]
    )
    chosen = slices[name].threshold
    for step in steps:
        if step.threshold == chosen:
            chart.mark(step.kept / cases, step.bound, f"chosen: keeps {step.kept / cases:.0%}")
    return chart.svg()


def _passed(steps: Sequence[Step]) -> str:
    """Return in words how the tests went."""
    passed = sum(step.passed for step in steps)
    if passed == len(steps):
        return f"All {passed} passed." if passed > 1 else "It is the only one, and passed."
    if passed == 0:
        return "The first one's bound is above the target, which ends the tests."
    return f"In order: {passed} passed, then one's bound was above the target."


class _Chart:
    """Axes from 0 on, the x axis to 1, and what is drawn in them."""

    def __init__(self, *, title: str, note: str, x: str, y: str, top: float) -> None:
        self._step = _tick(top)
        self._top = max(self._step, math.ceil(top / self._step - 1e-9) * self._step)
        self._title = title
        self._labels: list[tuple[float, str, str]] = []
        self._parts = [
            f'<text x="{_LEFT}" y="26" font-size="17" font-weight="600">{escape(title)}</text>',
            f'<text x="{_LEFT}" y="46" fill="#555">{escape(note)}</text>',
        ]
        self._axes(x, y)

    def level(self, value: float, name: str) -> None:
        """Draw a horizontal line with its name."""
        y = self._y(value)
        self._parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{_TARGET}" stroke-width="1.6"><title>{escape(name)}</title></line>'
        )
        self._labels.append((y, name, _TARGET))

    def bar(self, upper: tuple[float, float], lower: tuple[float, float]) -> None:
        """Draw a thin bar from one value down to another at the same place."""
        across = self._x(upper[0])
        self._parts.append(
            f'<line x1="{across:.1f}" x2="{across:.1f}" y1="{self._y(upper[1]):.1f}" '
            f'y2="{self._y(lower[1]):.1f}" stroke="#bbb"/>'
        )

    def lines(self, lines: Sequence[_Line]) -> None:
        """Draw lines, each with its name at its end; of one with a single point that point."""
        for line in lines:
            if len(line.points) == 1:
                self._point(line)
                continue
            places = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in line.points)
            dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
            self._parts.append(
                f'<polyline points="{places}" fill="none" stroke="{line.colour}" '
                f'stroke-width="{line.width}" stroke-linejoin="round"{dash}>'
                f"<title>{escape(line.name)}</title></polyline>"
            )
            self._labels.append((self._y(line.points[-1][1]), line.name, line.colour))

    def _point(self, line: _Line) -> None:
        x, y = line.points[0]
        self._parts.append(
            f'<circle cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="4.5" fill="{line.colour}">'
            f"<title>{escape(line.name)}: {y:.1%}</title></circle>"
        )
        self._labels.append((self._y(y), f"{line.name} {y:.1%}", line.colour))

    def mark(self, x: float, y: float, name: str) -> None:
        """Draw a point with its name beside it."""
        across, down = self._x(x), self._y(y)
        at_end = across > (_LEFT + _WIDTH - _RIGHT) / 2
        self._parts.append(
            f'<circle cx="{across:.1f}" cy="{down:.1f}" r="5" fill="#fff" stroke="#0072B2" '
            f'stroke-width="2.4"><title>{escape(name)}</title></circle>'
            f'<text x="{across + (-10 if at_end else 10):.1f}" y="{down + 20:.1f}" '
            f'text-anchor="{"end" if at_end else "start"}">{escape(name)}</text>'
        )

    def svg(self) -> str:
        """Return the document."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'width="{_WIDTH}" height="{_HEIGHT}" role="img" font-size="13" '
            'font-family="system-ui, sans-serif" fill="#111">'
            f"<title>{escape(self._title)}</title>"
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>\n'
            + "\n".join([*self._parts, *self._legend()])
            + "\n</svg>\n"
        )

    def _legend(self) -> list[str]:
        """Return the names at the right, moved apart so that none covers another."""
        placed: list[str] = []
        last = -math.inf
        room = _HEIGHT - _BOTTOM
        ordered = sorted(self._labels)
        for number, (y, name, colour) in enumerate(ordered):
            lowest = room - 17 * (len(ordered) - 1 - number)
            last = max(min(y + 4, lowest), last + 17)
            x = _WIDTH - _RIGHT + 10
            placed.append(
                f'<text x="{x}" y="{last:.1f}" fill="{colour}" font-size="12">{escape(name)}</text>'
            )
        return placed

    def _axes(self, x: str, y: str) -> None:
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        for i in range(round(self._top / self._step) + 1):
            value = i * self._step
            down = self._y(value)
            self._parts.append(
                f'<line x1="{_LEFT}" x2="{right}" y1="{down:.1f}" y2="{down:.1f}" '
                'stroke="#e4e4e4"/>'
                f'<text x="{_LEFT - 8}" y="{down + 4:.1f}" text-anchor="end">{value:.3g}</text>'
            )
        for i in range(6):
            across = self._x(i / 5)
            self._parts.append(
                f'<line x1="{across:.1f}" x2="{across:.1f}" y1="{bottom}" y2="{bottom + 5}" '
                'stroke="#111"/>'
                f'<text x="{across:.1f}" y="{bottom + 20}" text-anchor="middle">{i / 5:.1f}</text>'
            )
        self._parts.append(
            f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#111"/>'
            f'<text x="{(_LEFT + right) / 2}" y="{bottom + 44}" text-anchor="middle">'
            f"{escape(x)}</text>"
            f'<text transform="translate(20 {(_TOP + bottom) / 2}) rotate(-90)" '
            f'text-anchor="middle">{escape(y)}</text>'
        )

    def _x(self, share: float) -> float:
        return _LEFT + share * (_WIDTH - _RIGHT - _LEFT)

    def _y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self._top * (_HEIGHT - _BOTTOM - _TOP)


def _tick(top: float) -> float:
    """Return a round step that gives at most seven ticks up to a value."""
    for step in (0.01, 0.02, 0.05, 0.1):
        if top / step <= 7:
            return step
    return 0.2
