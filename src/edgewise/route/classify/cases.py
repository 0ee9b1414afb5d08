"""Labelled texts to learn tasks from: one JSON object a line, strictly read.

Texts that are the same to the classifier are one case: counted twice they would stand on both
sides of the split, and a model would be tested on what it was fitted on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from edgewise.errors import InputError
from edgewise.route.calibrate.cases import Lines
from edgewise.route.classify.model import TASK_NAME, TASKS_MAX
from edgewise.route.classify.texts import folded
from edgewise.route.policy import AUTO

__all__ = ["CASE_HINT", "Distinct", "TaskCase", "distinct", "parse_task_cases"]

CASE_HINT: Final = (
    'a case is {"prompt": TEXT, "task": NAME}; a name has lower-case letters, digits and hyphens; '
    "see docs/classifying.md"
)


class TaskCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text with the task that a person says it is.

    Attributes:
        prompt: What a user writes.
        task: Task class, by its name in the policy.
        id: Name of the case; nothing depends on it.
    """

    prompt: str
    task: str
    id: str = ""


class Distinct(msgspec.Struct, frozen=True, kw_only=True):
    """Cases of which no two are the same to the classifier, in an order that their texts give."""

    cases: tuple[TaskCase, ...]
    duplicates: int


def parse_task_cases(lines: Lines) -> tuple[TaskCase, ...]:
    """Return labelled texts.

    Raises:
        InputError: a field is missing, unknown or of another type, a text has nothing to be seen,
            a task's name is none (all ``case-malformed``), there are too many tasks, or the same
            text has two tasks (``cases-conflicting``).
    """
    found: list[TaskCase] = []
    first: dict[str, tuple[int, str]] = {}
    for number, value in lines.objects:
        case = _case(number, value)
        found.append(case)
        before, task = first.setdefault(folded(case.prompt), (number, case.task))
        if task != case.task:
            raise InputError(
                "cases-conflicting",
                f"lines {before} and {number} are the same to a classifier, and one is of the "
                f"task {task}, the other of {case.task}",
                context={"line": number, "first": before},
                hint="case, spaces, invisible characters and the values of digits do not count; "
                "give both the same task, or leave both out",
            )
    names = {case.task for case in found}
    if len(names) > TASKS_MAX:
        raise InputError(
            "case-malformed",
            f"there are {len(names)} tasks; at most {TASKS_MAX} can be told apart",
            hint="give kindred tasks one name",
        )
    return tuple(found)


def distinct(cases: Sequence[TaskCase], seed: int) -> Distinct:
    """Return each case once, ordered by a digest of seed and text: not as they were given."""
    placed: dict[str, TaskCase] = {}
    for case in cases:
        text = folded(case.prompt)
        placed.setdefault(hashlib.sha256(f"{seed}\n{text}".encode()).hexdigest(), case)
    ordered = tuple(placed[place] for place in sorted(placed))
    return Distinct(cases=ordered, duplicates=len(cases) - len(ordered))


def _case(number: int, value: object) -> TaskCase:
    try:
        case = msgspec.convert(value, TaskCase)
    except msgspec.ValidationError as error:
        raise _malformed(number, str(error)) from error
    if TASK_NAME.fullmatch(case.task) is None or case.task == AUTO:
        raise _malformed(number, f"{case.task[:80]!r} is no name of a task that can be learned")
    if not folded(case.prompt):
        raise _malformed(number, "its text has nothing to be seen")
    return case


def _malformed(number: int, why: str) -> InputError:
    return InputError(
        "case-malformed",
        f"line {number} is no case: {why}",
        context={"line": number},
        hint=CASE_HINT,
    )
