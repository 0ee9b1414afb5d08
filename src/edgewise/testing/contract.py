"""The engine contract, check by check.

What an engine declares possible must hold exactly where nothing but the order of calls differs,
and within rounding where another batch shape is used. What it declares impossible must be
refused with :class:`~edgewise.errors.UnsupportedError`, never substituted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from edgewise.core.outcome import FinishReason
from edgewise.core.quantity import Measured, Unknown
from edgewise.core.request import Message, Sampling
from edgewise.device.process import resident_bytes
from edgewise.errors import EdgewiseError, InputError, IntegrityError, UnsupportedError
from edgewise.qualify.distributions import kl_nats, log_softmax
from edgewise.qualify.texts import HARD_TEXTS, OTHER_PROSE, PROSE
from edgewise.run.stream import TextStream
from edgewise.runtimes.protocol import CancelledError, VerifyingEngine
from edgewise.runtimes.reports import Capabilities
from edgewise.testing.report import ContractCheck, Verdict

if TYPE_CHECKING:
    from edgewise.runtimes.protocol import Engine, TextEngine

__all__ = ["check_engine", "check_text_engine"]

# Batched and single-step kernels with 8-bit activations round differently: a mean KL of up to
# 7e-3 nats was measured between instruction sets. Another answer is far above this.
ROUNDING_KL_NATS = 0.05
# The same calls in the same shapes; only the order of threads may differ.
SAME_KL_NATS = 1e-6
_KL_SOURCE = "KL of two next-token distributions, nats"
_REQUESTS = 16
_SETTLED = 6
_FLAT_BYTES = 12 << 20

Check = Callable[[], ContractCheck]


def check_engine(
    engine: Engine, capabilities: Capabilities, *, end_token_ids: Sequence[int] = ()
) -> list[ContractCheck]:
    """Return the verdicts on an engine that gives logits.

    Args:
        engine: A loaded engine with a context of at least 96 tokens; it is left empty.
        capabilities: What its runtime declares.
        end_token_ids: The tokens that end an answer, where known.
    """
    suite = _Suite(engine, capabilities, end_token_ids)
    checks: tuple[tuple[str, Check], ...] = (
        ("prefill-equals-decode", suite.prefill_equals_decode),
        ("rewind-equals-re-prefill", suite.rewind),
        ("verify-equals-decode", suite.verify),
        ("state-restores-or-refuses", suite.state),
        ("damaged-state-is-refused", suite.damaged_state),
        ("cancel-then-reuse", suite.cancel),
        ("no-leak-between-requests", suite.leak),
        ("memory-is-flat", suite.memory),
        ("end-tokens", suite.end_tokens),
        ("text-is-not-control", suite.text_is_not_control),
        ("utf-8-streams-whole", suite.streams),
        ("context-edge", suite.context_edge),
        ("bad-tokens-are-refused", suite.bad_tokens),
        ("partition-names-places", suite.partition),
    )
    return [_run(name, check) for name, check in checks]


def check_text_engine(engine: TextEngine) -> list[ContractCheck]:
    """Return the verdicts on an engine that takes messages and gives text."""
    suite = _TextSuite(engine)
    checks: tuple[tuple[str, Check], ...] = (
        ("greedy-repeats", suite.repeats),
        ("cancel-then-reuse", suite.cancel),
        ("no-leak-between-requests", suite.leak),
        ("length-is-said", suite.length),
        ("memory-is-flat", suite.memory),
        ("partition-names-places", suite.partition),
    )
    return [_run(name, check) for name, check in checks]


def _run(name: str, check: Check) -> ContractCheck:
    try:
        found = check()
    except EdgewiseError as error:
        return ContractCheck(name=name, verdict=Verdict.FAIL, detail=str(error))
    return ContractCheck(name=name, verdict=found.verdict, detail=found.detail, figure=found.figure)


def _say(
    good: bool, detail: str, figure: float | None = None, source: str = _KL_SOURCE
) -> ContractCheck:
    return ContractCheck(
        name="",
        verdict=Verdict.PASS if good else Verdict.FAIL,
        detail=detail,
        figure=Unknown(reason="the check has no figure")
        if figure is None
        else Measured(value=round(figure, 9), source=source),
    )


def _refused(detail: str) -> ContractCheck:
    return ContractCheck(name="", verdict=Verdict.REFUSED, detail=detail)


class _Suite:
    def __init__(
        self, engine: Engine, capabilities: Capabilities, end_token_ids: Sequence[int]
    ) -> None:
        self._engine = engine
        self._can = capabilities
        self._end = tuple(end_token_ids)
        ids = engine.tokenize(PROSE, add_special=True, parse_special=False)
        self._tokens = ids[: min(len(ids), engine.context_length - 16, 64)]

    def _clean(self, tokens: Sequence[int]) -> Any:
        self._engine.rewind(0)
        return self._engine.prefill(tokens).copy()

    def prefill_equals_decode(self) -> ContractCheck:
        whole = self._clean(self._tokens)
        self._engine.rewind(0)
        logits = self._engine.prefill(self._tokens[:1])
        for token in self._tokens[1:]:
            logits = self._engine.decode(token)
        distance = _kl(whole, logits)
        good = distance < ROUNDING_KL_NATS and self._engine.position == len(self._tokens)
        return _say(good, f"KL {distance:.1e} nats, token by token against all at once", distance)

    def rewind(self) -> ContractCheck:
        half = len(self._tokens) // 2
        rest = self._tokens[half:]
        whole = self._clean(self._tokens)
        try:
            self._engine.rewind(half)
        except UnsupportedError as error:
            if self._can.rewind:
                return _say(False, f"declared, and refused: {error.message}")
            return _refused(error.code)
        if not self._can.rewind:
            return _say(False, "declared impossible, and done all the same")
        again = self._engine.prefill(rest).copy()
        distance = _kl(whole, again)
        return _say(distance < ROUNDING_KL_NATS, f"KL {distance:.1e} nats to a clean run", distance)

    def verify(self) -> ContractCheck:
        engine, rest = self._engine, self._tokens[-4:]
        if not isinstance(engine, VerifyingEngine) or engine.verify_tokens < len(rest):
            return _refused("a step gives the logits of its last token only")
        start = len(self._tokens) - len(rest)
        self._clean(self._tokens[:start])
        singly = [engine.decode(token).copy() for token in rest]
        engine.rewind(start)
        distance = max(map(_kl, singly, engine.verify(rest)))
        engine.rewind(start)
        again = _kl(singly[0], engine.decode(rest[0]))
        good = distance < ROUNDING_KL_NATS and again < SAME_KL_NATS
        return _say(good, f"KL {distance:.1e} nats, four at once against one by one", distance)

    def state(self) -> ContractCheck:
        engine = self._engine
        self._clean(self._tokens[:-1])
        try:
            state = engine.save_state()
        except UnsupportedError as error:
            if self._can.state_save:
                return _say(False, f"declared, and refused: {error.message}")
            return self._restore_is_refused(error.code)
        if not self._can.state_save:
            return _say(False, "declared impossible, and done all the same")
        first = engine.decode(self._tokens[-1]).copy()
        self._clean(engine.tokenize(OTHER_PROSE, add_special=True, parse_special=False)[:32])
        engine.restore_state(state)
        again = engine.decode(self._tokens[-1])
        distance = _kl(first, again)
        return _say(distance < SAME_KL_NATS, f"KL {distance:.1e} nats after a restore", distance)

    def _restore_is_refused(self, code: str) -> ContractCheck:
        try:
            self._engine.restore_state(b"\0" * 128)
        except (UnsupportedError, IntegrityError):
            return _refused(code)
        return _say(False, "saving is refused, but restoring nonsense is not")

    def damaged_state(self) -> ContractCheck:
        if not self._can.state_save:
            return _refused("no state is saved at all")
        self._clean(self._tokens)
        state = bytearray(self._engine.save_state())
        state[len(state) // 2] ^= 0xFF
        for bad in (bytes(state), bytes(state[:40]), b""):
            try:
                self._engine.restore_state(bad)
            except IntegrityError:
                if self._engine.position:
                    return _say(False, "a refused state left something in the cache")
                continue
            return _say(False, "a damaged state was taken")
        return _say(True, "three damaged states were refused, the cache left empty")

    def cancel(self) -> ContractCheck:
        engine = self._engine
        expected = self._clean(self._tokens)
        engine.rewind(0)
        engine.cancel()
        try:
            engine.prefill(self._tokens)
        except CancelledError:
            stopped = True
        else:
            stopped = False
        engine.clear_cancel()
        if self._can.cancel_latency == "none":
            return _say(not stopped, "declared impossible")
        if not stopped:
            return _say(False, "a cancel was ignored")
        distance = _kl(expected, self._clean(self._tokens))
        return _say(distance < SAME_KL_NATS, f"KL {distance:.1e} nats in the next answer", distance)

    def leak(self) -> ContractCheck:
        expected = self._clean(self._tokens)
        self._clean(self._engine.tokenize(OTHER_PROSE, add_special=True, parse_special=False)[:48])
        distance = _kl(expected, self._clean(self._tokens))
        return _say(
            distance < SAME_KL_NATS, f"KL {distance:.1e} nats after another request", distance
        )

    def memory(self) -> ContractCheck:
        return _flat(lambda: self._clean(self._tokens))

    def end_tokens(self) -> ContractCheck:
        if not self._end:
            return _say(True, "none were given to look at")
        bad = [t for t in self._end if not 0 <= t < self._engine.vocab_size]
        if bad:
            return _say(False, f"end tokens {bad} are not in the vocabulary")
        shown = [t for t in self._end if self._engine.token_bytes(t)]
        return _say(not shown, f"{len(self._end)} end tokens, {len(shown)} of them shown as text")

    def text_is_not_control(self) -> ContractCheck:
        engine, seen = self._engine, []
        for token in self._end:
            for text in ("<|im_end|>", "<|im_start|>", "<|endoftext|>", "</s>", "<end_of_turn>"):
                ids = engine.tokenize(text, add_special=False, parse_special=False)
                seen += [text] if token in ids else []
        return _say(not seen, "text that spells a control token stays text")

    def streams(self) -> ContractCheck:
        broken = []
        for text in HARD_TEXTS:
            ids = self._engine.tokenize(text, add_special=False, parse_special=False)
            stream = TextStream()
            shown = "".join(stream.push(self._engine.token_bytes(token)) for token in ids)
            shown += stream.finish()
            if shown.removeprefix(" ") != text.removeprefix(" ") or stream.replaced:
                broken.append(text)
        return _say(not broken, f"{len(HARD_TEXTS) - len(broken)} of {len(HARD_TEXTS)} texts whole")

    def context_edge(self) -> ContractCheck:
        engine, size = self._engine, self._engine.context_length
        filler = (self._tokens * (size // len(self._tokens) + 2))[: size + 1]
        self._clean(filler[: size - 1])
        engine.decode(filler[0])
        if not self._overflows(lambda: engine.decode(filler[0])):
            return _say(False, "a token beyond the context was taken")
        self._clean(filler[:size])
        if engine.position != size:
            return _say(False, f"after {size} tokens the position is {engine.position}")
        engine.rewind(0)
        if not self._overflows(lambda: engine.prefill(filler)):
            return _say(False, "a prompt beyond the context was taken")
        if engine.position:
            return _say(False, "a refused prompt left something in the cache")
        self._clean(self._tokens)
        return _say(True, f"{size - 1} + 1 and {size} fit, {size + 1} is refused")

    @staticmethod
    def _overflows(call: Callable[[], object]) -> bool:
        try:
            call()
        except InputError:
            return True
        return False

    def bad_tokens(self) -> ContractCheck:
        for bad in ([], [-1], [self._engine.vocab_size]):
            self._engine.rewind(0)
            if not self._overflows(lambda bad=bad: self._engine.prefill(bad)):  # type: ignore[misc]
                return _say(False, f"the tokens {bad} were taken")
        return _say(True, "empty, negative and unknown tokens are refused")

    def partition(self) -> ContractCheck:
        return _partition(self._engine)


class _TextSuite:
    _GREEDY = Sampling()

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine

    def _ask(self, text: str, *, max_tokens: int = 24) -> tuple[str, FinishReason]:
        pieces: list[str] = []
        result = self._engine.generate(
            (Message(role="user", content=text),),
            max_tokens=max_tokens,
            sampling=self._GREEDY,
            on_text=pieces.append,
        )
        return "".join(pieces), result.finish

    def repeats(self) -> ContractCheck:
        first, second = self._ask(PROSE), self._ask(PROSE)
        return _say(bool(first[0]) and first == second, f"{len(first[0])} characters, twice alike")

    def cancel(self) -> ContractCheck:
        engine, expected = self._engine, self._ask(PROSE)
        pieces: list[str] = []

        def stop(text: str) -> None:
            pieces.append(text)
            engine.cancel()

        try:
            result = engine.generate(
                (Message(role="user", content=PROSE),),
                max_tokens=200,
                sampling=self._GREEDY,
                on_text=stop,
            )
            stopped = result.finish is FinishReason.CANCELLED
        except CancelledError:
            stopped = True
        engine.clear_cancel()
        if not stopped:
            return _say(False, "a cancel was ignored")
        return _say(self._ask(PROSE) == expected, "the next answer is as if nothing had happened")

    def leak(self) -> ContractCheck:
        expected = self._ask(PROSE)
        self._ask(OTHER_PROSE)
        return _say(self._ask(PROSE) == expected, "another request in between changes nothing")

    def length(self) -> ContractCheck:
        _, finish = self._ask(PROSE, max_tokens=2)
        return _say(finish is FinishReason.LENGTH, f"after 2 tokens the reason is {finish}")

    def memory(self) -> ContractCheck:
        return _flat(lambda: self._ask(PROSE, max_tokens=4))

    def partition(self) -> ContractCheck:
        return _partition(self._engine)


def _partition(engine: Engine | TextEngine) -> ContractCheck:
    report = engine.partition()
    total = report.delegated + report.fallen_back
    elsewhere = {
        name
        for name, places in report.operators.items()
        if any(not place.startswith(report.requested) for place in places)
    }
    unnamed = elsewhere - set(report.fallbacks)
    good = total > 0 and not unnamed
    detail = f"{report.delegated} of {total} operators on {report.requested}"
    if unnamed:
        detail += f"; not named as fallbacks: {', '.join(sorted(unnamed))}"
    return _say(good, detail)


def _flat(request: Callable[[], object]) -> ContractCheck:
    sizes = []
    for _ in range(_REQUESTS):
        request()
        now = resident_bytes()
        sizes.append(0 if isinstance(now, Unknown) else int(now.number))
    growth = max(sizes[_SETTLED:]) - sizes[_SETTLED]
    return _say(
        growth < _FLAT_BYTES,
        f"{growth >> 10} KiB more after {_REQUESTS} requests than after {_SETTLED + 1}",
        float(growth),
        "resident bytes",
    )


def _kl(reference: Any, other: Any) -> float:
    return max(0.0, kl_nats(log_softmax(reference), log_softmax(other)))
