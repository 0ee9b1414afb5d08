"""A worker process with one bundle's model in it: started when needed, verified, ended.

The artifact's digest is checked on every load, while the worker starts up, and no native code
reads the file before it has passed.

Several sessions may share it, each in a thread of its own. It is started once for all of them and
ends with the last; a worker that died is replaced by the first that notices.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from edgewise.core.bundle import Bundle
from edgewise.core.outcome import Event
from edgewise.core.release import Released
from edgewise.errors import EdgewiseError, IntegrityError
from edgewise.run.memory_guard import MemoryGuard
from edgewise.run.messages import Loaded, LoadParams, PrefixSettings
from edgewise.runtimes.launch import start_worker
from edgewise.runtimes.worker import WorkerProcess
from edgewise.store.trees import digest_matches

__all__ = ["ModelProcess"]

# Named, not imported: what it needs (numpy, the template engine) stays in the worker.
_SERVICE = "edgewise.run.service:SessionService"
_LOAD_TIMEOUT_S = 600.0


class ModelProcess:
    """The worker of a deployment.

    Attributes:
        guard: What it does when memory runs short.
    """

    def __init__(
        self,
        bundle: Bundle,
        artifact: Path,
        prefixes: PrefixSettings | None = None,
        *,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """Take what is loaded; nothing starts yet.

        Args:
            bundle: What answers.
            artifact: Its artifact, a file or a folder; a draft model's lies beside it.
            prefixes: Which states of the KV cache are kept between requests.
            on_event: Called with what was done because memory ran short, from another thread.
        """
        self.guard = MemoryGuard(prefixes, bundle.memory.kv_cache_bytes, on_event=on_event)
        self._bundle = bundle
        self._artifact = artifact
        self._draft = artifact.with_name(bundle.draft_name) if bundle.draft_name else None
        self._prefixes = prefixes
        self._worker: WorkerProcess | None = None
        self._loaded = False
        self._lock = threading.Lock()  # held while it starts; ending does not wait for that
        self._taking = threading.Lock()  # held while it is taken to be ended
        self._users_lock = threading.Lock()
        self._users: set[object] = set()
        self._suspect = False

    @property
    def worker(self) -> WorkerProcess | None:
        """Return the process, while there is one."""
        return self._worker

    @property
    def resident(self) -> bool:
        """Return whether the model is loaded and its process lives."""
        return self._loaded and self._worker is not None and self._worker.alive

    def ready(self, user: object = None) -> WorkerProcess:
        """Return the worker with the model loaded; start and load it when there is none.

        Args:
            user: Who uses it, until :meth:`leave`.

        Raises:
            IntegrityError: the artifact's bytes are not those of the fingerprint.
            UnsupportedError: the runtime is not installed.
            AdapterError: it cannot load the artifact.
            ResourceError: memory ran out or is about to, or the process cannot be started.
        """
        with self._lock:
            with self._users_lock:
                replaced = self._suspect and not self._users
                if user is not None:
                    self._users.add(user)
            worker = self._worker
            if worker is None or not self.resident or replaced:
                worker = self._start()
            return worker

    def _start(self) -> WorkerProcess:
        self.end()
        self.guard.check_room()
        began = time.perf_counter()
        deployment = self._bundle.deployment
        runtime, config = deployment.runtime.name, deployment.compute.run_config
        self._worker = worker = start_worker(runtime, _SERVICE, run_config=config)
        self.guard.watch(worker)
        params = LoadParams(
            runtime=runtime,
            artifact=str(self._artifact),
            run_config=config,
            text=self._bundle.text,
            prefixes=self._prefixes,
            draft=None if self._draft is None else str(self._draft),
        )
        preparing = worker.start("prepare", runtime)
        try:
            self._verify_artifact()
            preparing.result(type(None))
            worker.call("load", params, Loaded, timeout_s=_LOAD_TIMEOUT_S)
        except EdgewiseError as error:
            self.end()
            raise self.guard.explain(error) from error
        except BaseException:
            self.end()
            raise
        self._loaded = True
        self.guard.loaded((time.perf_counter() - began) * 1e3)
        return worker

    def release(self, budget_s: float) -> Released:
        """Hand the model's memory back within a time; the next request loads it again.

        Raises:
            InputError: it is answering.
        """
        worker = self._worker if self.resident else None
        released = self.guard.hand_back(worker, budget_s)
        if worker is not None:
            self._end(worker)
        return released

    def leave(self, user: object) -> bool:
        """Say that somebody no longer uses it; return whether others still do."""
        with self._users_lock:
            self._users.discard(user)
            return bool(self._users)

    def failed(self, worker: WorkerProcess | None, user: object) -> None:
        """End a worker that failed somebody.

        One that lives and answers others too goes on until they are done; one that was replaced
        meanwhile is left alone. ``None`` is one that did not come to be, and has ended.
        """
        others = self.leave(user)
        if worker is None or worker is not self._worker:
            return
        if others and self.resident:
            self._suspect = True
        else:
            self._end(worker)

    def end(self) -> None:
        """End the process, if there is one."""
        self._end()

    def _end(self, only: WorkerProcess | None = None) -> None:
        """End the process, or only a certain one: what was started in its place is another's."""
        with self._taking:
            worker = self._worker
            if only is not None and only is not worker:
                return
            self.guard.unwatch()
            self._worker, self._loaded, self._suspect = None, False, False
        if worker is not None:
            worker.close()

    def _verify_artifact(self) -> None:
        deployment = self._bundle.deployment
        _verify(self._artifact, deployment.artifact.sha256, "the active model's file")
        if self._draft is not None and deployment.draft is not None:
            _verify(self._draft, deployment.draft.artifact.sha256, "the draft model's file")


def _verify(path: Path, expected: str, what: str) -> None:
    hint = "set it up again: edgewise up"
    if not path.exists():
        raise IntegrityError(
            "artifact-missing", f"{what} is gone", context={"path": str(path)}, hint=hint
        )
    if not digest_matches(path, expected):
        raise IntegrityError(
            "artifact-corrupt",
            f"{what} has changed since it was qualified",
            context={"path": str(path), "expected": expected},
            hint=hint,
        )
