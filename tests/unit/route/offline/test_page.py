"""The examples on the queue's page run and print what they say."""

from __future__ import annotations

from tests.docs.pages import DOCS, examples
from tests.docs.test_examples import run


def test_the_examples_of_the_page() -> None:
    run("offline-queue.md", examples(DOCS / "offline-queue.md", with_model=False), {})
