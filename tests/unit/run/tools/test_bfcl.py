"""The accepted answers of the Berkeley Function-Calling Leaderboard, in every form.

Each case's answer is spelled as each kind of model would write it, and has to come back as the
same calls, valid against the case's own function definitions, however it is streamed.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.run.tools.forms import FORMATS

from edgewise.core.tools import Tool, ToolChoice
from edgewise.run.tools import PROMPT_FORMAT, CallParser

DATA = Path(os.environ.get("EDGEWISE_EVAL_DATA", Path(__file__).parents[5] / "shared" / "data"))
PARTS = ("simple_python", "multiple", "parallel")
ALL = {**FORMATS, "prompt": PROMPT_FORMAT}
# BFCL names types as Python does.
TYPES = {"dict": "object", "float": "number", "tuple": "array"}
# Their accepted answers break the definitions they come with: a boolean for a text, no number.
CONTRADICTING = {"simple_python_307", "parallel_152"}

pytestmark = pytest.mark.skipif(
    not (DATA / "bfcl").is_dir(), reason=f"BFCL is not below {DATA}; set EDGEWISE_EVAL_DATA"
)


def lines(name: str) -> list[dict[str, Any]]:
    text = (DATA / "bfcl" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def schema(value: Any) -> Any:
    """Return a BFCL schema as JSON Schema."""
    if isinstance(value, list):
        return [schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: schema(item) for key, item in value.items()}
    if isinstance(value.get("type"), str):
        made["type"] = TYPES.get(value["type"], value["type"])
        if value["type"] == "any":
            del made["type"]
    return made


def plain(value: Any) -> Any:
    """Return one accepted value; an inner object lists accepted values for each of its keys."""
    if isinstance(value, dict):
        return {k: plain(v[0]) for k, v in value.items() if v[0] != ""}
    return [plain(item) for item in value] if isinstance(value, list) else value


def answer(truth: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the call that an accepted answer stands for; an empty text means left out."""
    ((name, accepted),) = truth.items()
    chosen = {k: next((v for v in values if v != ""), "") for k, values in accepted.items()}
    return name, {k: plain(v) for k, v in chosen.items() if v != "" or "" not in accepted[k]}


@functools.cache
def cases(part: str) -> list[tuple[str, tuple[Tool, ...], list[tuple[str, dict[str, Any]]]]]:
    answers = {line["id"]: line["ground_truth"] for line in lines(f"{part}_answers")}
    found = []
    for line in lines(part):
        tools = tuple(
            Tool(
                name=f["name"],
                description=f["description"],
                parameters=json.dumps(schema(f["parameters"])),
            )
            for f in line["function"]
        )
        found.append((line["id"], tools, [answer(truth) for truth in answers[line["id"]]]))
    return found


def parse(pieces: list[str], name: str, tools: tuple[Tool, ...]) -> Any:
    parser = CallParser(ALL[name], tools, ToolChoice())
    said = "".join(map(parser.push, pieces))
    rest, calls, events = parser.finish(cut=False)
    return said + rest, [(c.name, json.loads(c.arguments)) for c in calls], events


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", ALL)
def test_every_accepted_answer_comes_back(part: str, name: str) -> None:
    seen = 0
    form = ALL[name]
    for id_, tools, wanted in cases(part):
        text = form.spell(wanted)
        pieces = [text[at : at + 4] for at in range(0, len(text), 4)]  # about a token each
        said, made, events = parse(pieces, name, tools)
        if id_ == "simple_python_307" and form.marked is not None and form.typed_by_schema:
            # The boolean is a text there, as the definition has it: nothing contradicts.
            assert made[0][1]["venue"] == form.marked.spell_value(wanted[0][1]["venue"])
        elif id_ in CONTRADICTING:
            assert (said, made, {e.code for e in events}) == (text, [], {"tool-call-invalid"})
        else:
            assert (made, events, said.strip()) == (wanted, (), ""), id_
            seen += 1
    assert seen >= 199


@pytest.mark.slow
@settings(deadline=None)
@given(
    which=st.tuples(st.sampled_from(PARTS), st.integers(0, 198)),
    name=st.sampled_from(sorted(ALL)),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=20),
)
def test_it_comes_back_in_pieces_of_any_size(
    which: tuple[str, int], name: str, sizes: list[int]
) -> None:
    id_, tools, wanted = cases(which[0])[which[1]]
    assume(id_ not in CONTRADICTING)
    text = ALL[name].spell(wanted)
    places = [0, *itertools.accumulate(itertools.islice(itertools.cycle(sizes), len(text)))]
    said, made, events = parse([text[a:b] for a, b in itertools.pairwise(places)], name, tools)
    assert (made, events, said.strip()) == (wanted, (), ""), id_
