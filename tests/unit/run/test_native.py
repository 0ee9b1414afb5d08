"""Answers of a text engine: what it cannot honour is refused by name, and it says why."""

from __future__ import annotations

from typing import Any, cast

import pytest

from edgewise.core.request import ContextPolicy, Message, Sampling
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolChoice
from edgewise.errors import UnsupportedError
from edgewise.run.messages import GenerateParams
from edgewise.run.native import NativeGenerator


class Engine:
    context_length = 64
    structure_refusal = "it reads tokens by their letters"

    def generate(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nothing may be generated")


def refused(engine: object, **fields: Any) -> UnsupportedError:
    params = GenerateParams(
        messages=(Message(role="user", content="x"),),
        max_tokens=4,
        sampling=Sampling(),
        stop=(),
        deadline_s=None,
        **fields,
    )
    with pytest.raises(UnsupportedError) as caught:
        NativeGenerator(cast("Any", engine)).generate(params, lambda _: None)
    assert caught.value.code == "engine-text-only"
    return caught.value


@pytest.mark.parametrize(
    ("field", "value", "says_why"),
    [
        ("structure", Structure(kind=StructureKind.REGEX, source="a"), True),
        ("tools", (Tool(name="f"),), True),
        ("logprobs", 1, False),
        ("context_policy", ContextPolicy.SUMMARISE, False),
    ],
)
def test_each_is_refused_by_name(field: str, value: Any, says_why: bool) -> None:
    error = refused(Engine(), **{field: value})
    assert error.context == {"field": field}
    assert field in error.message
    assert (Engine.structure_refusal in error.message) == says_why

    class Plain(Engine):
        structure_refusal = ""

    assert refused(Plain(), **{field: value}).message.endswith(field)


def test_tools_that_may_not_be_called_are_no_reason_to_refuse() -> None:
    none = ToolChoice(mode="none")
    with pytest.raises(AssertionError, match="generated"):
        refused(_Running(), tools=(Tool(name="f"),), tool_choice=none)


class _Running(Engine):
    def cancel(self) -> None: ...
