"""What a runtime must hold to, as checks that anybody's adapter can run.

>>> from edgewise.testing import run_contract
>>> report = run_contract("llamacpp", Path("model.gguf"))  # doctest: +SKIP
>>> report.passed  # doctest: +SKIP
True

:func:`check_engine` runs the same checks on an engine in this process.
"""

from edgewise.testing.contract import check_engine, check_text_engine
from edgewise.testing.report import ContractCheck, ContractReport, Verdict
from edgewise.testing.runner import run_contract

__all__ = [
    "ContractCheck",
    "ContractReport",
    "Verdict",
    "check_engine",
    "check_text_engine",
    "run_contract",
]
