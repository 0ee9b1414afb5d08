"""Every bound of the server in one place: a client can take only so much."""

from __future__ import annotations

import resource
from dataclasses import dataclass

__all__ = ["Limits", "connections_possible"]

# Descriptors that are no connections: the listener, pipes to workers, files that are being read,
# and as many connections as one round of accepting takes before the first can be turned away.
_OTHER_DESCRIPTORS = 64
BACKLOG = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client, and all of them together, may take.

    Attributes:
        body_max_bytes: Longest request body.
        header_max_bytes: Longest request line with its headers.
        nesting_max: Deepest nesting of a body's JSON.
        prompts_max: Most prompts of one request for completions.
        header_timeout_s: Time to send a request's headers in.
        body_timeout_s: Time to send a request's body in.
        keep_alive_s: How long a connection without a request is kept.
        stall_s: How long a client may read nothing of what was written for it.
        grace_s: How long running answers may go on after the server was told to stop.
        connections_max: Connections at once.
        requests_per_minute: Requests of one address in a minute; ``None`` for any number.
        queue_max: Waiting requests of all clients together.
        queue_per_client_max: Waiting requests of one client.
        buffered_chunks_max: Chunks of one answer that wait to be written.
        failures_max: Failures of the engine within ``failure_window_s`` after which requests are
            turned away until the oldest is that long ago.
        failure_window_s: See there.
        elsewhere_max: Requests that wait for a destination's answer at once.
        elsewhere_per_client_max: Those of one client.
        release_after_s: How long the engine rests before its memory is handed back; ``None`` never.
    """

    body_max_bytes: int = 4 << 20
    header_max_bytes: int = 32 << 10
    nesting_max: int = 128
    prompts_max: int = 256
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    keep_alive_s: int = 30
    stall_s: float = 20.0
    grace_s: float = 10.0
    connections_max: int = 512
    requests_per_minute: int | None = None
    queue_max: int = 64
    queue_per_client_max: int = 16
    buffered_chunks_max: int = 1024
    failures_max: int = 3
    failure_window_s: float = 60.0
    elsewhere_max: int = 32
    elsewhere_per_client_max: int = 8
    release_after_s: float | None = None


def connections_possible(wanted: int) -> int:
    """Return how many connections the process may have open, at most those that are wanted.

    A listener that runs out of file descriptors serves nobody, so the bound lies below that.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft - BACKLOG - _OTHER_DESCRIPTORS))
