"""What leaves the device: one chat request, as a value and as the very bytes that are sent.

The bytes are canonical JSON (RFC 8785), so that equal requests have one digest. A permit is given
for that digest. What OpenAI's chat API cannot carry is refused here: nothing is dropped silently.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from edgewise.core.canonical import canonical_json
from edgewise.core.request import DEFAULT_MAX_TOKENS, Message, Request
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool, ToolChoice
from edgewise.errors import InputError, UnsupportedError
from edgewise.route.destinations import Destination

__all__ = ["PAYLOAD_BYTES_MAX", "CloudPayload"]

PAYLOAD_BYTES_MAX = 8 << 20
_SEED_MAX = 2**53 - 1  # the largest integer that RFC 8785 carries exactly
_STOPS_MAX = 4
_MODEL = re.compile(r"[!-~]{1,256}")
_LIMIT_FIELDS = {"max_tokens", "max_completion_tokens"}


class CloudPayload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chat request in its last form, minimised already.

    Attributes:
        model: Model that is asked for.
        messages: The conversation, oldest first.
        max_tokens: Most tokens to generate; always set, so that the cost has a bound.
        max_tokens_field: Under which name the server takes that limit.
        temperature: As in the API; ``None`` leaves it to the server.
        top_p: As in the API; ``None`` leaves it to the server.
        seed: At most 2**53 - 1, which JSON carries exactly.
        stop: At most four texts that end the answer.
        structure: A JSON Schema or ``json``; the API has no other.
        tools: Tools the model may call.
        tool_choice: Whether it may, must or must not.
        stream: Whether the answer comes piece by piece.
    """

    model: str
    messages: tuple[Message, ...]
    max_tokens: int = DEFAULT_MAX_TOKENS
    max_tokens_field: str = "max_tokens"
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    structure: Structure | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    stream: bool = True

    def __post_init__(self) -> None:
        if not _MODEL.fullmatch(self.model):
            raise _invalid("the name of the model is not 1 to 256 printable characters")
        if not self.messages:
            raise _invalid("it has no messages")
        if any(m.role == "tool" and not m.tool_call_id for m in self.messages):
            raise _invalid("a tool's message does not say which call it answers")
        self._check_numbers()
        if len(self.stop) > _STOPS_MAX or not all(self.stop):
            raise _invalid(f"stop is not at most {_STOPS_MAX} texts, none of them empty")
        kinds = {StructureKind.JSON, StructureKind.JSON_SCHEMA}
        if self.structure is not None and self.structure.kind not in kinds:
            raise _unsupported(f"a structure of the kind {self.structure.kind.value!r}")

    def _check_numbers(self) -> None:
        if isinstance(self.max_tokens, bool) or not 1 <= self.max_tokens < 2**31:
            raise _invalid("max_tokens is not between 1 and 2147483647")
        if self.max_tokens_field not in _LIMIT_FIELDS:
            raise _invalid("max_tokens_field is neither max_tokens nor max_completion_tokens")
        if self.temperature is not None and not 0 <= self.temperature <= 100:
            raise _invalid("temperature is not between 0 and 100")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise _invalid("top_p is not above 0 and at most 1")
        if self.seed is not None and not 0 <= self.seed <= _SEED_MAX:
            raise _invalid("seed is not between 0 and 2^53 - 1, which JSON carries exactly")

    @classmethod
    def of(cls, request: Request, destination: Destination, *, stream: bool = True) -> CloudPayload:
        """Return a request in the form in which a destination is asked.

        Args:
            request: The request; its fields have been minimised already.
            destination: Who is asked; it names the model.
            stream: Whether the answer comes piece by piece.

        Raises:
            InputError: a value cannot be sent (``cloud-payload-invalid``).
            UnsupportedError: the API has no field for something that was asked
                (``cloud-request-unsupported``).
        """
        if request.prompt is not None:
            raise _unsupported("a prompt without messages")
        if request.logprobs is not None:
            raise _unsupported("log-probabilities")
        sampling = request.sampling
        if sampling.top_k or sampling.min_p:
            raise _unsupported("top_k and min_p")
        return cls(
            model=destination.model,
            messages=request.messages,
            max_tokens=request.max_tokens or DEFAULT_MAX_TOKENS,
            max_tokens_field=destination.max_tokens_field,
            temperature=sampling.temperature,
            top_p=None if sampling.top_p == 1 else sampling.top_p,
            seed=sampling.seed,
            stop=request.stop,
            structure=request.structure,
            tools=request.tools,
            tool_choice=request.tool_choice,
            stream=stream,
        )

    @property
    def body(self) -> bytes:
        """Return the bytes that are sent: canonical JSON, UTF-8.

        Raises:
            InputError: it has no canonical form (``not-canonical``) or is larger than
                :data:`PAYLOAD_BYTES_MAX` (``cloud-payload-invalid``).
        """
        data = canonical_json(self._fields())
        if len(data) > PAYLOAD_BYTES_MAX:
            raise _invalid(f"it has {len(data)} bytes; at most {PAYLOAD_BYTES_MAX} are sent")
        return data

    @property
    def digest(self) -> str:
        """Return the SHA-256 of :attr:`body`, as 64 hex digits."""
        return hashlib.sha256(self.body).hexdigest()

    def __repr__(self) -> str:
        return f"CloudPayload(model={self.model!r}, <{len(self.messages)} messages>)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("model", self.model)]

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": [_message(message) for message in self.messages],
            self.max_tokens_field: self.max_tokens,
            "stream": self.stream,
        }
        optional = {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed}
        fields |= {name: value for name, value in optional.items() if value is not None}
        if self.stream:
            fields["stream_options"] = {"include_usage": True}
        if self.stop:
            fields["stop"] = list(self.stop)
        if self.structure is not None:
            fields["response_format"] = _format(self.structure)
        if self.tools:
            fields["tools"] = [_tool(tool) for tool in self.tools]
            fields["tool_choice"] = _choice(self.tool_choice)
            if self.tool_choice.parallel is not None:
                fields["parallel_tool_calls"] = self.tool_choice.parallel
        return fields


def _message(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _format(structure: Structure) -> dict[str, Any]:
    if structure.kind is StructureKind.JSON:
        return {"type": "json_object"}
    try:
        schema = msgspec.json.decode(structure.source)
    except (msgspec.DecodeError, RecursionError):
        raise _invalid("the schema of its structure is no JSON") from None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": msgspec.json.decode(tool.parameters)}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Any:
    if choice.name is None:
        return choice.mode
    return {"type": "function", "function": {"name": choice.name}}


def _invalid(why: str) -> InputError:
    return InputError(
        "cloud-payload-invalid",
        f"this request cannot be sent: {why}",
        hint="see the documentation on the cloud tier",
    )


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError(
        "cloud-request-unsupported",
        f"OpenAI's chat API has no field for {what}",
        hint="leave it out, or keep the request on this device",
    )
