"""What the server made of its latest answers, so that a later request can name a doubted one.

A client names an answer and brings no verdict of its own: the verdict is the one that was reached
here, about an answer to this very request, told to this very client.

Invariants: nothing of a request or an answer is kept but a keyed digest of what was asked; the
number and the time are bounded; one client's answers push out its own before any other's.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from edgewise.core.outcome import Completed
from edgewise.core.request import Request
from edgewise.core.signals import Escalation
from edgewise.errors import InputError

__all__ = ["JudgedAnswers"]

# What is asked. How it is sampled, reported and bounded in time may differ the next time.
_ASKED: Final = (
    *("messages", "prompt", "tools", "tool_choice", "structure", "stop", "max_tokens"),
    *("data_class", "task"),
)
_GONE_MAX: Final = 4096
_TIME, _NEWER, _OTHERS = "too long ago", "replaced by newer ones", "pushed out by other clients'"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    client: str
    asked: bytes
    escalation: Escalation
    ends: float


class JudgedAnswers:
    """The verdicts of one server. Callable from any thread.

    Args:
        per_client_max: Most answers of one client; a further one replaces its oldest.
        total_max: Most answers of all of them; a further one replaces the oldest.
        kept_s: How long one is kept, seconds.
        clock: A clock that never goes back, seconds.
    """

    def __init__(
        self,
        *,
        per_client_max: int = 64,
        total_max: int = 4096,
        kept_s: float = 900.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_client_max = per_client_max
        self._total_max = total_max
        self._kept_s = kept_s
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Judged] = OrderedDict()
        self._of_client: dict[str, OrderedDict[str, None]] = {}
        self._gone: OrderedDict[str, tuple[str, str]] = OrderedDict()  # id: client, why

    def __repr__(self) -> str:
        return f"<JudgedAnswers: {len(self._kept)}>"

    def __len__(self) -> int:
        return len(self._kept)

    def note(self, request: Request, client: str) -> Callable[[str, Completed], None]:
        """Return what remembers an answer to a request of a client by its id.

        An answer that nothing judged is not remembered.
        """

        def remember(answer_id: str, outcome: Completed) -> None:
            if outcome.escalation is not None:
                self._keep(answer_id, client, self._digest(request), outcome.escalation)

        return remember

    def recall(self, answer_id: str, client: str, request: Request) -> Escalation:
        """Return what was made of an answer to this request of this client.

        Raises:
            InputError: this client got no such answer here (``escalation-unknown``), it is not
                kept any more (``escalation-expired``), or it answered something else
                (``escalation-mismatch``).
        """
        with self._lock:
            self._sweep(self._clock())
            found = self._kept.get(answer_id)
            owner, why = self._gone.get(answer_id, ("", ""))
        if found is None or found.client != client:
            raise _expired(why) if owner == client else _unknown()
        if not hmac.compare_digest(found.asked, self._digest(request)):
            raise InputError(
                "escalation-mismatch",
                "edgewise.after: that answer was to another request",
                context={"param": "edgewise.after"},
                hint="send the same request again, data class and task too, with the answer's id",
            )
        return found.escalation

    def _digest(self, request: Request) -> bytes:
        asked = msgspec.json.encode([getattr(request, name) for name in _ASKED])
        return hashlib.blake2b(asked, digest_size=32, key=self._key).digest()

    def _keep(self, answer_id: str, client: str, asked: bytes, escalation: Escalation) -> None:
        now = self._clock()
        with self._lock:
            self._sweep(now)
            own = self._of_client.get(client)
            if own is not None and len(own) >= self._per_client_max:
                self._end(next(iter(own)), _NEWER)
            elif len(self._kept) >= self._total_max:
                self._end(next(iter(self._kept)), _OTHERS)
            self._kept[answer_id] = _Judged(
                client=client, asked=asked, escalation=escalation, ends=now + self._kept_s
            )
            self._of_client.setdefault(client, OrderedDict())[answer_id] = None

    def _sweep(self, now: float) -> None:
        while self._kept:
            answer_id, oldest = next(iter(self._kept.items()))
            if oldest.ends > now:
                return
            self._end(answer_id, _TIME)

    def _end(self, answer_id: str, why: str) -> None:
        client = self._kept.pop(answer_id).client
        own = self._of_client[client]
        del own[answer_id]
        if not own:
            del self._of_client[client]
        self._gone[answer_id] = (client, why)
        while len(self._gone) > _GONE_MAX:
            self._gone.popitem(last=False)


def _unknown() -> InputError:
    return InputError(
        "escalation-unknown",
        "edgewise.after: this client got no judged answer of that id here",
        context={"param": "edgewise.after"},
        hint="name an answer of this server that had an `escalation`, as the client that got it",
    )


def _expired(why: str) -> InputError:
    return InputError(
        "escalation-expired",
        f"edgewise.after: what was made of that answer is not kept any more: {why}",
        context={"param": "edgewise.after", "why": why},
        hint="ask again without it; the new answer has an id of its own",
    )
