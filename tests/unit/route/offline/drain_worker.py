"""One of several processes that drain the same queue. A script: HOME PORT GO READY."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.unit.route.offline.world import SAFE, SocketSender, permit

from edgewise.route.offline import Drainer, OfflineQueue, State
from edgewise.store import Home

PATHS = {"dedupe": "/ok/dedupe", "plain": "/ok/plain"}


def main(home: Path, port: int, go: Path, ready: Path) -> int:
    queue = OfflineQueue(Home(home), delay_safe=SAFE)
    drainer = Drainer(queue, SocketSender(port, PATHS.__getitem__), permit)
    queue.entries()
    ready.touch()
    while not go.exists():
        time.sleep(0.005)  # for the others; not for anything the queue does
    handled = 0
    while queue.entries({State.QUEUED, State.LEASED, State.SENDING}):
        handled += len(drainer.drain().handled)
    return handled


if __name__ == "__main__":
    count = main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
    os.write(1, f"{count}\n".encode())
