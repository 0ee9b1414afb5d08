"""A session: a conversation partner over one deployment, in a worker process of its own.

Order of an answer: read the device's state, route, admit, verify the artifact, load, generate.
Nothing is loaded for a request that is declined. The artifact's digest is checked on every load,
while the worker starts up, and no native code reads the file before it has passed.

Invariants: every request ends in one outcome; after a crash, a hang or a cancel the next request
works; closing the session ends the worker.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import (
    Declined,
    Failed,
    Outcome,
    Provenance,
    Route,
    RouteDecision,
)
from edgewise.core.recipe import RunConfig
from edgewise.core.request import Request, Sampling
from edgewise.core.state import DeviceState
from edgewise.device.process import peak_resident_bytes
from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    InputError,
    IntegrityError,
    ResourceError,
)
from edgewise.run.accounting import Clock, completed
from edgewise.run.messages import (
    Chunk,
    Generated,
    GenerateParams,
    Loaded,
    LoadParams,
    Notice,
    PrefixSettings,
)
from edgewise.runtimes.launch import start_worker
from edgewise.runtimes.worker import IDLE_TIMEOUT_S, PendingCall, WorkerProcess
from edgewise.store.trees import digest_matches

__all__ = ["Decide", "OnChunk", "OnText", "Session"]

OnText = Callable[[str], None]
OnChunk = Callable[[Chunk], None]
# Named, not imported: what it needs (numpy, the template engine) stays in the worker.
_SERVICE = "edgewise.run.service:SessionService"
_LOAD_TIMEOUT_S = 600.0
# A cancel takes milliseconds; on a device that is starved of processor time, seconds.
_CANCEL_TIMEOUT_S = 20.0
_PERSIST_TIMEOUT_S = 10.0
# Failures of an answer, not of the engine: the worker goes on.
_ANSWERS_FAULT = frozenset({"structure-violated", "structure-broken", "summary-empty"})
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
        idle_timeout_s: Silence of the worker, in seconds, after which it counts as hung.
    """

    idle_timeout_s = IDLE_TIMEOUT_S

    def __init__(
        self,
        bundle: Bundle,
        artifact: Path,
        *,
        device: str,
        decide: Decide,
        read_state: Callable[[], DeviceState],
        prefixes: PrefixSettings | None = None,
    ) -> None:
        """Take what answers and what decides; nothing is loaded yet.

        Args:
            bundle: What answers.
            artifact: Its artifact, a file or a folder.
            device: Digest of the device, for provenance.
            decide: The router.
            read_state: Reads the device's state for the router.
            prefixes: Which states of the KV cache are kept between requests.
        """
        self.bundle = bundle
        self._artifact = artifact
        self._device = device
        self._decide = decide
        self._read_state = read_state
        self._prefixes = prefixes
        self._worker: WorkerProcess | None = None
        self._loaded = False
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
            return self._ask(request, on_text, on_chunk)
        finally:
            self._pending = None
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
            self._ready_worker()
            return (time.perf_counter() - started) * 1e3
        finally:
            self._busy.release()

    def close(self) -> None:
        """End the worker; the conversation's state is written where states are kept on disk."""
        if self._prefixes is not None and self._prefixes.disk_bytes:
            self._persist()
        self._closed = True
        self._end_worker()

    def _persist(self) -> None:
        if self._worker is None or not self._loaded or not self._busy.acquire(blocking=False):
            return
        try:
            self._worker.call("persist", None, type(None), timeout_s=_PERSIST_TIMEOUT_S)
        except EdgewiseError:
            pass  # it would only have saved time
        finally:
            self._busy.release()

    def _end_worker(self) -> None:
        worker, self._worker, self._loaded = self._worker, None, False
        if worker is not None:
            worker.close()

    @property
    def worker_pid(self) -> int | None:
        """Return the process id of the worker, while there is one."""
        return self._worker.pid if self._worker is not None else None

    def _ask(self, request: Request, on_text: OnText | None, on_chunk: OnChunk | None) -> Outcome:
        clock = Clock()
        self._closed = False
        resident = self._loaded and self._worker is not None and self._worker.alive
        decision = self._decide(request, self._read_state(), resident=resident)
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

        try:
            worker = self._ready_worker()
            clock.ready()
            generated = self._generate(worker, request, take, clock)
        except (AdapterError, ResourceError) as error:
            failure = _CLOSED if self._closed else error
            if failure.code not in _ANSWERS_FAULT:
                self._end_worker()
            return Failed(
                error=failure.to_dict(), partial_text="".join(pieces), provenance=provenance
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
            self._abandon(pending)
            raise
        try:
            # Should the interrupt have hit in the instant after the answer was taken from the
            # pipe, nothing follows: then this ends as a hung worker, not as a wait.
            return pending.result(
                Generated, notice=Notice, on_notice=take, timeout_s=_CANCEL_TIMEOUT_S
            )
        except KeyboardInterrupt:
            self._end_worker()
            raise

    def _abandon(self, pending: PendingCall) -> None:
        try:
            pending.cancel()
            pending.result(Generated, notice=Notice, timeout_s=_CANCEL_TIMEOUT_S)
        except EdgewiseError:
            self._end_worker()

    def _ready_worker(self) -> WorkerProcess:
        if self._worker is not None and self._loaded and self._worker.alive:
            return self._worker
        self._end_worker()
        deployment = self.bundle.deployment
        config = deployment.compute.run_config
        self._worker = worker = start_worker(
            deployment.runtime.name,
            _SERVICE,
            run_config=config,
            idle_timeout_s=self.idle_timeout_s,
        )
        preparing = worker.start("prepare", deployment.runtime.name)
        try:
            self._verify_artifact()
            preparing.result(type(None))
            worker.call("load", self._load_params(config), Loaded, timeout_s=_LOAD_TIMEOUT_S)
        except BaseException:
            self._end_worker()
            raise
        self._loaded = True
        return worker

    def _load_params(self, config: RunConfig) -> LoadParams:
        return LoadParams(
            runtime=self.bundle.deployment.runtime.name,
            artifact=str(self._artifact),
            run_config=config,
            text=self.bundle.text,
            prefixes=self._prefixes,
        )

    def _verify_artifact(self) -> None:
        expected = self.bundle.deployment.artifact.sha256
        if not self._artifact.exists():
            raise IntegrityError(
                "artifact-missing",
                "the active model's file is gone",
                context={"path": str(self._artifact)},
                hint="set it up again: edgewise up",
            )
        if not digest_matches(self._artifact, expected):
            raise IntegrityError(
                "artifact-corrupt",
                "the active model's file has changed since it was qualified",
                context={"path": str(self._artifact), "expected": expected},
                hint="set it up again: edgewise up",
            )

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
