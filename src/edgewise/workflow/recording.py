"""Record signals: ask the local model prompts whose right answers are known.

Answers are checked and forgotten. What is written down, line by line as it comes, holds numbers,
verdicts and digests; a run that was cut short goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, Final

import msgspec

from edgewise.core.canonical import canonical_json, digest_of
from edgewise.core.outcome import Completed
from edgewise.core.request import Message, Request
from edgewise.core.structure import Structure
from edgewise.core.tools import Tool, ToolChoice
from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    InputError,
    ResourceError,
    UnsupportedError,
    error_from_dict,
)
from edgewise.route.calibrate import (
    Case,
    CheckKind,
    Lines,
    check_reference,
    is_correct,
    note_id,
    parse_cases,
    read_lines,
    reserved_slice,
)
from edgewise.run.session import Session
from edgewise.workflow.context import Context, Step
from edgewise.workflow.opening import open_session

__all__ = ["PromptCase", "RecordRequest", "prompt_cases", "record"]

# So many failures on end are the engine's, not the cases'.
_FAILURES_MAX: Final = 5
_QUESTION: Final = (
    "Is the answer above correct? Reply with one word, yes if it is correct or no if it is not."
)


class PromptCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt whose right answer is known.

    Attributes:
        id: Name of the case.
        prompt: The user's message; or ``messages``.
        messages: A conversation.
        system: System message before the prompt.
        reference: The right answer, in the form that the check takes.
        check: How answers are checked.
        structure: What the answer has to look like.
        tools: Tools the model may call.
        tool_choice: Whether it must.
        max_tokens: Most tokens of the answer.
        slices: Values by key.
    """

    id: str
    prompt: str | None = None
    messages: tuple[Message, ...] = ()
    system: str | None = None
    reference: Any
    check: CheckKind | None = None
    structure: Structure | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    max_tokens: int | None = None
    slices: dict[str, str] = {}

    def request(self, max_tokens: int) -> Request:
        """Return what is asked.

        Raises:
            InputError: no request can have these fields.
        """
        messages = self.messages
        if self.prompt is not None:
            system = () if self.system is None else (Message(role="system", content=self.system),)
            messages = (*system, *messages, Message(role="user", content=self.prompt))
        return Request(
            messages=messages,
            max_tokens=self.max_tokens or max_tokens,
            structure=self.structure,
            tools=self.tools,
            tool_choice=self.tool_choice,
            signals=True,
        )


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A case with its request and check, sound."""

    case: PromptCase
    request: Request
    check: CheckKind
    digest: str


class RecordRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to record.

    Attributes:
        cases: What is asked.
        file: What takes the recorded lines; ``None`` keeps them in memory.
        fingerprint: Beginning of the bundle that answers, instead of the active one.
        self_assessment: Also ask the model whether its answer is right.
    """

    cases: tuple[Asked, ...]
    file: str | None = None
    fingerprint: str | None = None
    self_assessment: bool = False


def prompt_cases(lines: Lines, *, check: CheckKind | None, max_tokens: int) -> tuple[Asked, ...]:
    """Return the cases of lines that hold prompts and references.

    Raises:
        InputError: a line is no such case (``case-malformed``), its reference does not suit its
            check (``case-reference-invalid``), or an id comes twice (``case-duplicate``). Each
            names the line.
    """
    found: list[Asked] = []
    seen: dict[str, int] = {}
    for number, value in lines.objects:
        try:
            case = msgspec.convert(value, PromptCase)
        except msgspec.ValidationError as error:
            raise _malformed(str(error), number) from error
        reserved = reserved_slice(case.slices)
        if reserved is not None:
            raise _malformed(reserved, number)
        kind = case.check or check
        if kind is None:
            raise _malformed("it names no check, and neither does --check", number)
        try:
            check_reference(kind, case.reference)
            request = case.request(max_tokens)
        except InputError as error:
            raise _at_line(error, number) from error
        note_id(seen, case.id, number)
        digest = hashlib.sha256(case.id.encode()).hexdigest()[:24]
        found.append(Asked(case=case, request=request, check=kind, digest=digest))
    return tuple(found)


def record(context: Context, request: RecordRequest) -> tuple[tuple[Case, ...], tuple[str, ...]]:
    """Return the recorded cases, and what a reader should know.

    An answer that failed is no answer that could be kept, so it is left out and counted.

    Raises:
        InputError: the file holds cases of another deployment.
        UnsupportedError: the model gives text only.
        IntegrityError: its artifact is damaged.
        ResourceError: the file cannot be written.
        AdapterError: the runtime fails again and again, or no case could be recorded.
    """
    done = _resumed(request.file)
    failures: list[str] = []
    on_end = 0
    total = len(request.cases)
    template = _shared_template(request.cases)
    with open_session(context, request.fingerprint) as session:
        bundle = session.bundle.fingerprint
        _require_same(done, bundle)
        for number, asked in enumerate(request.cases):
            context.report(
                Step(
                    stage="calibrate",
                    status="progress",
                    message="recording signals: cases",
                    done=number,
                    total=total,
                )
            )
            if asked.digest in done:
                continue
            made = _recorded(session, asked, request.self_assessment)
            if isinstance(made, str):
                failures.append(made)
                on_end += 1
                if on_end >= _FAILURES_MAX:
                    raise AdapterError(
                        "calibration-stopped",
                        f"{on_end} answers on end failed: {made}",
                        context={"case": number + 1},
                        hint="mend that, then run it again; with --record it goes on from here",
                    )
                continue
            on_end = 0
            made = msgspec.structs.replace(made, fingerprint=bundle, prompt_sha256=template)
            _append(request.file, made)
            done[made.id] = made
    cases = tuple(done[asked.digest] for asked in request.cases if asked.digest in done)
    if not cases:
        raise AdapterError("calibration-stopped", f"no case could be recorded: {failures[0]}")
    if not failures:
        return cases, ()
    note = f"left out, since no answer came: {len(failures)} of {total} cases; {failures[0]}"
    return cases, (note,)


def _recorded(session: Session, asked: Asked, self_assessment: bool) -> Case | str:
    """Return a recorded case, or why there is none."""
    try:
        outcome = session.ask(asked.request)
    except (InputError, UnsupportedError) as error:
        if error.code == "engine-text-only":  # so it is with every case
            raise
        return f"{error.code}: {error.message}"
    if not isinstance(outcome, Completed):
        return _why(outcome)
    if outcome.finish.value == "cancelled":
        raise KeyboardInterrupt
    if outcome.signals is None:
        return "the answer has no signals"
    case = asked.case
    cut = outcome.finish.value not in {"stop", "tool-calls"}
    right = not cut and is_correct(asked.check, case.reference, outcome.text, outcome.tool_calls)
    signals: dict[str, float | bool] = dict(outcome.signals.features())
    if self_assessment:
        signals["self_yes"] = _asked_itself(session, asked.request, outcome)
    return Case(id=asked.digest, signals=signals, correct=right, slices=case.slices)


def _asked_itself(session: Session, request: Request, outcome: Completed) -> float:
    """Return how likely the model finds it, 0 to 1, that its answer is right: P(yes) of the two.

    The prompt stays what it was, so that only the new turns are read; log-probabilities are the
    model's own, whatever a call's grammar would allow.
    """
    said = outcome.text or "\n".join(
        f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in outcome.tool_calls
    )
    turns = (
        Message(role="assistant", content=said or "(no answer)"),
        Message(role="user", content=_QUESTION),
    )
    judged = session.ask(
        msgspec.structs.replace(
            request,
            messages=(*request.messages, *turns),
            max_tokens=1,
            structure=None,
            signals=False,
            logprobs=20,
        )
    )
    if not isinstance(judged, Completed) or not judged.logprobs:
        return 0.5
    weights = {"yes": 0.0, "no": 0.0}
    for _, data, logprob in judged.logprobs[0].top:
        word = data.decode("utf-8", "replace").strip().casefold()
        if word in weights:
            weights[word] += math.exp(logprob)
    both = sum(weights.values())
    return weights["yes"] / both if both > 0 else 0.5


def _why(outcome: Any) -> str:
    if hasattr(outcome, "error"):
        error = error_from_dict(outcome.error)
        return f"{error.code}: {error.message}"
    return "; ".join(outcome.reasons)


def _shared_template(cases: tuple[Asked, ...]) -> str:
    """Return the digest of what all prompts share; empty where they share no template."""
    found = {
        digest_of(
            [
                asked.case.system,
                msgspec.to_builtins(asked.case.structure),
                msgspec.to_builtins(asked.case.tools),
                msgspec.to_builtins(asked.case.tool_choice),
            ]
        )
        for asked in cases
    }
    return found.pop() if len(found) == 1 else ""


def _resumed(file: str | None) -> dict[str, Case]:
    if file is None or not Path(file).exists():
        return {}
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise _unwritable(file, error) from error
    if not data.strip():
        return {}
    return {case.id: case for case in parse_cases(read_lines(data))}


def _require_same(done: dict[str, Case], fingerprint: str) -> None:
    other = next((c.fingerprint for c in done.values() if c.fingerprint != fingerprint), None)
    if other is not None:
        raise InputError(
            "cases-mixed",
            f"the file to record into has cases of the deployment {other[:12] or 'unknown'}, and "
            f"{fingerprint[:12]} answers",
            hint="name another file",
        )


def _append(file: str | None, case: Case) -> None:
    if file is None:
        return
    try:
        with Path(file).open("ab") as stream:
            stream.write(canonical_json(case) + b"\n")
    except OSError as error:
        raise _unwritable(file, error) from error


def _unwritable(file: str, error: OSError) -> ResourceError:
    return ResourceError(
        "record-unwritable",
        f"{file} cannot be written: {error.strerror}",
        context={"path": file},
        hint="name a file in a folder that can be written",
    )


def _malformed(why: str, number: int) -> InputError:
    return InputError(
        "case-malformed",
        f"line {number} is no case: {why}",
        context={"line": number},
        hint="a case has an id, a prompt or messages, a reference, and a check",
    )


def _at_line(error: InputError, number: int) -> EdgewiseError:
    """Return an error of a case with its line; its code stays."""
    return error_from_dict(
        {
            **error.to_dict(),
            "message": f"line {number}: {error.message}",
            "context": {**error.context, "line": number},
        }
    )
