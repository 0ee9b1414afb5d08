"""A real small model, held to calls in every spelling: each answer is one valid call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.run.tools.forms import FORMATS, TEMPLATES

from edgewise.core.outcome import FinishReason
from edgewise.core.request import Message, Sampling
from edgewise.core.tools import Tool, ToolChoice
from edgewise.run.generation import Generator
from edgewise.run.messages import Chunk, GenerateParams, Notice
from edgewise.runtimes.llamacpp.engine import LlamaCppEngine
from edgewise.workflow.checkpoints import describe, text_settings

pytestmark = [pytest.mark.slow, pytest.mark.model]

SEEDS = 2
SPELLINGS = ["tagged", *(name for name, form in FORMATS.items() if form.marked or form.python)]
WEATHER = Tool(
    name="get_weather",
    description="Tells the weather.",
    parameters=json.dumps(
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 16},
                "unit": {"enum": ["celsius", "kelvin"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "rain": {"type": "boolean"},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        }
    ),
)
TIME = Tool(
    name="get_time",
    parameters='{"type": "object", "properties": {"zone": {"type": "string", "maxLength": 9}}, '
    '"required": ["zone"], "additionalProperties": false}',
)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_required_call_is_one_valid_call(
    name: str, engine: LlamaCppEngine, smollm2_path: Path
) -> None:
    text = msgspec.structs.replace(
        text_settings(describe(smollm2_path)), template_source=TEMPLATES[name]
    )
    generator = Generator(engine, text)
    for seed in range(SEEDS):
        pieces: list[str] = []

        def take(notice: Notice, pieces: list[str] = pieces) -> None:
            if isinstance(notice, Chunk):
                pieces.append(notice.text)

        params = GenerateParams(
            messages=(Message(role="user", content="What is the weather in Paris, in Rome?"),),
            max_tokens=160,
            sampling=Sampling(temperature=1.5 if seed else 0.0, seed=seed or None),
            stop=(),
            deadline_s=None,
            tools=(WEATHER, TIME),
            tool_choice=ToolChoice(mode="required"),
        )
        found = generator.generate(params, take)
        said = ("".join(pieces), found.events)
        assert found.finish is FinishReason.TOOL_CALLS, said
        assert len(found.tool_calls) == 1, said
        arguments: dict[str, Any] = json.loads(found.tool_calls[0].arguments)
        assert set(arguments) & {"city", "zone"}, said
    assert FORMATS[name].events == ()
