"""What a runtime must hold to, as checks that anybody's adapter can run.

>>> from edgewise.testing import run_contract
>>> report = run_contract("llamacpp", Path("model.gguf"))  # doctest: +SKIP
>>> report.passed  # doctest: +SKIP
True

:func:`check_engine` runs the same checks on an engine in this process; it needs numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgewise.testing.report import ContractCheck, ContractReport, Verdict
from edgewise.testing.runner import run_contract

if TYPE_CHECKING:
    from edgewise.testing.contract import check_engine, check_text_engine

__all__ = [
    "ContractCheck",
    "ContractReport",
    "Verdict",
    "check_engine",
    "check_text_engine",
    "run_contract",
]


def __getattr__(name: str) -> Any:
    if name in {"check_engine", "check_text_engine"}:
        from edgewise.testing import contract  # noqa: PLC0415 - numpy is not always there

        return getattr(contract, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
