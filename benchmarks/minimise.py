"""Run ``benchmarks/minimise.toml``: what minimisation finds in labelled cases and in plain text.

Usage: EDGEWISE_EVAL_DATA=... python -m benchmarks.minimise [--misses] [--table-only]

Rewrites docs/minimisation.md. ``--misses`` prints the cases that were not found, or wrongly.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.setup import read_scenario, write_results
from benchmarks.table import ROOT
from edgewise.route.minimise import PlaceholderMap, Replacement, default_detectors, minimise

RESULTS = ROOT / "benchmarks" / "results" / "minimise.json"
PAGE = ROOT / "docs" / "minimisation.md"
CASES = ROOT / "tests" / "unit" / "route" / "minimise" / "cases"
_BEGIN, _END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
_LABEL = re.compile("\u27e6([A-Z]+)\\|([^\u27e7]*)\u27e7")
BY_DESIGN = ("STRANGER", "ADDRESS")  # what no detector looks for; counted all the same


@dataclass(frozen=True, slots=True)
class Case:
    """A labelled text: (kind, start, end) of each identifier."""

    name: str
    text: str
    contacts: tuple[str, ...]
    labels: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A case and what was replaced in it."""

    case: Case
    replacements: tuple[Replacement, ...]

    def covered(self, start: int, end: int) -> bool:
        """Return whether nothing of a stretch is left."""
        left = set(range(start, end))
        for one in self.replacements:
            left -= set(range(one.start, one.end))
        return not any(self.case.text[place].isalnum() for place in left)

    def right(self, one: Replacement) -> bool:
        """Return whether what was replaced touches a label."""
        return any(one.start < end and start < one.end for _, start, end in self.case.labels)


def read_cases(folder: Path = CASES) -> Iterator[Case]:
    """Yield the labelled cases.

    One case a line; an identifier stands as a kind and a value in double brackets. Line breaks
    are written as a backslash and n. A broken bar is taken out: it keeps made-up keys from being
    mistaken for real ones by those who look for such in repositories.
    """
    for path in sorted(folder.glob("*.txt")):
        contacts: tuple[str, ...] = ()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line.startswith("# contacts:"):
                contacts = tuple(n.strip() for n in line.partition(":")[2].split(";"))
            elif line and not line.startswith("#"):
                plain = line.replace("\\n", "\n").replace("\u00a6", "")
                text, labels = _unlabelled(plain)
                yield Case(f"{path.stem}:{number}", text, contacts, labels)


def _unlabelled(line: str) -> tuple[str, tuple[tuple[str, int, int], ...]]:
    out, labels, at, size = [], [], 0, 0
    for match in _LABEL.finditer(line):
        out += [line[at : match.start()], match[2]]
        start = size + match.start() - at
        size = start + len(match[2])
        labels.append((match[1], start, size))
        at = match.end()
    return "".join(out) + line[at:], tuple(labels)


def look(cases: Iterator[Case]) -> Iterator[Found]:
    """Yield each case with what was replaced in it."""
    by_contacts: dict[tuple[str, ...], Any] = {}
    for case in cases:
        if case.contacts not in by_contacts:
            by_contacts[case.contacts] = default_detectors(contacts=case.contacts)
        detectors = by_contacts[case.contacts]
        done = minimise({"prompt": case.text}, ["prompt"], detectors, PlaceholderMap())
        yield Found(case, done.replacements)


def figures(found: list[Found]) -> list[dict[str, Any]]:
    """Return recall and precision of each kind.

    Recall: labelled identifiers of which no letter or digit is left, of all. Precision: replaced
    stretches that touch a labelled identifier, of all of that kind.
    """
    labelled: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    replaced: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for one in found:
        for kind, start, end in one.case.labels:
            labelled[kind] += 1
            covered[kind] += one.covered(start, end)
        for replacement in one.replacements:
            replaced[replacement.kind] += 1
            right[replacement.kind] += one.right(replacement)
    return [
        {
            "kind": kind,
            "labelled": labelled[kind],
            "covered": covered[kind],
            "replaced": replaced[kind],
            "right": right[kind],
        }
        for kind in sorted({*labelled, *replaced})
    ]


def plain_texts(scenario: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and text of what holds no identifiers."""
    folder = Path(os.environ.get("EDGEWISE_EVAL_DATA") or sys.exit("EDGEWISE_EVAL_DATA is not set"))
    for name, file in scenario["plain"].items():
        text = (folder / file).read_text("utf-8")
        if file.endswith(".jsonl"):
            rows = [json.loads(line) for line in text.splitlines()]
            text = "\n\n".join(row.get("question") or row["prompt"] for row in rows)
        yield name, text


def plain(scenario: dict[str, Any], *, tell: bool) -> Iterator[dict[str, Any]]:
    """Yield what was replaced in each plain text, and how long it took."""
    detectors = default_detectors()
    for name, text in plain_texts(scenario):
        begin = time.process_time()
        done = minimise({"prompt": text}, ["prompt"], detectors, PlaceholderMap())
        seconds = time.process_time() - begin
        for one in done.replacements if tell else ():
            print(f"{name}: {one.kind} {text[one.start - 30 : one.end + 20]!r} {one.checked_by}")
        words = len(text.split())
        yield {
            "text": name,
            "words": words,
            "bytes": len(text.encode("utf-8")),
            "replaced": {str(k): n for k, n in done.replaced.items()},
            "per_1000_words": round(1000 * len(done.replacements) / words, 3),
            "cpu_s": round(seconds, 2),
        }


def main() -> None:
    """Measure, write the results and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table-only", action="store_true")
    parser.add_argument("--misses", action="store_true")
    options = parser.parse_args()
    if not options.table_only:
        scenario = read_scenario("minimise")
        found = list(look(read_cases()))
        for one in found if options.misses else ():
            tell_misses(one)
        rows = list(plain(scenario, tell=options.misses))
        write_results(
            "minimise", {"cases": len(found), "kinds": figures(found), "plain": rows}, scenario
        )
    head, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    PAGE.write_text(f"{head}{_BEGIN}{tables(read_results())}{_END}{tail}", encoding="utf-8")


def tell_misses(one: Found) -> None:
    """Print what is wrong with a case."""
    text = one.case.text
    for kind, start, end in one.case.labels:
        if not one.covered(start, end) and kind not in BY_DESIGN:
            print(f"missed {one.case.name}: {kind} {text[start:end]!r} in {text!r}")
    for replacement in one.replacements:
        if not one.right(replacement):
            value = text[replacement.start : replacement.end]
            print(f"wrong {one.case.name}: {replacement.kind} {value!r} {replacement.checked_by}")


def read_results() -> dict[str, Any]:
    """Return the results that are committed."""
    results: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
    return results


def tables(results: dict[str, Any]) -> str:
    """Return the tables of the results in Markdown."""
    lines = [
        f"{results['cases']} labelled texts, {results['taken']}:",
        "",
        "| Kind | Labelled | Recall | Replaced | Precision |",
        "|---|---|---|---|---|",
    ]
    lines += [_kind_row(row) for row in results["kinds"]]
    lines += [
        "",
        "| Text without identifiers | Words | Replaced all the same | A thousand words |",
        "|---|---|---|---|",
    ]
    lines += [_plain_row(row) for row in results["plain"]]
    return "\n".join(lines) + "\n"


def _kind_row(row: dict[str, Any]) -> str:
    recall = _share(row["covered"], row["labelled"])
    precision = _share(row["right"], row["replaced"])
    return f"| {row['kind']} | {row['labelled']} | {recall} | {row['replaced']} | {precision} |"


def _plain_row(row: dict[str, Any]) -> str:
    kinds = ", ".join(f"{n} {kind}" for kind, n in row["replaced"].items()) or "nothing"
    return f"| {row['text']} | {row['words']:,} | {kinds} | {row['per_1000_words']:.3f} |"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "-"


if __name__ == "__main__":
    main()
