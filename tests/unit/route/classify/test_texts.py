"""What a classifier sees of a text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.route.classify.texts import BUCKETS, READ_CHARACTERS, features, folded


@pytest.mark.parametrize(
    "text",
    [
        "PAY 1234 NOW",
        "pay\u200b 5678 n\u200dow",
        "\u202epay 0000 now\u202c",
        "\uff50\uff41\uff59\u3000\uff11\uff12\uff13\uff14\u3000\uff4e\uff4f\uff57",
        "pay\t\n 9999\r\n\u2028now",
        "\ufeffpay 12\u00ad34 now",
        "pay ٠١٢٣ now",
        "pay 12\x0034 now",
        "\ud800pay 1111 now",
    ],
    ids=["case", "zero-width", "bidi", "wide", "spaces", "marks", "arabic", "null", "surrogate"],
)
def test_what_looks_the_same_is_the_same(text: str) -> None:
    assert folded(text) == "pay 0000 now"
    assert features(text) == features("pay 0000 now")


def test_composed_and_decomposed_are_the_same() -> None:
    assert folded("cafe\u0301") == folded("cafe\u200b\u0301") == "caf\u00e9"


@pytest.mark.parametrize("text", ["", " \n", "\u200b\u202e", "\x00"], ids=["e", "s", "z", "n"])
def test_nothing_to_be_seen(text: str) -> None:
    assert folded(text) == ""
    assert features(text) == ()


@given(st.text())
def test_no_text_raises_and_features_are_sound(text: str) -> None:
    found = features(text)
    assert list(found) == sorted(set(found))
    assert all(0 <= bucket < BUCKETS for bucket in found)
    assert bool(found) == bool(folded(text))
    assert features(folded(text)) == found


@given(st.text())
def test_folding_once_is_enough(text: str) -> None:
    assert folded(folded(text)) == folded(text)


def test_of_a_long_text_both_ends_are_read() -> None:
    half = READ_CHARACTERS // 2
    long = "a" * half + "x" * 5_000_000 + "b" * half
    began = time.thread_time()
    assert folded(long) == "a" * half + " " + "b" * half
    assert time.thread_time() - began < 1  # of processor time; reading it all takes longer
    worst = features("\ufdfa" * 1_000_000)  # one character that folds into eighteen
    assert len(worst) < BUCKETS


def test_a_script_without_spaces_has_more_than_one_word() -> None:
    japanese = features("俳句を書いてください")
    assert len(japanese) > 5
    assert set(japanese) & set(features("手紙を書いてください"))
