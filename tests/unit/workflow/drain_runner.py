"""Drains in children that can be killed. A script; each line of its input is one command.

``{"home": …, "policy": …, "children": N}`` forks N children, which wait, and answers with their
process ids. ``go`` lets them drain, and answers with their wait statuses when all have ended.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec

from edgewise.core.state import LinkState
from edgewise.route.cloud import CloudClient, Secrets, SpendLedger
from edgewise.route.consent import ConsentLedger
from edgewise.route.facts import PolicyTrust
from edgewise.route.policy import Policy
from edgewise.route.policy_file import LoadedPolicy
from edgewise.route.service import Router
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.draining import drain_queue


def drain(home: Path, policy: Path) -> None:
    loaded = LoadedPolicy(
        policy=msgspec.json.decode(policy.read_bytes(), type=Policy),
        trust=PolicyTrust.SIGNED,
        reason="a key",
    )
    context = Context(Home(home))
    router = Router(loaded, ConsentLedger(context.home))
    client = CloudClient(
        router.gate,
        spend=SpendLedger(context.home),
        secrets=Secrets(env={}, keyring=lambda _service, _name: None),
    )
    drain_queue(context, router, client, link=lambda: LinkState.ONLINE)


def tell(numbers: list[int]) -> None:
    os.write(1, f"{json.dumps(numbers)}\n".encode())


def main() -> None:
    for library in ("httpx", "openai"):
        importlib.import_module(library)
    pids: list[int] = []
    writing = -1
    for line in sys.stdin:
        if line.strip() == "go":
            os.close(writing)
            tell([os.waitpid(pid, 0)[1] for pid in pids])
            continue
        told = json.loads(line)
        reading, writing = os.pipe()
        pids = [forked(reading, writing, told) for _ in range(told["children"])]
        os.close(reading)
        tell(pids)


def forked(reading: int, writing: int, told: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.close(writing)  # a child that held it would wait for itself
    code = 1
    try:
        os.read(reading, 1)  # the end of the pipe is the sign to go
        drain(Path(told["home"]), Path(told["policy"]))
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not go on as the parent
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
