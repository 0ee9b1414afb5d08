"""The sampler against the rules written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgewise.core.request import Sampling
from edgewise.run.sampler import Sampler

logits_arrays = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-30, 30, width=32))


def by_hand(logits: np.ndarray, rules: Sampling) -> dict[int, float]:
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    if rules.top_k:
        order = order[: rules.top_k]
    top = float(logits[order[0]])
    weight = {i: np.exp((float(logits[i]) - top) / rules.temperature) for i in order}
    kept = [i for i in order if weight[i] >= rules.min_p]
    total = sum(weight[i] for i in kept)
    nucleus, reached = [], 0.0
    for i in kept:
        nucleus.append(i)
        reached += weight[i] / total
        if rules.top_p < 1 and reached >= rules.top_p:
            break
    total = sum(weight[i] for i in nucleus)
    return {i: weight[i] / total for i in nucleus}


@given(
    logits=logits_arrays,
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 70),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    seed=st.integers(0, 2**63 - 1),
)
def test_only_allowed_tokens_are_drawn(logits, temperature, top_k, top_p, min_p, seed) -> None:
    rules = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    ids, probabilities = Sampler(rules).distribution(logits)
    assert probabilities.sum() == pytest.approx(1)
    assert (np.diff(probabilities) <= 1e-12).all()
    # Ties at a cut-off may fall either way; the probabilities kept are the same.
    expected = sorted(by_hand(logits, rules).values(), reverse=True)
    if len(expected) == len(ids):
        np.testing.assert_allclose(probabilities, expected, rtol=1e-5, atol=1e-9)
    else:
        assert abs(len(expected) - len(ids)) <= 1
    assert Sampler(rules)(logits) in set(ids.tolist())


def test_greedy_takes_the_highest_and_the_first_of_equals() -> None:
    assert Sampler(Sampling())(np.array([0.5, 2, 2, -1], dtype=np.float32)) == 1


def test_the_same_seed_draws_the_same() -> None:
    logits = np.random.default_rng(0).normal(size=100).astype(np.float32)
    draws = [
        [sampler(logits) for _ in range(20)]
        for sampler in (Sampler(Sampling(temperature=1, seed=5)) for _ in range(2))
    ]
    assert draws[0] == draws[1]
    other = Sampler(Sampling(temperature=1, seed=6))
    assert draws[0] != [other(logits) for _ in range(20)]


def test_frequencies_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    sampler = Sampler(Sampling(temperature=1, seed=1))
    counts = np.bincount([sampler(logits) for _ in range(20_000)], minlength=4)
    np.testing.assert_allclose(counts / 20_000, [0.5, 0.3, 0.15, 0.05], atol=0.015)


@pytest.mark.parametrize("temperature", [1e-6, 100])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    logits = np.array([1000, -1000, 999], dtype=np.float32)
    ids, probabilities = Sampler(Sampling(temperature=temperature, seed=1)).distribution(logits)
    assert np.isfinite(probabilities).all()
    assert ids[0] == 0


def test_logits_are_not_changed() -> None:
    logits = np.array([3, 1, 2], dtype=np.float32)
    before = logits.copy()
    Sampler(Sampling(temperature=0.7, top_k=2, seed=3))(logits)
    np.testing.assert_array_equal(logits, before)


def test_minus_infinity_is_never_drawn() -> None:
    logits = np.array([0, -np.inf, 0], dtype=np.float32)
    sampler = Sampler(Sampling(temperature=2, seed=3))
    assert {sampler(logits) for _ in range(200)} == {0, 2}
