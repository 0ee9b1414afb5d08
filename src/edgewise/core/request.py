"""What a caller asks of a session: the prompt, its data class, sampling, and limits."""

from __future__ import annotations

import math
import re
from enum import StrEnum

import msgspec

from edgewise.core.structure import Structure
from edgewise.core.tools import Tool, ToolCall, ToolChoice
from edgewise.errors import InputError

__all__ = [
    "DEFAULT_MAX_TOKENS",
    "LOGPROBS_MAX",
    "ContextPolicy",
    "DataClass",
    "Message",
    "Request",
    "Sampling",
]


DEFAULT_MAX_TOKENS = 512
LOGPROBS_MAX = 20

_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
# What a 32-bit runtime can count, and what a timer can wait for (about 31 years).
_COUNT_MAX = 2**31
_DEADLINE_MAX_S = 1e9


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise InputError(
            "request-invalid",
            f"{name} is {value!r}; allowed is {allowed}",
            context={"field": name},
            hint=f"set {name} within that range, or leave it out",
        )


def _require_text(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            "text-not-utf8",
            f"{what} holds text that is not valid Unicode: {error.reason}",
            context={"position": error.start},
            hint="remove or replace the bytes that are no text; input must be UTF-8",
        ) from error


class DataClass(StrEnum):
    """How far the content of a request may travel."""

    PUBLIC = "public"
    PERSONAL = "personal"
    SENSITIVE = "sensitive"
    LOCAL_ONLY = "local-only"


def _require_types(value: object, **types: type | tuple[type, ...]) -> None:
    """Refuse a field of another type: msgspec checks what it decodes, not what Python makes."""
    for name, wanted in types.items():
        allowed = wanted if isinstance(wanted, tuple) else (wanted,)
        if float in allowed:
            allowed = (*allowed, int)
        found = getattr(value, name, None)
        if not isinstance(found, allowed) or (isinstance(found, bool) and bool not in allowed):
            expected = " or ".join(t.__name__ for t in allowed)
            raise InputError(
                "request-invalid",
                f"{name} is of type {type(found).__name__}; it must be {expected}",
                context={"field": name},
                hint="see the documentation of edgewise.Request",
            )


class ContextPolicy(StrEnum):
    """What happens to a conversation that does not fit into the context.

    ``REJECT`` refuses it. ``TRUNCATE_OLDEST_TURNS`` leaves out whole turns, oldest first, never a
    system message and never the last turn. ``SLIDING_WINDOW`` keeps the system messages and the
    newest tokens. ``SUMMARISE`` replaces the oldest turns by a summary that the same model makes
    here. ``RETRIEVAL`` keeps those older turns that share most words with the last one. Whatever
    is applied is an event of the outcome.
    """

    REJECT = "reject"
    TRUNCATE_OLDEST_TURNS = "truncate-oldest-turns"
    SLIDING_WINDOW = "sliding-window"
    SUMMARISE = "summarise"
    RETRIEVAL = "retrieval"


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation.

    Attributes:
        role: ``system``, ``user``, ``assistant``, or ``tool`` for what a tool answered.
        content: Its text.
        tool_calls: Calls that the assistant made in this turn.
        tool_call_id: Which call a tool's message answers.
        name: The tool that answers.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _require_types(self, role=str, content=str)
        if self.role not in {"system", "user", "assistant", "tool"}:
            raise InputError(
                "role-unknown",
                f"a message has the role {self.role!r}",
                hint="use system, user, assistant or tool",
            )
        if self.tool_calls and self.role != "assistant":
            raise InputError(
                "message-invalid",
                f"a message of the role {self.role!r} holds tool calls",
                hint="only the assistant calls tools",
            )
        _require_text(self.content, f"the {self.role} message")


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token is chosen.

    Attributes:
        temperature: 0 is greedy. Greedy with a truncation rule set is refused, since the rule
            would be ignored.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the least set of tokens whose probability reaches p (nucleus sampling,
            Holtzman et al. 2020).
        min_p: Keep tokens at least this fraction as likely as the most likely one (Nguyen et
            al. 2024).
        seed: Seed of the generator; ``None`` draws one, which the outcome reports.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _require_types(
            self, temperature=float, top_k=int, top_p=float, min_p=float, seed=(int, type(None))
        )
        _require(
            math.isfinite(self.temperature) and 0 <= self.temperature <= 100,
            "temperature",
            self.temperature,
            "0 (greedy) to 100",
        )
        _require(0 <= self.top_k <= _COUNT_MAX, "top_k", self.top_k, f"0 (all) to {_COUNT_MAX}")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "more than 0, at most 1")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "0 to 1")
        _require(self.seed is None or 0 <= self.seed < 2**63, "seed", self.seed, "0 to 2^63 - 1")
        if self.temperature == 0 and (self.top_k, self.top_p, self.min_p) != (0, 1.0, 0.0):
            raise InputError(
                "sampling-contradiction",
                "top_k, top_p and min_p have no effect at temperature 0",
                hint="set a temperature above 0, or leave them out",
            )


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request to a session.

    Attributes:
        messages: The conversation so far, oldest first; the last one is the user's or a tool's.
        prompt: Text or token ids to go on from, as they are and without a template; then there
            are no messages.
        max_tokens: Most tokens to generate, reserved together with the prompt; a number that
            does not fit is refused; 0 goes with ``echo`` only. ``None`` takes what the context
            leaves, up to :data:`DEFAULT_MAX_TOKENS`.
        sampling: How tokens are chosen.
        stop: Texts that end the answer; the text itself is not part of the answer.
        deadline_s: Seconds from submission until the answer is cut off; ``None`` for no limit.
        data_class: How far the content may travel: a :class:`DataClass`, or one that the policy
            defines. One that it does not know is declined.
        task: Task class the policy may refer to.
        context_policy: What happens to a conversation that does not fit.
        structure: What the answer has to look like.
        tools: Tools the model may call.
        tool_choice: Whether it may, must or must not.
        logprobs: Report each token's log-probability, and that many of its likeliest rivals'.
        echo: Report the prompt's own tokens too; with ``prompt`` and ``logprobs`` only.
        signals: Report how sure the model was (:class:`~edgewise.core.signals.Signals`).
        speculate: Whether guessed tokens may be verified several at a time.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    max_tokens: int | None = None
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    deadline_s: float | None = None
    data_class: str = DataClass.LOCAL_ONLY
    task: str = "chat"
    context_policy: ContextPolicy = ContextPolicy.REJECT
    structure: Structure | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    logprobs: int | None = None
    echo: bool = False
    signals: bool = False
    speculate: bool = True

    def __post_init__(self) -> None:
        _require_types(
            self,
            messages=tuple,
            max_tokens=(int, type(None)),
            sampling=Sampling,
            stop=tuple,
            deadline_s=(float, type(None)),
            data_class=str,
            task=str,
            prompt=(str, tuple, type(None)),
            context_policy=ContextPolicy,
            structure=(Structure, type(None)),
            tools=tuple,
            tool_choice=ToolChoice,
            logprobs=(int, type(None)),
            echo=bool,
            signals=bool,
            speculate=bool,
        )
        if self.prompt is None:
            self._check_messages()
        else:
            self._check_prompt(self.prompt)
        self._check_tools()
        _require(
            self.logprobs is None or 0 <= self.logprobs <= LOGPROBS_MAX,
            "logprobs",
            self.logprobs,
            f"0 to {LOGPROBS_MAX}",
        )
        if self.echo and (self.prompt is None or self.logprobs is None):
            raise _contradiction("echo goes with a prompt and logprobs")
        least = 0 if self.echo else 1
        _require(
            self.max_tokens is None or least <= self.max_tokens <= _COUNT_MAX,
            "max_tokens",
            self.max_tokens,
            f"{least} to {_COUNT_MAX}",
        )
        _require(
            self.deadline_s is None or 0 < self.deadline_s <= _DEADLINE_MAX_S,
            "deadline_s",
            self.deadline_s,
            f"more than 0, at most {_DEADLINE_MAX_S:.0f} seconds",
        )
        if any(not text for text in self.stop):
            raise InputError("stop-empty", "a stop text is empty", hint="leave it out")
        for text in self.stop:
            _require_text(text, "a stop text")
        _require_text(self.task, "the task class")
        _require(
            _NAME.fullmatch(self.data_class) is not None,
            "data_class",
            self.data_class,
            "a name of lower-case letters, digits and hyphens, at most 64",
        )

    def _check_messages(self) -> None:
        for message in self.messages:
            _require_types(message, role=str, content=str)
        if self.messages and self.messages[-1].role not in {"user", "tool"}:
            raise InputError(
                "last-message-not-users",
                f"the last message is the {self.messages[-1].role}'s; an answer follows the user's",
                hint="put a user message last",
            )
        last = self.messages[-1] if self.messages else None
        if last is None or (last.role == "user" and not last.content.strip()):
            raise InputError(
                "prompt-empty", "the prompt is empty", hint='say something: edgewise run "Hello"'
            )

    def _check_prompt(self, prompt: str | tuple[int, ...]) -> None:
        if self.messages or self.tools:
            raise _contradiction("a prompt is given as it is: it has no messages and no tools")
        if not prompt:
            raise InputError("prompt-empty", "the prompt is empty", hint="give at least one token")
        if isinstance(prompt, str):
            _require_text(prompt, "the prompt")
            return
        for token in prompt:
            sound = type(token) is int and 0 <= token < _COUNT_MAX
            _require(sound, "prompt", token, "token ids")

    def _check_tools(self) -> None:
        names = [tool.name for tool in self.tools]
        if len(set(names)) != len(names):
            raise _contradiction("two tools have the same name")
        if self.tool_choice.mode == "required" and not self.tools:
            raise _contradiction("a tool call is required and no tool is given", "give the tools")
        if self.tool_choice.name is not None and self.tool_choice.name not in names:
            raise _contradiction(
                f"there is no tool called {self.tool_choice.name!r}",
                f"name one of: {', '.join(names) or 'none is given'}",
            )
        if self.structure is not None and self.tools and self.tool_choice.mode != "none":
            raise _contradiction("an answer of a given structure cannot be a tool call as well")


def _contradiction(
    why: str, hint: str = "leave one of the two out; see edgewise.Request"
) -> InputError:
    return InputError("request-contradiction", why, hint=hint)
