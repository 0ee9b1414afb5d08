"""The example of the page on minimisation runs as it is written."""

from __future__ import annotations

import doctest

from tests.docs.pages import DOCS, examples


def test_the_example_of_the_page() -> None:
    text = examples(DOCS / "minimisation.md", with_model=False)
    test = doctest.DocTestParser().get_doctest(text, {}, "minimisation.md", None, 0)
    assert test.examples
    report: list[str] = []
    assert doctest.DocTestRunner().run(test, out=report.append).failed == 0, "".join(report)
