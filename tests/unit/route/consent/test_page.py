"""The example of the page about consent runs and prints what it says."""

from __future__ import annotations

import doctest

from tests.docs.pages import DOCS, examples


def test_the_example_of_the_page() -> None:
    page = DOCS / "consent.md"
    text = examples(page, with_model=False)
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, page.name, 0)
    assert test.examples
    report: list[str] = []
    result = doctest.DocTestRunner().run(test, out=report.append)
    assert result.failed == 0, "\n".join(report)
