"""The examples of the documentation run and print what they say."""

from __future__ import annotations

import doctest
import shutil
from pathlib import Path
from typing import Any

import pytest

import edgewise
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


@pytest.fixture
def home(ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "copy"  # `up` writes, and the fixture is everybody's
    shutil.copytree(ready_home, copy)
    monkeypatch.setenv("EDGEWISE_HOME", str(copy))
    return copy


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_examples_with_a_model(tmp_path: Path) -> None:
    text = examples(DOCS / "python.md", with_model=True)
    assert "edgewise.up(offline=True)" in text
    # One example shows a home in which nothing is set up.
    text = text.replace("...     edgewise.open()\n", "...     edgewise.open(home=EMPTY)\n")
    run("python.md", text, {"EMPTY": tmp_path / "nothing"})


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("page", ["memory.md", "structured-output.md"])
def test_examples_of_a_page_with_a_model(page: str) -> None:
    run(page, examples(DOCS / page, with_model=True), {})


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("page", ["tools.md", "context.md", "speed.md", "routing.md"])
def test_scripts_with_a_model(page: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(examples(DOCS / page, with_model=True), page, "exec"), names)
    if page != "speed.md":  # whose script asks nothing
        assert isinstance(names["outcome"], edgewise.Completed)
