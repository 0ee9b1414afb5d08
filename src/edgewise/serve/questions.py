"""Questions of consent that wait for an answer: in memory, bounded, and open for a while only.

A question is kept under a random name that whoever was declined is told, so that it cannot be
guessed and two askings never share one. What is answered is the question that was made here.

A client's name is its own to choose, so open questions are bounded by address and in all as well.

Invariants: a question is answered at most once, whoever races; one that could not be recorded is
open again; one client's questions never push out another's; nothing of a request is kept.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from edgewise.errors import InputError, ResourceError
from edgewise.route.consent import ConsentPrompt
from edgewise.serve.clients import address_of

__all__ = ["Question", "Questions"]

_NAME_BYTES = 24
_GONE_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One asking.

    Attributes:
        id: Its name, and all that is needed to answer it.
        prompt: What is asked.
        form_token: What the page's form has to send back.
        expires_at: Until when it can be answered.
    """

    id: str = field(repr=False)
    prompt: ConsentPrompt = field(repr=False)
    form_token: str = field(repr=False)
    expires_at: dt.datetime
    client: str = field(repr=False)
    ends: float = field(repr=False)


class Questions:
    """The open questions of one server. Callable from any thread.

    Args:
        per_client_max: Most open questions of one client; a further one ends its oldest.
        per_address_max: Most open questions of the clients of one address; a further one is
            refused.
        total_max: Most open questions of all of them.
        open_s: How long one is open, seconds.
        clock: A clock that never goes back, seconds.
    """

    def __init__(
        self,
        *,
        per_client_max: int = 16,
        per_address_max: int = 256,
        total_max: int = 1024,
        open_s: float = 900.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_client_max = per_client_max
        self._per_address_max = per_address_max
        self._total_max = total_max
        self._open_s = open_s
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Question] = OrderedDict()
        self._answering: set[str] = set()
        self._gone: OrderedDict[str, str] = OrderedDict()  # name: why

    def __repr__(self) -> str:
        return f"<Questions: {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, prompt: ConsentPrompt, client: str) -> Question:
        """Keep a question for a client; return it with its name.

        Raises:
            ResourceError: too many are open (``consent-questions-full``).
        """
        now, address = self._clock(), address_of(client)
        question = Question(
            id=secrets.token_urlsafe(_NAME_BYTES),
            prompt=prompt,
            form_token=secrets.token_urlsafe(_NAME_BYTES),
            expires_at=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self._open_s),
            client=client,
            ends=now + self._open_s,
        )
        with self._lock:
            self._sweep(now)
            own = [one.id for one in self._open.values() if one.client == client]
            while len(own) >= self._per_client_max:
                self._end(own.pop(0), "replaced by later ones")
            near = sum(address_of(one.client) == address for one in self._open.values())
            if near >= self._per_address_max or len(self._open) >= self._total_max:
                where = " that come from this address" if near >= self._per_address_max else ""
                raise ResourceError(
                    "consent-questions-full",
                    f"too many questions of consent{where} wait for an answer",
                    context={"retry_after_s": self._next_end_s(now)},
                    hint="answer some, or ask again when they have expired",
                    retryable=True,
                )
            self._open[question.id] = question
        return question

    def get(self, name: str) -> Question:
        """Return an open question.

        Raises:
            InputError: there never was one of that name (``consent-question-unknown``), or it was
                answered or is over (``consent-question-closed``).
        """
        with self._lock:
            return self._get(name)

    @contextlib.contextmanager
    def answering(self, name: str) -> Iterator[Question]:
        """Hold a question while its answer is recorded; it is answered when the block ends well.

        Raises:
            InputError: see :meth:`get`.
            ResourceError: another answer is being recorded (``consent-question-busy``).
        """
        with self._lock:
            question = self._get(name)
            if name in self._answering:
                raise ResourceError(
                    "consent-question-busy",
                    "an answer to this question is being recorded",
                    hint="ask again for what was decided: edgewise consent list",
                    retryable=True,
                )
            self._answering.add(name)
        try:
            yield question
        except BaseException:
            with self._lock:
                self._answering.discard(name)
            raise
        with self._lock:
            self._answering.discard(name)
            self._end(name, "answered")

    def _get(self, name: str) -> Question:
        self._sweep(self._clock())
        question = self._open.get(name)
        if question is not None:
            return question
        why = self._gone.get(name)
        if why is None:
            raise InputError(
                "consent-question-unknown",
                "there is no question of that name here",
                hint="the name is in the error `consent-required` of the request",
            )
        raise InputError(
            "consent-question-closed",
            f"this question was {why}; it cannot be answered any more",
            context={"why": why},
            hint="send the request again: it asks anew where consent is still missing",
        )

    def _sweep(self, now: float) -> None:
        while self._open:
            oldest = next(iter(self._open.values()))
            if oldest.ends > now:
                return
            self._end(oldest.id, "left open for too long")

    def _next_end_s(self, now: float) -> int:
        oldest = next(iter(self._open.values()))
        return max(1, math.ceil(oldest.ends - now))

    def _end(self, name: str, why: str) -> None:
        self._open.pop(name, None)
        self._gone[name] = why
        while len(self._gone) > _GONE_MAX:
            self._gone.popitem(last=False)
