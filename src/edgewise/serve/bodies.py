"""What clients may send: the parameters, as types that decode them and that the OpenAPI document
is made from. A field here has an effect, or takes only the value that has none.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from edgewise.core.request import LOGPROBS_MAX, ContextPolicy, DataClass
from edgewise.core.structure import Structure

__all__ = [
    "AssistantMessage",
    "Body",
    "CalledFunction",
    "ChatBody",
    "ChatMessage",
    "CompletionBody",
    "Count",
    "Empty",
    "Extension",
    "FunctionTool",
    "JsonObjectFormat",
    "JsonSchemaFormat",
    "NamedFunction",
    "Part",
    "SamplingBody",
    "Stop",
    "StreamOptions",
    "Text",
    "TextFormat",
    "ToolMessage",
    "ToolName",
    "ToolUse",
    "UserMessage",
]

Count = Annotated[int, Meta(ge=1, le=2**31)]
Text = Annotated[str, Meta(max_length=4 << 20)]
ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.\-]{1,64}$")]
Zero = Annotated[float, Meta(ge=0, le=0)]
Empty = Annotated[dict[str, Any], Meta(max_length=0)]
_StopText = Annotated[str, Meta(min_length=1)]
_DataClass = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
Stop: TypeAlias = _StopText | Annotated[list[_StopText], Meta(max_length=4)] | None


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what clients send.

    Attributes:
        NEUTRAL: Parameters of OpenAI's that take only the value that changes nothing, as paths
            such as ``messages[].name``.
        REFUSED: Parameters of OpenAI's that are refused by name, unless they are null.
    """

    NEUTRAL: ClassVar[frozenset[str]] = frozenset()
    REFUSED: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def complete(cls, value: dict[str, Any]) -> None:
        """Fill in what may be left out in a way that the types cannot say."""


class Extension(Body, frozen=True, kw_only=True):
    """What Edgewise takes beyond OpenAI's parameters."""

    data_class: _DataClass = DataClass.LOCAL_ONLY
    context_policy: ContextPolicy = ContextPolicy.REJECT
    deadline_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31)] = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    structure: Structure | None = None
    speculate: bool = True
    task: str = "chat"
    signals: bool = False
    after: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None


class StreamOptions(Body, frozen=True, kw_only=True):
    """How a stream is written."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class SamplingBody(Body, frozen=True, kw_only=True):
    """What requests for an answer have in common. An absent temperature is 0, greedy."""

    model: str
    stream: bool | None = False
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    edgewise: Extension = Extension()


class PenaltyBody(SamplingBody, frozen=True, kw_only=True):
    """What the two older endpoints have in common."""

    n: Literal[1] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: Stop = None
    stream_options: StreamOptions | None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    logit_bias: Empty | None = None


# -- messages -------------------------------------------------------------------------------------


class Part(Body, frozen=True, kw_only=True):
    """A part of a message: text. Others (images, audio, files) are refused by name."""

    type: Literal["text"]
    text: Text


Content: TypeAlias = Text | list[Part]


class SystemMessage(Body, frozen=True, kw_only=True, tag_field="role", tag="system"):
    """Instructions."""

    content: Content
    name: None = None


class DeveloperMessage(Body, frozen=True, kw_only=True, tag_field="role", tag="developer"):
    """Instructions, by their newer name; the same as a system message."""

    content: Content
    name: None = None


class UserMessage(Body, frozen=True, kw_only=True, tag_field="role", tag="user"):
    """What the user says."""

    content: Content
    name: None = None


class CalledFunction(Body, frozen=True, kw_only=True):
    """The function of a call; the arguments are JSON text."""

    name: ToolName
    arguments: Text


class ToolUse(Body, frozen=True, kw_only=True):
    """A call that the assistant made."""

    type: Literal["function"]
    id: str
    function: CalledFunction


class AssistantMessage(Body, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    """What the model said. The fields that take null are there because replies have them."""

    content: Text | list[Part] | None = None
    tool_calls: list[ToolUse] | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    name: None = None


class ToolMessage(Body, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    """What a tool answered."""

    content: Content
    tool_call_id: str
    name: str | None = None


ChatMessage: TypeAlias = (
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage
)

# -- tools and formats ----------------------------------------------------------------------------


class FunctionDefinition(Body, frozen=True, kw_only=True):
    """A function. Its calls are always valid against ``parameters``, strict or not."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Body, frozen=True, kw_only=True):
    """A tool; only functions are supported."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Body, frozen=True, kw_only=True):
    """The name of a function."""

    name: ToolName


class NamedFunction(Body, frozen=True, kw_only=True):
    """The choice of one function."""

    type: Literal["function"]
    function: FunctionName


class TextFormat(Body, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(Body, frozen=True, kw_only=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(Body, frozen=True, kw_only=True):
    """A schema. It is enforced, strict or not; the name has no effect on the answer."""

    name: str
    schema: dict[str, Any]
    strict: bool | None = None
    description: None = None


class JsonSchemaFormat(Body, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that is valid against a schema."""

    json_schema: JsonSchema


# -- the two older endpoints ----------------------------------------------------------------------


class ChatBody(PenaltyBody, frozen=True, kw_only=True):
    """A request to ``/v1/chat/completions``."""

    NEUTRAL: ClassVar[frozenset[str]] = frozenset(
        {
            "frequency_penalty",
            "logit_bias",
            "messages[].annotations",
            "messages[].audio",
            "messages[].function_call",
            "messages[].name",
            "messages[].refusal",
            "metadata",
            "modalities",
            "n",
            "presence_penalty",
            "response_format.json_schema.description",
            "service_tier",
            "store",
            "stream_options.include_obfuscation",
            "verbosity",
        }
    )
    REFUSED: ClassVar[frozenset[str]] = frozenset(
        {
            "audio",
            "function_call",
            "functions",
            "moderation",
            "prediction",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "reasoning_effort",
            "safety_identifier",
            "web_search_options",
        }
    )

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    metadata: Empty | None = None
    modalities: Annotated[list[Literal["text"]], Meta(max_length=1)] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    verbosity: Literal["medium"] | None = None


Tokens = Annotated[list[Annotated[int, Meta(ge=0, lt=2**31)]], Meta(min_length=1)]


class CompletionBody(PenaltyBody, frozen=True, kw_only=True):
    """A request to ``/v1/completions``.

    ``prompt`` is a text, a list of token ids, or a list of several of either kind.
    """

    NEUTRAL: ClassVar[frozenset[str]] = frozenset(
        {
            "best_of",
            "frequency_penalty",
            "logit_bias",
            "n",
            "presence_penalty",
            "stream_options.include_obfuscation",
            "suffix",
        }
    )

    prompt: Text | list[Any]
    max_tokens: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    best_of: Literal[1] | None = None
    suffix: Annotated[str, Meta(max_length=0)] | None = None
