"""An application whose local-only requests fail in every way; it runs inside the egress check.

It does what a careful application does: it shows outcomes and errors by code, keeps its own memory
out of crash dumps, and writes no prompt anywhere. What leaves it is then Edgewise's doing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from edgewise.core.outcome import Completed, Failed, Outcome
from edgewise.core.request import DataClass, Message, Request, Sampling
from edgewise.core.structure import Structure, StructureKind
from edgewise.core.tools import Tool
from edgewise.errors import EdgewiseError
from edgewise.run.messages import (
    Chunk,
    Generated,
    GenerateParams,
    Loaded,
    LoadParams,
    PrefixSettings,
)
from edgewise.run.session import Session
from edgewise.runtimes.host import MEMORY_LIMIT_VARIABLE
from edgewise.runtimes.launch import start_worker
from edgewise.workflow.context import Context
from edgewise.workflow.hybrid import open_hybrid
from edgewise.workflow.opening import open_session

Failure = Callable[[Session, str], str]


def tell(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def request(text: str, **fields: Any) -> Request:
    content = f"Write a long story about these words: {text}"
    fields.setdefault("max_tokens", 200)
    return Request(
        messages=(Message(role="user", content=content),), data_class=DataClass.LOCAL_ONLY, **fields
    )


def say(outcome: Outcome) -> str:
    assert str(outcome.provenance.route.route) == "local"
    if isinstance(outcome, Failed):
        return str(outcome.error["code"])
    return str(outcome.finish) if isinstance(outcome, Completed) else "declined"


def once(function: Callable[[], None]) -> Callable[[str], None]:
    done: list[bool] = []

    def on_text(_text: str) -> None:
        if not done:
            done.append(True)
            function()

    return on_text


def struck(number: signal.Signals) -> Failure:
    def failure(session: Session, text: str) -> str:
        session.warm()
        if number == signal.SIGSTOP:
            session._process.worker._idle_timeout_s = 1.0

        def strike() -> None:
            os.kill(session.worker_pid or 0, number)

        return say(session.ask(request(text), on_text=once(strike)))

    return failure


def completes(session: Session, text: str) -> str:
    return say(session.ask(request(text, max_tokens=4)))


def is_cancelled(session: Session, text: str) -> str:
    return say(session.ask(request(text), on_text=once(session.cancel)))


def meets_its_deadline(session: Session, text: str) -> str:
    session.warm()
    return say(session.ask(request(text, max_tokens=400, deadline_s=0.2)))


def has_a_reader_that_fails(session: Session, text: str) -> str:
    def fail() -> None:
        raise ZeroDivisionError

    try:
        session.ask(request(text), on_text=once(fail))
    except ZeroDivisionError:
        return "reader-failed"
    return "nothing"


def code_of(session: Session, asked: Request) -> str:
    try:
        return say(session.ask(asked))
    except EdgewiseError as error:
        return error.code


def overflows(session: Session, text: str) -> str:
    return code_of(session, request(f"{text} " * 500))


def asks_for_a_broken_structure(session: Session, text: str) -> str:
    structure = Structure(kind=StructureKind.JSON_SCHEMA, source='{"type": "nonsense"}')
    return code_of(session, request(text, structure=structure))


def is_cut_inside_its_structure(session: Session, text: str) -> str:
    schema = '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}'
    structure = Structure(kind=StructureKind.JSON_SCHEMA, source=schema)
    return code_of(session, request(text, structure=structure, max_tokens=3))


def meets_a_template_that_refuses(session: Session, text: str) -> str:
    """In a worker of its own: the session's template is bound to its fingerprint."""
    source = "{{ raise_exception('not ' + messages[-1]['content']) }}"
    settings = msgspec.structs.replace(session.bundle.text, template_source=source)
    config = session.bundle.deployment.compute.run_config
    name = session.bundle.deployment.runtime.name
    worker = start_worker(name, "edgewise.run.service:SessionService", run_config=config)
    try:
        params = LoadParams(
            runtime=name,
            artifact=str(session._process._artifact),
            run_config=config,
            text=settings,
        )
        worker.call("load", params, Loaded)
        asked = GenerateParams(
            messages=request(text).messages,
            max_tokens=4,
            sampling=Sampling(),
            stop=(),
            deadline_s=None,
        )
        worker.start("generate", asked).result(Generated, notice=Chunk)
    except EdgewiseError as error:
        return error.code
    finally:
        worker.close()
    return "nothing"


def runs_out_of_memory(session: Session, text: str) -> str:
    session.close()
    os.environ[MEMORY_LIMIT_VARIABLE] = str(96 << 20)
    try:
        return code_of(session, request(text))
    finally:
        del os.environ[MEMORY_LIMIT_VARIABLE]
        session.close()


FAILURES: dict[str, tuple[Failure, set[str]]] = {
    "completes": (completes, {"length", "stop"}),
    "is killed": (struck(signal.SIGKILL), {"worker-killed"}),
    "crashes": (struck(signal.SIGSEGV), {"worker-crashed"}),
    "aborts": (struck(signal.SIGABRT), {"worker-crashed"}),
    "hangs": (struck(signal.SIGSTOP), {"worker-hung"}),
    "is cancelled": (is_cancelled, {"cancelled"}),
    "meets its deadline": (meets_its_deadline, {"deadline"}),
    "has a reader that fails": (has_a_reader_that_fails, {"reader-failed"}),
    "overflows its context": (overflows, {"prompt-too-long"}),
    "asks for a broken structure": (
        asks_for_a_broken_structure,
        {"structure-invalid", "structure-unsupported"},
    ),
    "is cut inside its structure": (is_cut_inside_its_structure, {"length"}),
    "meets a template that refuses": (meets_a_template_that_refuses, {"template-rejected"}),
    "runs out of memory": (
        runs_out_of_memory,
        # What fails for want of memory depends on where the limit is met first.
        {
            "worker-out-of-memory",
            "worker-crashed",
            "worker-killed",
            "worker-bug",
            "model-load-failed",
        },
    ),
    "completes again": (completes, {"length", "stop"}),
}


@contextlib.contextmanager
def dumps_allowed() -> Iterator[None]:
    """Let children leave cores, so that it is the worker itself which must refuse."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def main(role: str) -> None:
    text = sys.stdin.read()
    with dumps_allowed():
        globals()[role](text)


def everything(text: str) -> None:
    """Let a session meet every failure, one after another."""
    with open_session(Context()) as session:
        for name, (failure, _) in FAILURES.items():
            tell(failure=name, code=failure(session, text))


def application_dies(text: str) -> None:
    with open_session(Context()) as session:
        session.ask(request(text), on_text=once(lambda: os.kill(os.getpid(), signal.SIGKILL)))


def artifact_damaged(text: str) -> None:
    with open_session(Context()) as session:
        tell(failure="artifact", code=code_of(session, request(text)))


def asks_with_states_on_disk(text: str) -> None:
    """As an application that has opted in to states of the KV cache on disk."""
    settings = PrefixSettings(memory_bytes=64 << 20, disk_bytes=256 << 20)
    with open_session(Context(), prefixes=settings) as session:
        tell(failure="none", code=completes(session, text))


def disk_is_full(text: str) -> None:
    """The same, where no file can grow large enough for a state."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    asks_with_states_on_disk(text)


def two_at_once(text: str) -> None:
    words = [sys.executable, "-m", "edgewise.cli", "run", "--max-tokens", "4"]
    both = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    for process in both:
        process.communicate(text.encode())
        tell(failure="two", code=str(process.returncode))


def records_its_routes(text: str) -> None:
    """Under a policy that records every decision; the text is in all that a request can hold."""
    with open_hybrid(Context()) as feature:
        outcome = feature.ask(request(text, max_tokens=4))
        tell(failure="none", code=str(outcome.provenance.route.route))
        tool = Tool(name="tool", description=text, parameters=json.dumps({"title": text}))
        schema = Structure(kind=StructureKind.JSON_SCHEMA, source=json.dumps({"title": text}))
        for fields in ({"task": text, "tools": (tool,), "stop": (text,)}, {"structure": schema}):
            outcome = feature.ask(request(text, max_tokens=4, **{"task": text, **fields}))
            tell(failure="task", code=str(outcome.provenance.route.route))


if __name__ == "__main__":
    main(sys.argv[1])
