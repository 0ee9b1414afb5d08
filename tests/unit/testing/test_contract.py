"""The contract catches what it is there for: one saboteur for each check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgewise.core.outcome import FinishReason
from edgewise.core.quantity import Measured
from edgewise.core.request import Message, Sampling
from edgewise.errors import UnsupportedError
from edgewise.runtimes.protocol import CancelledError
from edgewise.runtimes.reports import Capabilities, MemoryReport, PartitionReport, TextResult
from edgewise.runtimes.stepped import SteppedEngine
from edgewise.testing import ContractCheck, Verdict, check_engine, check_text_engine
from edgewise.testing import contract as contract_module

VOCAB, END = 258, 257
CAN = Capabilities(
    runtime="bytes",
    version="1",
    can_export=False,
    can_run=True,
    logits=True,
    rewind=True,
    state_save=True,
    cancel_latency="per-step",
)
CHECKS = {
    "prefill-equals-decode",
    "rewind-equals-re-prefill",
    "verify-equals-decode",
    "state-restores-or-refuses",
    "damaged-state-is-refused",
    "cancel-then-reuse",
    "no-leak-between-requests",
    "memory-is-flat",
    "end-tokens",
    "text-is-not-control",
    "utf-8-streams-whole",
    "context-edge",
    "bad-tokens-are-refused",
    "partition-names-places",
}


class Bytes:
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        ids = list(text.encode())
        return [256, *ids] if add_special else ids

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


class GoodEngine(SteppedEngine):
    """Its logits depend on every token in the cache: any mix-up shows."""

    runtime = "bytes"

    def __init__(self) -> None:
        super().__init__(
            context_length=128, vocab_size=VOCAB, step_tokens=16, codec=Bytes(), verify_tokens=8
        )
        self.cache: list[int] = []

    def _evaluate(self, tokens: list[int]) -> Any:
        self.cache += tokens
        seed = hash(tuple(self.cache)) % 2**32
        return np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32) * 3

    def _evaluate_all(self, tokens: list[int]) -> list[Any]:
        return [self._evaluate([token]) for token in tokens]

    def _truncate(self, position: int) -> None:
        del self.cache[position:]

    def _save(self) -> bytes:
        return np.asarray(self.cache, dtype=np.int32).tobytes()

    def _load(self, body: memoryview, position: int) -> None:
        self.cache = np.frombuffer(body, dtype=np.int32).tolist()

    def memory(self) -> MemoryReport:
        raise NotImplementedError

    def partition(self) -> PartitionReport:
        return PartitionReport(requested="CPU", operators={"hash": {"CPU": 1}})

    def close(self) -> None:
        """Nothing to free."""


class DecodesOtherwise(GoodEngine):
    def decode(self, token: int) -> Any:
        return -super().decode(token)


class CutsOneTooMany(GoodEngine):
    def _truncate(self, position: int) -> None:
        super()._truncate(max(0, position - 1))


class GivesRowsInAnotherOrder(GoodEngine):
    def _evaluate_all(self, tokens: list[int]) -> list[Any]:
        return super()._evaluate_all(tokens)[::-1]


class ForgetsState(GoodEngine):
    def _load(self, body: memoryview, position: int) -> None:
        super()._load(body, position)
        self.cache[-1] = 0


class TakesDamagedState(GoodEngine):
    def restore_state(self, state: bytes) -> None:
        self._position = 0


class IgnoresCancel(GoodEngine):
    def cancel(self) -> None:
        """Too busy."""


class KeepsTheCancelledPrompt(GoodEngine):
    stuck = False

    def _truncate(self, position: int) -> None:
        if not self.stuck:
            super()._truncate(position)

    def prefill(self, tokens: Sequence[int], *, progress: Any = None) -> Any:
        try:
            return super().prefill(tokens, progress=progress)
        except CancelledError:
            self.cache = [7]
            self.stuck = True
            raise


class Leaks(GoodEngine):
    def _truncate(self, position: int) -> None:
        if position == 0:
            self.cache = self.cache[-2:]
        else:
            super()._truncate(position)


class ShowsEndTokens(GoodEngine):
    def token_bytes(self, token: int) -> bytes:
        return b"<end>" if token == END else super().token_bytes(token)


class ParsesContent(GoodEngine):
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if text == "<|im_end|>":
            return [END]
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


class LosesBytes(GoodEngine):
    def token_bytes(self, token: int) -> bytes:
        return b"?" if token > 127 else super().token_bytes(token)


class TakesOneTooMany(GoodEngine):
    def _require_room(self, count: int) -> None:
        """There is always room."""


class TakesAnyToken(GoodEngine):
    def prefill(self, tokens: Sequence[int], *, progress: Any = None) -> Any:
        return super().prefill([t for t in tokens if 0 <= t < VOCAB] or [0], progress=progress)


class HidesFallbacks(GoodEngine):
    def partition(self) -> PartitionReport:
        return PartitionReport(requested="GPU", operators={"a": {"GPU": 3}, "b": {"CPU": 1}})


def failed(checks: list[ContractCheck]) -> set[str]:
    return {check.name for check in checks if check.verdict is Verdict.FAIL}


def test_a_good_engine_passes_everything() -> None:
    checks = check_engine(GoodEngine(), CAN, end_token_ids=[END])
    assert {check.name for check in checks} == CHECKS
    assert {check.verdict for check in checks} == {Verdict.PASS}
    assert all(check.detail for check in checks)


@pytest.mark.parametrize(
    ("engine", "caught"),
    [
        (DecodesOtherwise, "prefill-equals-decode"),
        (CutsOneTooMany, "rewind-equals-re-prefill"),
        (GivesRowsInAnotherOrder, "verify-equals-decode"),
        (ForgetsState, "state-restores-or-refuses"),
        (TakesDamagedState, "damaged-state-is-refused"),
        (IgnoresCancel, "cancel-then-reuse"),
        (KeepsTheCancelledPrompt, "cancel-then-reuse"),
        (Leaks, "no-leak-between-requests"),
        (ShowsEndTokens, "end-tokens"),
        (ParsesContent, "text-is-not-control"),
        (LosesBytes, "utf-8-streams-whole"),
        (TakesOneTooMany, "context-edge"),
        (TakesAnyToken, "bad-tokens-are-refused"),
        (HidesFallbacks, "partition-names-places"),
    ],
)
def test_each_fault_is_caught(engine: type[GoodEngine], caught: str) -> None:
    assert caught in failed(check_engine(engine(), CAN, end_token_ids=[END]))


def test_growing_memory_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter(range(0, 1 << 40, 2 << 20))
    monkeypatch.setattr(
        contract_module, "resident_bytes", lambda: Measured(value=next(sizes), source="test")
    )
    assert failed(check_engine(GoodEngine(), CAN)) == {"memory-is-flat"}


def test_end_tokens_outside_the_vocabulary_are_caught() -> None:
    assert failed(check_engine(GoodEngine(), CAN, end_token_ids=[VOCAB])) == {"end-tokens"}


class CannotCut(GoodEngine):
    verify_tokens = 0

    def _truncate(self, position: int) -> None:
        if position:
            raise UnsupportedError("rewind-unsupported", "not here")
        super()._truncate(0)

    def _save(self) -> bytes:
        raise UnsupportedError("state-save-unsupported", "not here")


def test_what_is_declared_impossible_must_be_refused() -> None:
    cannot = Capabilities(
        runtime="bytes", version="1", can_export=False, can_run=True, cancel_latency="per-step"
    )
    checks = {c.name: c.verdict for c in check_engine(CannotCut(), cannot, end_token_ids=[END])}
    refused = {name for name, verdict in checks.items() if verdict is Verdict.REFUSED}
    assert refused == {
        "rewind-equals-re-prefill",
        "verify-equals-decode",
        "state-restores-or-refuses",
        "damaged-state-is-refused",
    }
    assert Verdict.FAIL not in checks.values()
    # The same engine under other declarations, and the other way round.
    assert failed(check_engine(CannotCut(), CAN)) >= {
        "rewind-equals-re-prefill",
        "state-restores-or-refuses",
    }
    assert failed(check_engine(GoodEngine(), cannot)) == {
        "rewind-equals-re-prefill",
        "state-restores-or-refuses",
    }


class GoodText:
    """Answers with the words of the question, one by one."""

    context_length = 512
    carried: str = ""

    def __init__(self) -> None:
        self._stop = False

    def words(self, messages: Sequence[Message]) -> list[str]:
        return messages[-1].content.split()

    def generate(
        self, messages: Sequence[Message], *, max_tokens: int, sampling: Sampling, on_text: Any
    ) -> TextResult:
        said: list[str] = []
        finish = FinishReason.STOP
        for word in self.words(messages):
            if self._stop:
                raise CancelledError
            if len(said) == max_tokens:
                finish = FinishReason.LENGTH
                break
            said.append(word)
            on_text(word)
        return TextResult(
            text=" ".join(said),
            finish=finish,
            prompt_tokens=3,
            completion_tokens=len(said),
            ttft_ms=1,
            decode_ms=1,
        )

    def cancel(self) -> None:
        self._stop = True

    def clear_cancel(self) -> None:
        self._stop = False

    def memory(self) -> MemoryReport:
        raise NotImplementedError

    def partition(self) -> PartitionReport:
        return PartitionReport(requested="CPU", operators={"echo": {"CPU": 1}})

    def close(self) -> None:
        """Nothing to free."""


class Remembers(GoodText):
    def words(self, messages: Sequence[Message]) -> list[str]:
        found = super().words(messages)
        before, self.carried = self.carried, found[0]
        return [before, *found] if before and before != found[0] else found


class GoesOn(GoodText):
    def cancel(self) -> None:
        """Too busy."""


class NeverSaysLength(GoodText):
    def generate(self, *args: Any, **settings: Any) -> TextResult:
        import msgspec

        return msgspec.structs.replace(
            super().generate(*args, **settings), finish=FinishReason.STOP
        )


class Mute(GoodText):
    def words(self, messages: Sequence[Message]) -> list[str]:
        return []


def test_a_good_text_engine_passes() -> None:
    checks = check_text_engine(GoodText())
    assert {check.verdict for check in checks} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("engine", "caught"),
    [
        (Remembers, "no-leak-between-requests"),
        (GoesOn, "cancel-then-reuse"),
        (NeverSaysLength, "length-is-said"),
        (Mute, "greedy-repeats"),
    ],
)
def test_each_fault_of_a_text_engine_is_caught(engine: type[GoodText], caught: str) -> None:
    assert caught in failed(check_text_engine(engine()))
