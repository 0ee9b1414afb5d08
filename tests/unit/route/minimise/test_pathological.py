"""Text made to be slow to read is read in time linear in its length."""

from __future__ import annotations

import random
import time

import pytest

from edgewise.route.minimise import PlaceholderMap, default_detectors, fold, minimise, restore
from edgewise.route.minimise.forms import first_partial

DETECTORS = {d.name: d for d in default_detectors(contacts=["Anna M\u00fcller", "\u7530\u4e2d"])}
SIZE = 50_000

RANDOM = random.Random(7)
PAIRS = " ".join(f"0{RANDOM.randrange(10)}" for _ in range(SIZE))
TEXTS = {
    "digits": "7" * SIZE,
    "random digits": "".join(RANDOM.choice("0123456789") for _ in range(SIZE)),
    "single digits": " ".join(RANDOM.choice("0123456789") for _ in range(SIZE)),
    "pairs": PAIRS,
    "groups": " ".join(str(RANDOM.randrange(100, 1000)) for _ in range(SIZE)),
    "signs": "@" * SIZE,
    "letters": "a" * SIZE,
    "letters and signs": "a@" * SIZE,
    "dots": "a." * SIZE + "@",
    "colons": "a:" * SIZE,
    "hex": "ab:12:" * SIZE,
    "slashes": "://" * SIZE,
    "urls": "a://b@" * SIZE,
    "plus": "+1" * SIZE,
    "brackets": "[EMAIL" * SIZE,
    "open": "[" * SIZE,
    "backslashes": "\\" * SIZE,
    "tags": "<a" * SIZE,
    "keys": "eyJ_" * SIZE,
    "more keys": "sk-" * SIZE,
    "dotted keys": "SG.a" * SIZE,
    "begins": "-----BEGIN PRIVATE KEY-----!" * (SIZE // 10),
    "passwords": "password" * SIZE,
    "assigned": "pass=" * SIZE,
    "ibans": "DE89 " * SIZE,
    "capitals": "AB12CD" * SIZE,
    "names": "Anna " * SIZE,
    "unspaced": "\u7530" * SIZE,
    "invisible": "\u200b" * SIZE + "a@x.org",
    "marks": "a" + "\u0301" * SIZE,
    "spelt": "a (at) " * SIZE,
    "quotes": '"' * SIZE + "@x.org",
}


def spent(text: str, name: str) -> float:
    begin = time.process_time()
    folded = fold(text)
    for _ in DETECTORS[name].find(folded):
        pass
    return time.process_time() - begin


@pytest.mark.parametrize("text", TEXTS)
def test_detectors_are_linear(text: str) -> None:
    small, large = TEXTS[text][: SIZE // 4], TEXTS[text][:SIZE]
    for name in DETECTORS:
        cost = spent(large, name)
        if cost > 1.0:  # a quadratic one would take 16 times as long for 4 times the text
            assert cost < 8 * spent(small, name), (name, cost)


@pytest.mark.parametrize("text", ["letters and signs", "pairs", "brackets", "keys", "names"])
def test_the_whole_is_bounded(text: str) -> None:
    begin = time.process_time()
    kept = PlaceholderMap()
    done = minimise({"p": TEXTS[text][:SIZE]}, ["p"], tuple(DETECTORS.values()), kept)
    out = done.fields["p"]
    assert isinstance(out, str)
    assert restore(out, kept) == TEXTS[text][:SIZE]
    assert time.process_time() - begin < 60


@pytest.mark.parametrize("text", ["brackets", "open", "backslashes", "tags", "slashes"])
def test_restoring_is_linear(text: str) -> None:
    begin = time.process_time()
    assert restore(TEXTS[text], PlaceholderMap()) == TEXTS[text]
    assert time.process_time() - begin < 10
    assert len(TEXTS[text]) - first_partial(TEXTS[text], 0) <= 64
