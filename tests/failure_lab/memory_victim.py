"""Processes that the test of memory pressure puts into a control group; each does as it is told.

``session PROCS``: asks until an answer does not come to its own end. ``hog PROCS``: takes memory.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

STEP_BYTES = 4 << 20


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def session() -> None:
    import msgspec

    from edgewise.core.outcome import Completed
    from edgewise.core.request import Message, Request
    from edgewise.workflow.context import Context
    from edgewise.workflow.opening import open_session

    def request(text: str, most: int) -> Request:
        return Request(messages=(Message(role="user", content=text),), max_tokens=most)

    with open_session(Context()) as opened:
        opened.ask(request("Hi", 1))
        say(ready=True, worker=opened.worker_pid)
        for line in sys.stdin:
            if line == "answer\n":
                outcome = opened.ask(request("Say hello.", 2))
            else:
                pieces: list[str] = []
                while True:
                    story = request("Write a long story about a lighthouse.", 400)
                    outcome = opened.ask(story, on_text=pieces.append)
                    if not isinstance(outcome, Completed):
                        break
            say(outcome=msgspec.to_builtins(outcome), worker=opened.worker_pid)


def hog() -> None:
    held = []
    say(ready=True)
    for _ in sys.stdin:
        held.append(b"\x01" * STEP_BYTES)
        say(held=len(held) * STEP_BYTES)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(str(os.getpid()))
    {"session": session, "hog": hog}[sys.argv[1]]()
