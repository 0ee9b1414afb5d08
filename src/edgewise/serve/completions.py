"""``/v1/completions``: text that goes on from a prompt as it is, with echo and scores."""

from __future__ import annotations

import secrets
import time

import msgspec

from edgewise.core.outcome import Completed
from edgewise.core.request import Request
from edgewise.run.messages import Chunk
from edgewise.serve.about import Telling
from edgewise.serve.bodies import CompletionBody
from edgewise.serve.problems import ProblemError
from edgewise.serve.replies import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionReply,
    finish,
    usage,
)
from edgewise.serve.spelling import completion_logprobs, spell
from edgewise.serve.streaming import event

__all__ = ["CompletionFrames", "completion_reply"]

_encode = msgspec.json.Encoder().encode


def completion_reply(
    body: CompletionBody,
    model: str,
    answers: list[tuple[Request, Completed, float]],
    fingerprint: str,
    telling: Telling,
) -> CompletionReply:
    """Return the answers to all prompts: each with its request and its time in the queue."""
    choices = [
        _choice(body, index, request, outcome)
        for index, (request, outcome, _) in enumerate(answers)
    ]
    answer_id = _id()
    return CompletionReply(
        id=answer_id,
        created=int(time.time()),
        model=model,
        choices=choices,
        usage=usage([outcome.tokens for _, outcome, _ in answers]),
        system_fingerprint=fingerprint,
        edgewise=[telling.about(answer_id, outcome, waited) for _, outcome, waited in answers],
    )


class CompletionFrames:
    """Writes the events of streamed completions, one prompt after the other."""

    def __init__(
        self, body: CompletionBody, model: str, fingerprint: str, telling: Telling
    ) -> None:
        self._telling = telling
        options = body.stream_options
        self._with_usage = options is not None and bool(options.include_usage)
        self._logprobs = body.logprobs is not None
        self._echo = bool(body.echo)
        self._base = CompletionReply(
            id=_id(),
            created=int(time.time()),
            model=model,
            choices=[],
            system_fingerprint=fingerprint,
            usage=None if self._with_usage else msgspec.UNSET,
        )
        self._done: list[Completed] = []
        self._length = 0
        self._request: Request | None = None
        self._last = True

    def next_request(self, request: Request, *, last: bool) -> None:
        """Begin the answer to the next prompt."""
        self._request, self._last, self._length = request, last, 0

    def begin(self) -> bytes:
        """Return the prompt, where it is to be echoed."""
        if not self._echo or self._request is None:
            return b""
        assert isinstance(self._request.prompt, str)
        return self._event(self._request.prompt)

    def chunk(self, chunk: Chunk) -> bytes:
        """Return the event of a chunk."""
        logprobs = None
        if self._logprobs:
            logprobs = completion_logprobs(chunk.logprobs, start=self._length)
            self._length += len(spell(chunk.logprobs))
        return self._event(chunk.text, logprobs=logprobs)

    def end(self, outcome: Completed, waited_s: float) -> bytes:
        """Return the end of an answer, and that of the stream after the last."""
        choice = CompletionChoice(
            text="",
            index=len(self._done),
            logprobs=None,
            finish_reason="length" if finish(outcome) == "length" else "stop",
        )
        about = self._telling.about(self._base.id, outcome, waited_s)
        ending = msgspec.structs.replace(self._base, choices=[choice], edgewise=[about])
        self._done.append(outcome)
        parts = [event(_encode(ending))]
        if self._last:
            if self._with_usage:
                counts = [done.tokens for done in self._done]
                parts.append(
                    event(_encode(msgspec.structs.replace(self._base, usage=usage(counts))))
                )
            parts.append(event(b"[DONE]"))
        return b"".join(parts)

    def error(self, problem: ProblemError) -> bytes:
        """Return the event of an error."""
        return event(_encode(problem.reply))

    def _event(self, text: str, *, logprobs: CompletionLogprobs | None = None) -> bytes:
        choice = CompletionChoice(
            text=text, index=len(self._done), logprobs=logprobs, finish_reason=None
        )
        return event(_encode(msgspec.structs.replace(self._base, choices=[choice])))


def _choice(
    body: CompletionBody, index: int, request: Request, outcome: Completed
) -> CompletionChoice:
    text, tokens = outcome.text, outcome.logprobs
    if body.echo:
        prompt = request.prompt
        text = (prompt if isinstance(prompt, str) else spell(outcome.prompt_logprobs)) + text
        tokens = outcome.prompt_logprobs + tokens
    return CompletionChoice(
        text=text,
        index=index,
        logprobs=completion_logprobs(tokens) if body.logprobs is not None else None,
        finish_reason="length" if finish(outcome) == "length" else "stop",
    )


def _id() -> str:
    return f"cmpl-{secrets.token_hex(12)}"
