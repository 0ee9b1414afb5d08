"""A session: a conversation partner over one deployment, in a worker process of its own.

Order of an answer: read the device's state, route, admit, verify the artifact, load, generate.
Nothing is loaded for a request that is declined.

Invariants: every request ends in one outcome; after a crash, a hang or a cancel the next request
works; closing the session ends the worker.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, Self

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import (
    Declined,
    Event,
    Failed,
    FinishReason,
    Outcome,
    Provenance,
    Route,
    RouteDecision,
)
from edgewise.core.release import Released
from edgewise.core.request import Request, Sampling
from edgewise.core.state import DeviceState
from edgewise.device.process import peak_resident_bytes
from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    InputError,
    ResourceError,
)
from edgewise.run.accounting import Clock, completed
from edgewise.run.messages import (
    Chunk,
    Generated,
    GenerateParams,
    Notice,
    PrefixSettings,
)
from edgewise.run.model_process import ModelProcess
from edgewise.runtimes.worker import PendingCall, WorkerProcess

__all__ = ["ANSWERS_FAULTS", "Decide", "OnChunk", "OnText", "Session"]

OnText = Callable[[str], None]
OnChunk = Callable[[Chunk], None]
# A cancel takes milliseconds; on a device that is starved of processor time, seconds.
_CANCEL_TIMEOUT_S = 20.0
_PERSIST_TIMEOUT_S = 10.0
# Failures of an answer, not of the engine: the worker goes on.
ANSWERS_FAULTS: Final = frozenset({"structure-violated", "structure-broken", "summary-empty"})
_CLOSED = AdapterError("session-closed", "the session was closed while it was answering")


class Decide(Protocol):
    """The router, bound to a policy and to the deployment's evidence."""

    def __call__(self, request: Request, state: DeviceState, *, resident: bool) -> RouteDecision:
        """Return the route of a request."""
        ...


class Session:
    """Answers requests with one bundle. One request at a time; ``cancel`` from any thread.

    Attributes:
        bundle: What answers.
    """

    def __init__(
        self,
        bundle: Bundle,
        artifact: Path,
        *,
        device: str,
        decide: Decide,
        read_state: Callable[[], DeviceState],
        prefixes: PrefixSettings | None = None,
        on_event: Callable[[Event], None] | None = None,
        process: ModelProcess | None = None,
    ) -> None:
        """Take what answers and what decides; nothing is loaded yet.

        Args:
            bundle: What answers.
            artifact: Its artifact, a file or a folder.
            device: Digest of the device, for provenance.
            decide: The router.
            read_state: Reads the device's state for the router.
            prefixes: Which states of the KV cache are kept between requests.
            on_event: Called with what was done because memory ran short, from another thread; the
                next outcome has it too.
            process: The worker, where several sessions share one.
        """
        self.bundle = bundle
        self._process = process or ModelProcess(bundle, artifact, prefixes, on_event=on_event)
        self._device = device
        self._decide = decide
        self._read_state = read_state
        self._prefixes = prefixes
        self._closed = False
        self._pending: PendingCall | None = None
        self._busy = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self,
        request: Request,
        *,
        on_text: OnText | None = None,
        on_chunk: OnChunk | None = None,
    ) -> Outcome:
        """Return the outcome of a request.

        Its text also goes to ``on_text`` as it comes, and to ``on_chunk`` with the
        log-probabilities of its tokens, both in the calling thread.

        An interrupt (``KeyboardInterrupt``) while generating cancels the answer, and the outcome
        says so; a second one ends the worker.

        Raises:
            InputError: the prompt does not fit the context, or another request is running.
            IntegrityError: the artifact's bytes are not those of the fingerprint.
            UnsupportedError: the runtime is not installed.
        """
        if not self._busy.acquire(blocking=False):
            raise InputError("session-busy", "this session is answering another request")
        try:
            with self._process.guard.answering():
                outcome = self._ask(request, on_text, on_chunk)
            return self._process.guard.with_events(outcome)
        finally:
            self._pending = None
            self._process.leave(self)
            self._busy.release()

    def cancel(self) -> None:
        """Cancel the running answer, if there is one. Callable from any thread."""
        pending = self._pending
        if pending is not None:
            pending.cancel()

    def warm(self) -> float:
        """Load the model ahead of the first request; return what that took, in milliseconds.

        Raises:
            InputError: a request is running.
            IntegrityError: the artifact's bytes are not those of the fingerprint.
            UnsupportedError: the runtime is not installed.
            AdapterError: it cannot load the artifact.
            ResourceError: memory ran out.
        """
        if not self._busy.acquire(blocking=False):
            raise InputError("session-busy", "this session is answering another request")
        try:
            started = time.perf_counter()
            self._closed = False
            with self._process.guard.answering():
                self._process.ready()
            return (time.perf_counter() - started) * 1e3
        finally:
            self._busy.release()

    def release(self, *, budget_s: float = 2.0) -> Released:
        """Hand the model's memory back, for an application that goes into the background.

        The conversation's state is written to disk first, where states are kept there and the
        time suffices. The next request, or :meth:`warm`, loads the model again.

        Args:
            budget_s: How long it may take, in seconds.

        Raises:
            InputError: a request is running (cancel it first), or the budget is no time.
        """
        if not 0 <= budget_s < math.inf:
            raise InputError(
                "request-invalid",
                f"budget_s is a number of seconds from 0 on, not {budget_s!r}",
                context={"field": "budget_s"},
            )
        if not self._busy.acquire(blocking=False):
            raise InputError("session-busy", "this session is answering; cancel that first")
        try:
            return self._process.release(budget_s)
        finally:
            self._busy.release()

    def close(self) -> None:
        """End the worker; the conversation's state is written where states are kept on disk."""
        if self._prefixes is not None and self._prefixes.disk_bytes:
            self._persist()
        self._closed = True
        if self._process.leave(self):
            self.cancel()  # other sessions go on with the worker
        else:
            self._process.end()

    def _persist(self) -> None:
        if not self._process.resident or not self._busy.acquire(blocking=False):
            return
        try:
            with self._process.guard.answering():
                worker = self._process.ready()
                worker.call("persist", None, int, timeout_s=_PERSIST_TIMEOUT_S)
        except EdgewiseError:
            pass  # it would only have saved time
        finally:
            self._busy.release()

    @property
    def resident(self) -> bool:
        """Return whether the model is in memory."""
        return self._process.resident

    @property
    def worker_pid(self) -> int | None:
        """Return the process id of the worker, while there is one."""
        worker = self._process.worker
        return worker.pid if worker is not None else None

    def _ask(self, request: Request, on_text: OnText | None, on_chunk: OnChunk | None) -> Outcome:
        clock = Clock()
        self._closed = False
        decision = self._decide(request, self._read_state(), resident=self._process.resident)
        provenance = self._provenance(decision)
        if decision.route is not Route.LOCAL:
            return Declined(reasons=decision.reasons, provenance=provenance)
        pieces: list[str] = []

        def take(notice: Notice) -> None:
            if isinstance(notice, Chunk):
                if not pieces and notice.text:
                    clock.first_text()
                pieces.append(notice.text)
                if on_text is not None and notice.text:
                    on_text(notice.text)
                if on_chunk is not None:
                    on_chunk(notice)

        worker = None
        try:
            worker = self._process.ready(self)
            clock.ready()
            generated = self._generate(worker, request, take, clock)
        except (AdapterError, ResourceError) as error:
            failure = _CLOSED if self._closed else self._process.guard.explain(error)
            if failure.code not in ANSWERS_FAULTS:
                self._process.failed(worker, self)
            return Failed(
                error=failure.to_dict(), partial_text="".join(pieces), provenance=provenance
            )
        if self._closed and generated.finish is FinishReason.CANCELLED:
            return Failed(
                error=_CLOSED.to_dict(), partial_text="".join(pieces), provenance=provenance
            )
        return completed(
            "".join(pieces), generated, clock, provenance, app_peak_bytes=peak_resident_bytes()
        )

    def _generate(
        self,
        worker: WorkerProcess,
        request: Request,
        take: Callable[[Notice], None],
        clock: Clock,
    ) -> Generated:
        params = GenerateParams(
            messages=request.messages,
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            sampling=_seeded(request.sampling),
            stop=request.stop,
            deadline_s=clock.left_s(request.deadline_s),
            context_policy=request.context_policy,
            structure=request.structure,
            tools=request.tools,
            tool_choice=request.tool_choice,
            logprobs=request.logprobs,
            echo=request.echo,
            signals=request.signals,
            speculate=request.speculate,
        )
        pending = self._pending = worker.start("generate", params)
        try:
            return pending.result(Generated, notice=Notice, on_notice=take)
        except KeyboardInterrupt:
            pending.cancel()
        except EdgewiseError:
            raise  # the worker's own word: the call has ended
        except BaseException:
            # Whoever takes the text has failed: nobody waits for the rest of this answer.
            self._abandon(worker, pending)
            raise
        try:
            # Should the interrupt have hit in the instant after the answer was taken from the
            # pipe, nothing follows: then this ends as a hung worker, not as a wait.
            return pending.result(
                Generated, notice=Notice, on_notice=take, timeout_s=_CANCEL_TIMEOUT_S
            )
        except KeyboardInterrupt:
            self._process.failed(worker, self)
            raise

    def _abandon(self, worker: WorkerProcess, pending: PendingCall) -> None:
        try:
            pending.cancel()
            pending.result(Generated, notice=Notice, timeout_s=_CANCEL_TIMEOUT_S)
        except EdgewiseError:
            self._process.failed(worker, self)

    def _provenance(self, decision: RouteDecision) -> Provenance:
        deployment = self.bundle.deployment
        return Provenance(
            route=decision,
            fingerprint=self.bundle.fingerprint,
            policy_version=decision.policy_version,
            runtime=f"{deployment.runtime.name} {deployment.runtime.version}",
            device=self._device,
            template=self.bundle.text.template_name,
        )


def _seeded(sampling: Sampling) -> Sampling:
    if sampling.temperature == 0 or sampling.seed is not None:
        return sampling
    return Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=secrets.randbits(63),
    )
