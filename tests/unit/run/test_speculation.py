"""When a guess is made, and what is learned from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgewise.run.speculation import PassCosts, PromptLookup

RUN = list(range(1, 13))


def test_what_followed_is_guessed() -> None:
    lookup = PromptLookup([*RUN, 99, *RUN[:5]], PassCosts(slope=0.05))
    assert lookup.guess(100)[:3] == [6, 7, 8]
    assert lookup.guess(2) == [6, 7]
    assert lookup.guess(0) == []


def test_the_latest_place_counts() -> None:
    lookup = PromptLookup([1, 2, 3, 4, 7, 1, 2, 3, 4, 8, 1, 2, 3, 4], PassCosts(slope=0.05))
    assert lookup.guess(1) == [8]


def test_nothing_known_is_no_guess() -> None:
    lookup = PromptLookup(RUN, PassCosts(slope=0.05))
    assert lookup.guess(10) == []
    assert lookup.result() is None
    assert PromptLookup([1], PassCosts(slope=0.05)).guess(10) == []


def test_dear_passes_are_not_worth_a_guess() -> None:
    lookup = PromptLookup([*RUN, 99, *RUN[:5]], PassCosts(slope=2.0))
    assert lookup.guess(10) == []


def test_disappointment_ends_guessing_and_a_long_match_begins_it_again() -> None:
    text = [*range(100, 130), 7, 7]
    lookup = PromptLookup(text, PassCosts(slope=0.3))
    for token in text[:5]:
        lookup.extend(token)
    for _ in range(4):
        if guess := lookup.guess(10):
            lookup.learn(len(guess), 0)
    assert lookup.guess(10) == []
    for token in text[5:20]:
        lookup.extend(token)
    assert lookup.guess(10)[:2] == [120, 121]


@given(st.lists(st.integers(0, 3), min_size=40, max_size=300), st.floats(0.05, 1.5))
def test_what_may_be_lost_is_bounded(answer: list[int], slope: float) -> None:
    """Every guess is wrong: the answer loses a few steps at most."""
    lookup = PromptLookup([1, 2, 3, 0] * 20, PassCosts(slope=slope))
    lost = 0.0
    for token in answer:
        if guess := lookup.guess(15):
            lookup.learn(len(guess), 0)
            lost += slope * len(guess)
        lookup.extend(token)
    assert lost <= 1.6 + 4.0 + 0.012 * len(answer) + 1e-6


def test_what_it_came_to() -> None:
    lookup = PromptLookup(RUN, PassCosts())
    lookup.learn(7, 7)
    lookup.learn(3, 1)
    found = lookup.result()
    assert found is not None
    assert (found.guessed, found.accepted, found.steps) == (10, 8, 2)


@given(st.lists(st.integers(1, 3), max_size=60), st.integers(0, 20))
def test_a_guess_is_a_piece_of_what_was_said(tokens: list[int], most: int) -> None:
    guess = PromptLookup(tokens, PassCosts(slope=0.01)).guess(most)
    assert len(guess) <= most
    whole = ",".join(map(str, tokens))
    assert ",".join(map(str, guess)) in whole


def test_costs_are_learned() -> None:
    costs = PassCosts()
    for _ in range(40):
        costs.single(0.004)
        costs.several(8, 0.012)
    assert abs(costs.slope - (3 - 1) / 7) < 0.02
    assert costs.gain(7, 0.9) > 1.5
    assert costs.gain(3, 0.05) < 1
