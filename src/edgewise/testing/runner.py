"""Run the contract in a worker of the runtime's environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgewise.core.recipe import KvType, RunConfig
from edgewise.run.messages import Loaded, LoadParams, RuntimeFacts
from edgewise.run.service import capabilities_in_worker
from edgewise.runtimes.launch import default_loading, start_worker
from edgewise.testing.report import SERVICE, ContractCheck, ContractParams, ContractReport

__all__ = ["run_contract"]

_TIMEOUT_S = 1800.0
_CONTEXT = 160


def run_contract(
    runtime: str,
    artifact: Path,
    run_config: RunConfig | None = None,
    *,
    end_token_ids: Sequence[int] = (),
) -> ContractReport:
    """Return the contract's verdicts on an artifact.

    Args:
        runtime: Name of the runtime.
        artifact: The artifact's file or folder.
        run_config: How to run it; by default one thread, the runtime's own KV format, and a
            small context, so that its edge is reached quickly.
        end_token_ids: The tokens that end an answer, where known.

    Raises:
        UnsupportedError: the runtime is not installed, or not known.
        AdapterError: the artifact cannot be loaded, or the worker died.
    """
    config = run_config or _default(runtime)
    worker = start_worker(runtime, SERVICE, run_config=config)
    try:
        worker.call(
            "load",
            LoadParams(runtime=runtime, artifact=str(artifact), run_config=config),
            Loaded,
            timeout_s=_TIMEOUT_S,
        )
        facts = worker.call("facts", runtime, RuntimeFacts)
        params = ContractParams(runtime=runtime, end_token_ids=tuple(end_token_ids))
        checks = worker.call("contract", params, list[ContractCheck], timeout_s=_TIMEOUT_S)
    finally:
        worker.close()
    return ContractReport(
        runtime=runtime,
        version=facts.version,
        artifact=artifact.name,
        run_config=config,
        checks=tuple(checks),
    )


def _default(runtime: str) -> RunConfig:
    capabilities = capabilities_in_worker(runtime)
    load_mode, huge_pages = default_loading(runtime)
    config = RunConfig(
        context_length=_CONTEXT,
        kv_type=KvType(capabilities.kv_types[0]) if capabilities.kv_types else KvType.F16,
        load_mode=load_mode,
        huge_pages=huge_pages,
    )
    if capabilities.text_only:  # whose bundle fixes how many tokens a step takes
        return config
    return msgspec.structs.replace(config, batch_tokens=32)
