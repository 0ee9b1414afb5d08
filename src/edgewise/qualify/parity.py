"""Parity: whether two artifacts are the same model, and how far apart they are when not.

Free-running text is a poor judge: one near-tie early on and two right engines say different
things. So both are led over the same tokens, and their next-token distributions are compared at
every position; the text is shown side by side for a person. Led token by token, an engine does
not show what it loses when it reads a prompt in long steps; so the second is also held against
itself, reading at once.

KL is ``sum p (log p - log q)`` in nats, with the first artifact as ``p``. Perplexity is
``exp(mean(-log p(next token)))``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from edgewise.core.bundle import TextSettings
from edgewise.core.outcome import FinishReason
from edgewise.core.recipe import RunConfig
from edgewise.core.request import Message
from edgewise.errors import EdgewiseError, InputError, UnsupportedError
from edgewise.qualify.parity_gate import Gate, GateResult, judge
from edgewise.qualify.parity_messages import (
    SERVICE,
    Answer,
    AskParams,
    Distance,
    DistanceParams,
    Encoded,
    EncodeParams,
    Reading,
    Scored,
    ScoreParams,
)
from edgewise.qualify.texts import AFTER_CONTROL, HARD_TEXTS, QUESTIONS
from edgewise.run.messages import Loaded, LoadParams
from edgewise.runtimes.launch import start_worker
from edgewise.runtimes.worker import WorkerProcess

__all__ = ["ParityReport", "References", "SideBySide", "Subject", "compare_artifacts"]

_LOAD_TIMEOUT_S = 900.0
_STEP_TIMEOUT_S = 900.0
_ANSWER_TOKENS = 32


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison.

    ``text_only`` says that its logits are out of reach; ``notes`` what a reader of any comparison
    with it should know.
    """

    label: str
    runtime: str
    artifact: Path
    sha256: str
    run_config: RunConfig
    text: TextSettings
    text_only: bool = False
    notes: tuple[str, ...] = ()


class SideBySide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One question with both greedy answers and how each ended."""

    question: str
    text: str
    other_text: str
    finish: FinishReason
    other_finish: FinishReason
    same_prompt: bool
    agreeing_tokens: int | None


class ParityReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What two artifacts have in common.

    Attributes:
        first: Label of the first, the reference.
        second: Label of the second.
        tokenizer_texts: How many texts both tokenised.
        tokenizer_differs: The texts for which the token ids differ.
        distance: ``None`` where one of the two gives text only.
        reading: How far the second is from itself when it reads a prompt at once; ``None`` where
            it gives text only, and in reports from before this was asked.
        answers: Greedy answers side by side.
        missing: What could not be compared, and why.
        gate: The limits that apply and whether they hold.
        material: Where the scored text came from.
    """

    first: str
    second: str
    first_sha256: str
    second_sha256: str
    tokenizer_texts: int
    tokenizer_differs: tuple[str, ...]
    distance: Distance | None
    reading: Reading | None = None
    answers: tuple[SideBySide, ...]
    missing: tuple[str, ...]
    gate: GateResult
    material: str


def compare_artifacts(
    first: Subject,
    second: Subject,
    *,
    text: str,
    material: str,
    gate: Gate,
    work: Path,
    references: References,
    windows: int = 4,
    window_tokens: int = 64,
    progress: Callable[[str], None] = lambda _message: None,
) -> ParityReport:
    """Return the parity of two artifacts. One engine is loaded at a time.

    Args:
        first: The reference.
        second: What is judged.
        text: Text to score both on, tokenised by the first.
        material: Where the text came from, for the report.
        gate: The limits that apply.
        work: An empty folder for the second's distributions, removed by the caller.
        references: What references were found to say before.
        windows: How many stretches of the text are scored, each from an empty cache.
        window_tokens: Tokens of each; the first is given, the others are scored.
        progress: Called with what is going on.

    Raises:
        InputError: the text is too short.
        AdapterError: an engine cannot be loaded or failed.
        UnsupportedError: a runtime is not installed.
    """
    size = (windows, window_tokens)
    one, first_file = references.look(first, text, size, progress)
    progress(f"{second.label}: against {first.label}")
    second_file = work / "second.npy"
    two = _look(second, text, one.windows, second_file, size, progress)
    missing = [f"{first.label}: {why}" for why in one.missing]
    missing += [f"{second.label}: {why}" for why in two.missing]
    differs: tuple[str, ...] = ()
    both: list[tuple[str, list[int], list[int]]] = []
    if one.encoded and two.encoded:
        pairs = zip(one.given, one.encoded, two.encoded, strict=True)
        both = [(text, a.ids, b.ids) for text, a, b in pairs if a.refused is b.refused is None]
        differs = tuple(text for text, a, b in both if a != b)
    distance = None
    if one.scored is not None and two.scored is not None and one.windows is not None:
        distance = _distance(second.runtime, first_file, second_file, one.windows)
    reading = None if two.scored is None else two.scored.reading
    answers = tuple(
        _side_by_side(question, a, b)
        for question, a, b in zip(QUESTIONS, one.answers, two.answers, strict=True)
    )
    return ParityReport(
        first=first.label,
        second=second.label,
        first_sha256=first.sha256,
        second_sha256=second.sha256,
        tokenizer_texts=len(both),
        tokenizer_differs=differs,
        distance=distance,
        reading=reading,
        answers=answers,
        missing=tuple(missing),
        gate=judge(gate, distance, differs, answers, reading=reading),
        material=material,
    )


class References:
    """What references say, each asked once for all that is compared with it."""

    def __init__(self, folder: Path) -> None:
        """Take an empty folder for their distributions, removed by the caller."""
        self._folder = folder
        self._known: dict[tuple[object, ...], tuple[_Seen, Path]] = {}

    def look(
        self,
        subject: Subject,
        text: str,
        size: tuple[int, int],
        progress: Callable[[str], None],
    ) -> tuple[_Seen, Path]:
        """Return what a reference says, and the file of its distributions."""
        key = (subject.runtime, subject.sha256, subject.run_config, text, size)
        if key not in self._known:
            progress(f"{subject.label}: the reference")
            file = self._folder / f"reference-{len(self._known)}.npy"
            self._known[key] = (_look(subject, text, None, file, size, progress), file)
        return self._known[key]


class _Seen(msgspec.Struct, kw_only=True):
    given: list[str] = []
    encoded: list[Encoded] = []
    windows: tuple[tuple[int, ...], ...] | None = None
    scored: Scored | None = None
    answers: list[Answer] = []
    missing: list[str] = []


def _look(
    subject: Subject,
    text: str,
    windows: tuple[tuple[int, ...], ...] | None,
    file: Path,
    size: tuple[int, int],
    progress: Callable[[str], None],
) -> _Seen:
    seen = _Seen(windows=windows, missing=list(subject.notes))
    with _loaded(subject) as (worker, gives_logits):
        if gives_logits:
            _encode(worker, subject, seen)
            if seen.windows is None:
                seen.windows = _windows(worker, text, *size)
            seen.scored = worker.start(
                "score", ScoreParams(windows=seen.windows, file=str(file), read=True)
            ).result(
                Scored,
                notice=int,
                on_notice=lambda done: progress(f"{subject.label}: {done} positions"),
                timeout_s=_STEP_TIMEOUT_S,
            )
        else:
            seen.missing.append("its runtime gives text only, no token ids and no logits")
        for question in QUESTIONS:
            messages = (Message(role="user", content=question),)
            params = AskParams(messages=messages, max_tokens=_ANSWER_TOKENS)
            seen.answers.append(worker.call("ask", params, Answer, timeout_s=_STEP_TIMEOUT_S))
    return seen


@contextlib.contextmanager
def _loaded(subject: Subject) -> Iterator[tuple[WorkerProcess, bool]]:
    worker = start_worker(subject.runtime, SERVICE, run_config=subject.run_config)
    try:
        loaded = worker.call(
            "load",
            LoadParams(
                runtime=subject.runtime,
                artifact=str(subject.artifact),
                run_config=subject.run_config,
                text=subject.text,
            ),
            Loaded,
            timeout_s=_LOAD_TIMEOUT_S,
        )
        yield worker, loaded.vocab_size is not None
    except EdgewiseError as error:
        error.context.setdefault("artifact", subject.label)
        raise
    finally:
        worker.close()


def _encode(worker: WorkerProcess, subject: Subject, seen: _Seen) -> None:
    control = subject.text.special_tokens[:4]
    after = tuple(f"{token}{rest}" for token in control for rest in AFTER_CONTROL)
    for texts, parse in ((HARD_TEXTS, False), (after, True)):
        seen.given += texts
        params = EncodeParams(texts=texts, parse_special=parse)
        seen.encoded += worker.call("encode", params, list[Encoded])
    refused = [one.refused for one in seen.encoded if one.refused is not None]
    if refused:
        seen.missing.append(f"{len(refused)} texts are not tokenised: {refused[0]}")


def _windows(
    worker: WorkerProcess, text: str, windows: int, window_tokens: int
) -> tuple[tuple[int, ...], ...]:
    # A token is rarely shorter than a character.
    sample = text[: windows * window_tokens * 16]
    (encoded,) = worker.call("encode", EncodeParams(texts=(sample,)), list[Encoded])
    if encoded.refused is not None:
        raise UnsupportedError(
            "text-untokenisable",
            f"the reference cannot tokenise the text: {encoded.refused}",
            hint="give another text",
        )
    ids = encoded.ids
    if len(ids) < windows * window_tokens:
        raise InputError(
            "text-too-short",
            f"the text has {len(ids)} tokens; {windows * window_tokens} are needed",
            hint="give a longer text, or score fewer positions",
        )
    return tuple(
        tuple(ids[start : start + window_tokens])
        for start in range(0, windows * window_tokens, window_tokens)
    )


def _distance(
    runtime: str, first: Path, second: Path, windows: tuple[tuple[int, ...], ...]
) -> Distance:
    """Compare the stored distributions where numpy is: in the runtime's environment."""
    worker = start_worker(runtime, SERVICE)
    try:
        params = DistanceParams(first=str(first), second=str(second), windows=windows)
        return worker.call("distance", params, Distance, timeout_s=_STEP_TIMEOUT_S)
    finally:
        worker.close()


def _side_by_side(question: str, one: Answer, two: Answer) -> SideBySide:
    agreeing = None
    if one.tokens and two.tokens:
        pairs = zip(one.tokens, two.tokens, strict=False)
        agreeing = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if agreeing is None:
            agreeing = min(len(one.tokens), len(two.tokens))
    if one.prompt and two.prompt:
        same_prompt = one.prompt == two.prompt
    else:
        same_prompt = one.prompt_tokens == two.prompt_tokens
    return SideBySide(
        question=question,
        text=one.text,
        other_text=two.text,
        finish=one.finish,
        other_finish=two.finish,
        same_prompt=same_prompt,
        agreeing_tokens=agreeing,
    )
