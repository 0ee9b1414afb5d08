"""What the tests of structured output share."""

from __future__ import annotations

import pytest
from tests.unit.run.structure.toy import END, TURN, ToyEngine

from edgewise.run.structure import Constrainer


@pytest.fixture(scope="session")
def constrainer() -> Constrainer:
    return Constrainer(ToyEngine(), [END, TURN])  # type: ignore[arg-type]
