"""Labelled texts of our own making: three kinds of requests that share some words."""

from __future__ import annotations

import json
import random

from edgewise.route.classify import TaskCase

WHO = [
    "Anna",
    "Bert",
    "Clara",
    "Dora",
    "Emil",
    "Farid",
    "Greta",
    "Hana",
    "Ivo",
    "Jana",
    "Kofi",
    "Lena",
    "Mira",
    "Nils",
    "Olga",
    "Pia",
]
WHAT = [
    "apples",
    "pears",
    "books",
    "stamps",
    "tiles",
    "ropes",
    "coins",
    "boxes",
    "cards",
    "pens",
    "cups",
    "nails",
]
WHERE = ["market", "school", "garden", "office", "harbour", "station", "kitchen", "library"]
FORMS = {
    "sums": (
        "{who} has some {what} and buys {what2} at the {where}. How many are there in total?",
        "If {who} sells half of the {what} at the {where}, how much is left of the {what2}?",
    ),
    "letters": (
        "Write a kind letter to {who} about the {what} in the {where}, and mention {what2}.",
        "Draft a short note for {who}: the {what} and {what2} are in the {where}.",
    ),
    "code": (
        "def {what}_of_{who}({where}):\n    return [{what2} for {what2} in {where}]",
        "for {what} in {where}:\n    print({what2}, {who})",
    ),
}


def cases(count: int, *, seed: int = 1, noise: float = 0.0) -> list[TaskCase]:
    """Return distinct cases, some with the name of another task."""
    made: dict[str, TaskCase] = {}
    draw = random.Random(seed)
    while len(made) < count:
        task = draw.choice(sorted(FORMS))
        text = draw.choice(FORMS[task]).format(
            who=draw.choice(WHO),
            what=draw.choice(WHAT),
            what2=draw.choice(WHAT),
            where=draw.choice(WHERE),
        )
        said = draw.choice(sorted(FORMS)) if draw.random() < noise else task
        made.setdefault(text, TaskCase(prompt=text, task=said))
    return list(made.values())


def lines(found: list[TaskCase]) -> bytes:
    """Return cases as a file holds them."""
    return b"".join(
        json.dumps({"prompt": one.prompt, "task": one.task}).encode() + b"\n" for one in found
    )
