"""The examples of the documentation run and print what they say."""

from __future__ import annotations

import doctest
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, examples

FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


def run(name: str, text: str, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
    assert test.examples, f"{name} has no examples"
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    result = runner.run(test, out=report.append)
    assert result.failed == 0, "\n".join(report)


@pytest.mark.parametrize("page", ["python.md", "concepts.md", "recipes.md"])
def test_examples_without_a_model(page: str) -> None:
    run(page, examples(DOCS / page, with_model=False), {})


@pytest.mark.model
@pytest.mark.slow
def test_examples_with_a_model(
    ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "copy"  # `up` writes, and the fixture is everybody's
    shutil.copytree(ready_home, home)
    monkeypatch.setenv("EDGEWISE_HOME", str(home))
    text = examples(DOCS / "python.md", with_model=True)
    assert "edgewise.up(offline=True)" in text
    # One example shows a home in which nothing is set up.
    text = text.replace("...     edgewise.open()\n", "...     edgewise.open(home=EMPTY)\n")
    run("python.md", text, {"EMPTY": tmp_path / "nothing"})
