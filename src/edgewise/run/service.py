"""The session's worker: one engine, loaded once, answering a request at a time or several."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgewise.core.recipe import LoadMode
from edgewise.device.process import give_back_free_memory, resident_bytes
from edgewise.errors import AdapterError, EdgewiseError, IntegrityError, UnsupportedError
from edgewise.run.messages import (
    Generated,
    GenerateParams,
    Loaded,
    LoadParams,
    PrefixSettings,
    RuntimeFacts,
    Shrunk,
)
from edgewise.run.native import NativeGenerator
from edgewise.run.pairing import load_draft, size_ratio, with_draft
from edgewise.runtimes import registry
from edgewise.runtimes.host import Emit, Method
from edgewise.runtimes.launch import look_for, start_worker
from edgewise.runtimes.protocol import RuntimeAdapter, SharedEngine, TextEngine
from edgewise.runtimes.reports import Capabilities
from edgewise.runtimes.stepped import refuse_parallel
from edgewise.store.home import Home

if TYPE_CHECKING:
    from edgewise.run.draft_model import DraftModel
    from edgewise.run.lanes import Lane, SequencePool
    from edgewise.run.prefixes import PrefixCache
    from edgewise.runtimes.protocol import Engine
    from edgewise.runtimes.reports import MemoryReport, PartitionReport

__all__ = ["SERVICE", "EngineService", "SessionService", "capabilities_in_worker"]

SERVICE = "edgewise.run.service:SessionService"


class EngineService:
    """Loads an engine and reports on it; the base of every service that runs one."""

    def __init__(self) -> None:
        self._engine: Engine | TextEngine | None = None
        self._draft: Engine | None = None

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            "capabilities": Method(str, self._capabilities),
            "prepare": Method(str, self._prepare),
            "facts": Method(str, self._facts),
            "load": Method(LoadParams, self._load),
            "memory": Method(None, self._memory),
            "partition": Method(None, self._partition),
        }

    @property
    def any_engine(self) -> Engine | TextEngine:
        """Return the loaded engine, of either kind.

        Raises:
            AdapterError: nothing is loaded yet.
        """
        if self._engine is None:
            raise AdapterError(
                "engine-not-loaded", "the worker was asked before a model was loaded"
            )
        return self._engine

    @property
    def engine(self) -> Engine:
        """Return the loaded engine, for what needs its logits.

        Raises:
            AdapterError: nothing is loaded yet.
            UnsupportedError: the engine gives text only.
        """
        engine = self.any_engine
        if isinstance(engine, TextEngine):
            raise UnsupportedError(
                "engine-text-only", "this runtime gives text only; its logits are out of reach"
            )
        return engine

    @property
    def draft(self) -> Engine | None:
        """Return the draft model's engine, where one was loaded."""
        return self._draft

    def cancel(self) -> None:
        """Abort the running call."""
        for engine in (self._engine, self._draft):
            if engine is not None:
                engine.cancel()

    def clear_cancel(self) -> None:
        """Get ready for the next call."""
        for engine in (self._engine, self._draft):
            if engine is not None:
                engine.clear_cancel()

    def _capabilities(self, runtime: str, _emit: Emit) -> Capabilities:
        return registry.adapter(runtime).capabilities()

    def _prepare(self, runtime: str, _emit: Emit) -> None:
        """Load the native library, so that loading the artifact is all that is left."""
        registry.adapter(runtime).prepare()

    def _facts(self, runtime: str, _emit: Emit) -> RuntimeFacts:
        adapter = registry.adapter(runtime)
        return RuntimeFacts(
            name=adapter.name, version=adapter.version(), operators=adapter.operators_digest()
        )

    def _load(self, params: LoadParams, _emit: Emit) -> Loaded:
        started = time.perf_counter()
        self.loading()
        runtime = registry.adapter(params.runtime)
        _require_file(params.artifact, "the active model's file")
        if params.draft is not None:
            _require_file(params.draft, "the draft model's file")
        _check_load_mode(runtime, params.run_config.load_mode)
        refuse_parallel(runtime.name, params.run_config, getattr(runtime, "parallel_max", 1))
        engine = runtime.engine(Path(params.artifact), params.run_config)
        if params.draft is not None:
            self._draft = load_draft(runtime, engine, params)
        self._engine = engine
        self.loaded(params)
        return Loaded(
            vocab_size=None if isinstance(engine, TextEngine) else engine.vocab_size,
            load_ms=(time.perf_counter() - started) * 1e3,
        )

    def loading(self) -> None:
        """Begin what can go on while the engine loads."""

    def loaded(self, params: LoadParams) -> None:
        """Prepare what a subclass needs beside the engine."""

    def _memory(self, _params: None, _emit: Emit) -> MemoryReport:
        return with_draft(self.any_engine.memory(), self._draft)

    def _partition(self, _params: None, _emit: Emit) -> PartitionReport:
        return self.any_engine.partition()


def _require_file(path: str, what: str) -> None:
    if not Path(path).exists():
        raise IntegrityError(
            "artifact-missing",
            f"{what} is gone",
            context={"path": path},
            hint="set it up again: edgewise up",
        )


def _check_load_mode(runtime: RuntimeAdapter, asked: LoadMode) -> None:
    modes = runtime.load_modes()
    if asked not in modes:
        raise UnsupportedError(
            "load-mode-unsupported",
            f"{runtime.name} cannot load weights by {asked}",
            context={"asked": asked, "offered": list(modes)},
            hint=f"it loads them by: {', '.join(modes)}",
        )


class SessionService(EngineService):
    """Generates answers.

    Template engine and sampler are imported in a thread while the model loads, which needs no
    interpreter.
    """

    lane_methods = frozenset({"generate"})
    _importing: threading.Thread | None = None
    _native: NativeGenerator | None = None
    _saved: PrefixCache | None = None
    _pool: SequencePool | None = None

    def methods(self) -> dict[str, Method]:
        """Return the methods by name."""
        return {
            **super().methods(),
            "generate": Method(GenerateParams, self._generate),
            "persist": Method(None, self._persist),
            "shrink": Method(None, self._shrink, beside=True),
            "grow": Method(None, self._grow, beside=True),
        }

    def loading(self) -> None:
        """Begin importing what answering takes."""
        self._importing = threading.Thread(target=_import_the_rest, daemon=True)
        self._importing.start()

    def loaded(self, params: LoadParams) -> None:
        """Compile the template and prepare the decode loop."""
        if params.text is None:
            raise AdapterError("load-incomplete", "a session needs the model's text settings")
        if self._importing is not None:
            self._importing.join()
        if isinstance(self.any_engine, TextEngine):
            self._native = NativeGenerator(self.any_engine)
            return
        from edgewise.run.generation import Generator  # noqa: PLC0415 - numpy is in workers only

        text, engine = params.text, self.engine
        prefixes = self._saved = _prefixes(params.prefixes, shared=params.run_config.parallel > 1)
        if isinstance(engine, SharedEngine):
            from edgewise.run.lanes import SequencePool  # noqa: PLC0415 - few sessions need it

            self._pool = SequencePool(
                engine.sequences, lambda sequence: Generator(sequence, text, prefixes)
            )
            return
        self._generator = Generator(engine, text, prefixes, self._draft_model(params))

    def _draft_model(self, params: LoadParams) -> DraftModel | None:
        if self._draft is None or params.draft is None:
            return None
        from edgewise.run.draft_model import DraftModel  # noqa: PLC0415 - few sessions need it

        ratio = size_ratio(Path(params.draft), Path(params.artifact))
        return DraftModel(engine=self._draft, size_ratio=ratio)

    def lanes(self) -> Sequence[Lane]:
        """Return a lane for each sequence of the loaded engine; none where it has one."""
        if self._pool is None:
            return ()
        from edgewise.run.lanes import Lane  # noqa: PLC0415 - few sessions need it

        return [Lane(self._pool) for _ in range(len(self._pool))]

    def _generate(self, params: GenerateParams, emit: Any) -> Generated:
        if self._native is not None:
            return self._native.generate(params, emit)
        return self._generator.generate(params, emit)

    def _persist(self, _params: None, _emit: Emit) -> int:
        """Write the running conversations' states to disk; return how many tokens lie there now."""
        if self._pool is not None:
            return self._pool.persist()
        return 0 if self._native is not None else self._generator.persist()

    def _shrink(self, _params: None, _emit: Emit) -> Shrunk:
        """Drop the states in memory, keep none until ``grow``, and give free memory back."""
        before = resident_bytes()
        dropped = 0 if self._saved is None else self._saved.shrink()
        give_back_free_memory()
        return Shrunk(dropped_bytes=dropped, before_bytes=before, after_bytes=resident_bytes())

    def _grow(self, _params: None, _emit: Emit) -> None:
        """Keep states in memory again."""
        if self._saved is not None:
            self._saved.grow()


def _prefixes(settings: PrefixSettings | None, *, shared: bool) -> PrefixCache | None:
    if settings is None or not (settings.memory_bytes or settings.disk_bytes):
        return None
    from edgewise.run.prefix_files import PrefixFiles  # noqa: PLC0415 - few sessions need it
    from edgewise.run.prefixes import PrefixCache  # noqa: PLC0415

    files = None
    if settings.disk_bytes:
        home = Home(Path(settings.home))
        files = PrefixFiles(home, settings.fingerprint, settings.disk_bytes)
    if shared:
        from edgewise.run.lanes import SharedPrefixes  # noqa: PLC0415 - few sessions need it

        return SharedPrefixes(settings.memory_bytes, files)
    return PrefixCache(settings.memory_bytes, files)


def _import_the_rest() -> None:
    from edgewise.models import template_render  # noqa: F401, PLC0415
    from edgewise.run import generation  # noqa: F401, PLC0415


def capabilities_in_worker(runtime: str) -> Capabilities:
    """Return what a runtime can do here, found out in a process of its own.

    A library that crashes on load takes its worker down, not the caller; the result says so.

    Raises:
        UnsupportedError: no such runtime is registered.
        ResourceError: the process cannot be started.
    """
    try:
        presence = look_for(registry.adapter(runtime))
    except AdapterError as error:
        return _broken(runtime, error)
    if presence.absent:
        return _none(runtime, presence.reason, missing=presence.missing)
    try:
        worker = start_worker(runtime, SERVICE)
    except EdgewiseError as error:
        return _broken(runtime, error)
    try:
        found = worker.call("capabilities", runtime, Capabilities)
    except EdgewiseError as error:
        return _broken(runtime, error)
    finally:
        worker.close()
    return presence.narrow(found)


def _broken(runtime: str, error: EdgewiseError) -> Capabilities:
    said = error.context.get("native_log") or []
    reason = f"{error.message}: {said[-1]}" if said else error.message
    return msgspec.structs.replace(_none(runtime, reason), broken=True)


def _none(runtime: str, reason: str, *, missing: tuple[str, ...] = ()) -> Capabilities:
    return Capabilities(
        runtime=runtime,
        version=None,
        can_export=False,
        can_run=False,
        reason=reason,
        missing=missing,
    )
