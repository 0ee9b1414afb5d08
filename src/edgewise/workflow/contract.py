"""Run the engine contract on a built artifact, and keep the report as evidence."""

from __future__ import annotations

import msgspec

from edgewise.testing import ContractReport, run_contract
from edgewise.workflow.artifacts import find_built, label, subject
from edgewise.workflow.context import Context, Step

__all__ = ["check_contract"]

_CONTEXT = 160


def check_contract(context: Context, name: str) -> ContractReport:
    """Return the contract's verdicts on a build.

    The context is small, so that its edge is reached; one thread keeps the order of sums.

    Raises:
        InputError: nothing of that name has been built.
        UnsupportedError: its runtime cannot run here.
        AdapterError: it cannot be loaded, or its worker died.
    """
    receipt = find_built(context, name)
    what = subject(context, receipt, context_length=_CONTEXT)
    config = msgspec.structs.replace(what.run_config, threads=1)
    if not what.text_only:  # whose bundle fixes how many tokens a step takes
        config = msgspec.structs.replace(config, batch_tokens=32)
    context.report(Step(stage="contract", status="start", message=label(receipt)))
    report = run_contract(
        what.runtime, what.artifact, config, end_token_ids=what.text.end_token_ids
    )
    figures = msgspec.to_builtins(report)
    context.record("contract", receipt.fingerprint, {**figures, "passed": report.passed})
    return report
