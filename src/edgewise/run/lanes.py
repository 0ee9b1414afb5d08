"""Answers to several requests at once, on the sequences of one loaded artifact.

A lane is a thread of the worker. For each request it takes a free sequence: the one whose last
request began alike, since its cache then holds the beginning, and else the first. What was left in
a cache is used for equal tokens only, whoever they came from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from edgewise.core.outcome import Event
from edgewise.run.messages import Generated, GenerateParams
from edgewise.run.prefixes import PrefixCache
from edgewise.runtimes.host import Emit, Method

if TYPE_CHECKING:
    from edgewise.run.generation import Generator
    from edgewise.runtimes.protocol import Engine, SharedEngine

__all__ = ["Lane", "SequencePool", "SharedPrefixes"]


# Characters or tokens of a raw prompt that are compared: a hint need not be exact.
_LOOKED_AT: Final = 2048


class SharedPrefixes(PrefixCache):
    """A prefix cache that several threads use."""

    def __init__(self, *args: Any) -> None:
        """Take what the prefix cache takes."""
        super().__init__(*args)
        self._one_at_a_time = threading.RLock()

    def keep(
        self, tokens: list[int], save: Callable[[], bytes], *, to_disk: bool, clean: int = 0
    ) -> None:
        """Save a state, one thread at a time."""
        with self._one_at_a_time:
            super().keep(tokens, save, to_disk=to_disk, clean=clean)

    def restore(
        self, engine: Engine, tokens: list[int], *, better_than: int
    ) -> tuple[list[int], int] | None:
        """Restore a state, one thread at a time."""
        with self._one_at_a_time:
            return super().restore(engine, tokens, better_than=better_than)


class _Sequence:
    def __init__(self, engine: SharedEngine, generator: Generator) -> None:
        self.engine = engine
        self.generator = generator
        self.last: GenerateParams | None = None
        self.free = True


class SequencePool:
    """The sequences of an artifact, each with its own decode loop."""

    def __init__(
        self, engines: Sequence[SharedEngine], make: Callable[[SharedEngine], Generator]
    ) -> None:
        """Take the engines, and what makes the decode loop of one."""
        self._lock = threading.Lock()
        self._sequences = [_Sequence(engine, make(engine)) for engine in engines]

    def __len__(self) -> int:
        return len(self._sequences)

    def take(self, params: GenerateParams) -> _Sequence:
        """Return the free sequence that suits a request best; there is one for each lane."""
        with self._lock:
            free = [sequence for sequence in self._sequences if sequence.free]
            chosen = max(
                free, key=lambda sequence: _alike(sequence.last, params)
            )  # first of equals
            chosen.free = False
            chosen.last = params
            return chosen

    def give_back(self, sequence: _Sequence) -> None:
        """Take a sequence back."""
        with self._lock:
            sequence.free = True

    def persist(self) -> int:
        """Keep what idle sequences hold, for the next process; return how many tokens that are."""
        kept = 0
        for sequence in self._sequences:
            with self._lock:
                if not sequence.free:
                    continue
                sequence.free = False
            try:
                kept += sequence.generator.persist()
            finally:
                self.give_back(sequence)
        return kept


class Lane:
    """A service that answers one request at a time on a sequence from the pool."""

    def __init__(self, pool: SequencePool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._engine: SharedEngine | None = None
        self._cancelled = False

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {"generate": Method(GenerateParams, self._generate)}

    def cancel(self) -> None:
        """Abort the running call."""
        with self._lock:
            self._cancelled = True
            if self._engine is not None:
                self._engine.cancel()

    def clear_cancel(self) -> None:
        """Get ready for the next call."""
        with self._lock:
            self._cancelled = False

    def _generate(self, params: GenerateParams, emit: Emit) -> Generated:
        sequence = self._pool.take(params)
        try:
            self._begin(sequence.engine)
            generated = sequence.generator.generate(params, emit)
            return _with_rounding(generated, sequence.engine.rounded_steps)
        finally:
            with self._lock:
                self._engine = None
            sequence.engine.rest()
            self._pool.give_back(sequence)

    def _begin(self, engine: SharedEngine) -> None:
        with self._lock:
            engine.clear_cancel()
            if self._cancelled:
                engine.cancel()
            self._engine = engine


def _alike(last: GenerateParams | None, params: GenerateParams) -> int:
    """Return how far two requests begin alike: a hint, in messages or in characters."""
    if last is None:
        return 0
    if isinstance(last.prompt, str) and isinstance(params.prompt, str):
        return _shared(last.prompt[:_LOOKED_AT], params.prompt[:_LOOKED_AT])
    if isinstance(last.prompt, tuple) and isinstance(params.prompt, tuple):
        return _shared(last.prompt[:_LOOKED_AT], params.prompt[:_LOOKED_AT])
    return _shared(last.messages, params.messages)


def _shared(one: Sequence[object], other: Sequence[object]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _with_rounding(generated: Generated, steps: int) -> Generated:
    if not steps:
        return generated
    event = Event(
        code="steps-joined-rounded",
        message=f"{steps} steps were evaluated together with other requests' and round otherwise "
        "than alone; at a near-tie the same request can give another answer",
        context={"steps": steps},
    )
    return msgspec.structs.replace(generated, events=(*generated.events, event))
