"""What clients may send to ``/v1/responses``: its text core. Nothing is stored."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from edgewise.core.request import LOGPROBS_MAX
from edgewise.errors import UnsupportedError
from edgewise.serve.bodies import Body, Count, FunctionName, SamplingBody, Text, ToolName

__all__ = [
    "FlatFunctionTool",
    "FunctionCallItem",
    "FunctionOutputItem",
    "InputPart",
    "Item",
    "MessageItem",
    "NamedFlatFunction",
    "OutputPart",
    "ResponseBody",
    "ResponseJsonSchema",
    "ResponseTextFormat",
]


class InputPart(Body, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    """Text that goes in."""

    text: Text


class OutputPart(Body, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """Text that came out, as a reply has it."""

    text: Text
    annotations: Annotated[list[Any], Meta(max_length=0)] = msgspec.field(default_factory=list)
    logprobs: list[Any] | None = None


ItemContent: TypeAlias = Text | list[InputPart | OutputPart]


class MessageItem(Body, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message; ``id`` and ``status`` are taken because replies have them."""

    role: Literal["user", "assistant", "system", "developer"]
    content: ItemContent
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class FunctionCallItem(Body, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call that the model made."""

    call_id: str
    name: ToolName
    arguments: Text
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class FunctionOutputItem(
    Body, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"
):
    """What a function answered."""

    call_id: str
    output: Text
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


Item: TypeAlias = MessageItem | FunctionCallItem | FunctionOutputItem


class FlatFunctionTool(Body, frozen=True, kw_only=True):
    """A function. Its calls are always valid against ``parameters``, strict or not."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFlatFunction(FunctionName, frozen=True, kw_only=True):
    """The choice of one function."""

    type: Literal["function"]


class ResponseTextFormat(Body, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Any text."""


class ResponseJsonObject(Body, frozen=True, kw_only=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class ResponseJsonSchema(Body, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that is valid against a schema; it is enforced, strict or not."""

    name: str
    schema: dict[str, Any]
    strict: bool | None = None
    description: None = None


class ResponseText(Body, frozen=True, kw_only=True):
    """What the answer's text looks like."""

    format: ResponseTextFormat | ResponseJsonObject | ResponseJsonSchema = ResponseTextFormat()
    verbosity: Literal["medium"] | None = None


class ResponseStreamOptions(Body, frozen=True, kw_only=True):
    """How the stream is written."""

    include_obfuscation: Literal[False] | None = None


class ResponseBody(SamplingBody, frozen=True, kw_only=True):
    """A request to ``/v1/responses``."""

    NEUTRAL: ClassVar[frozenset[str]] = frozenset(
        {
            "background",
            "include[]",
            "input[].content[].annotations",
            "service_tier",
            "store",
            "stream_options.include_obfuscation",
            "text.format.description",
            "text.verbosity",
            "truncation",
        }
    )
    REFUSED: ClassVar[frozenset[str]] = frozenset(
        {
            "access_programs",
            "background_options",
            "context_management",
            "conversation",
            "image",
            "max_tool_calls",
            "moderation",
            "previous_response_id",
            "prompt",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "reasoning",
            "safety_identifier",
        }
    )

    input: Text | Annotated[list[Item], Meta(min_length=1)]
    instructions: Text | None = None
    max_output_tokens: Count | None = None
    tools: Annotated[list[FlatFunctionTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFlatFunction | None = None
    text: ResponseText | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    stream_options: ResponseStreamOptions | None = None
    parallel_tool_calls: bool | None = None
    background: Literal[False] | None = None
    store: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None

    @classmethod
    def complete(cls, value: dict[str, Any]) -> None:
        """Take what has a role and no type for a message, as OpenAI's API does.

        Raises:
            UnsupportedError: an item is named where it has to be sent.
        """
        items = value.get("input")
        for i, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict) and "role" in item:
                item.setdefault("type", "message")
            elif isinstance(item, dict) and item.get("type") == "item_reference":
                raise UnsupportedError(
                    "parameter-unsupported",
                    f"input[{i}].type: nothing is stored here that an item_reference could name",
                    context={"param": f"input[{i}].type"},
                    hint="send the item itself; clients do with store set to false",
                )
