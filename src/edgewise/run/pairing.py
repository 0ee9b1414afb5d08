"""A draft model beside a model in one worker: whether the two go together, and loading it.

That both have the same vocabulary is established, by digest, when a deployment is set up; what is
checked here is what only loaded engines tell.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgewise.core.ledger import DraftMemory
from edgewise.core.recipe import RunConfig
from edgewise.errors import InputError, UnsupportedError
from edgewise.runtimes.protocol import TextEngine, VerifyingEngine

if TYPE_CHECKING:
    from edgewise.run.messages import LoadParams
    from edgewise.runtimes.protocol import Engine, RuntimeAdapter
    from edgewise.runtimes.reports import MemoryReport

__all__ = ["load_draft", "refuse_draft", "size_ratio", "with_draft"]


def refuse_draft(adapter: RuntimeAdapter, run_config: RunConfig) -> None:
    """Refuse a draft model where a runtime or a run configuration has no place for one.

    Raises:
        UnsupportedError: it has none; says why.
    """
    why, hint = "", ""
    if not getattr(adapter, "drafts", False):
        why = f"{adapter.name} cannot load a draft model beside a model"
        hint = "llamacpp and ik can"
    elif run_config.parallel > 1:
        why = f"a draft model goes with one request at a time, not with {run_config.parallel}"
        hint = "leave --parallel or the draft out"
    if why:
        raise UnsupportedError("draft-unsupported", why, hint=hint)


def load_draft(runtime: RuntimeAdapter, engine: Engine | TextEngine, params: LoadParams) -> Engine:
    """Load the draft model for a loaded model; where that fails, the model is freed.

    Raises:
        UnsupportedError: the model cannot verify guesses, or the draft cannot be cut back.
        InputError: they have vocabularies of different sizes.
        AdapterError: the runtime cannot load it.
    """
    assert params.draft is not None
    draft: Engine | TextEngine | None = None
    try:
        refuse_draft(runtime, params.run_config)
        _require_verifying(engine, "the model")
        draft = runtime.engine(Path(params.draft), params.run_config)
        return _require_pair(engine, draft)
    except BaseException:
        for loaded in (draft, engine):
            if loaded is not None:
                loaded.close()
        raise


def _require_verifying(engine: Engine | TextEngine, which: str) -> VerifyingEngine:
    if isinstance(engine, VerifyingEngine) and engine.verify_tokens > 1:
        return engine
    raise UnsupportedError(
        "draft-unsupported",
        f"{which} keeps only a window of its context, or is run so that guesses cannot be verified",
        hint="a draft needs a model without a sliding window; with ik no flash attention",
    )


def _require_pair(engine: Engine | TextEngine, draft: Engine | TextEngine) -> Engine:
    main = _require_verifying(engine, "the model")
    found = _require_verifying(draft, "the draft model")
    if found.vocab_size != main.vocab_size:
        raise InputError(
            "draft-vocabulary",
            f"the draft model gives {found.vocab_size} logits a step and the model "
            f"{main.vocab_size}",
            hint="use a draft of the same family, with the same tokenizer",
        )
    return found


def with_draft(report: MemoryReport, draft: Engine | None) -> MemoryReport:
    """Return a report on the model's memory, with the draft model's lines."""
    if draft is None:
        return report
    own = draft.memory()
    return msgspec.structs.replace(
        report,
        draft=DraftMemory(
            weights_bytes=own.weights_bytes,
            kv_cache_bytes=own.kv_cache_bytes,
            workspace_bytes=own.workspace_bytes,
        ),
    )


def size_ratio(draft: Path, model: Path) -> float:
    """Return how large a draft's artifact is, in sizes of the model's."""
    return _size(draft) / max(1, _size(model))


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size
