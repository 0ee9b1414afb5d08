"""The figures of parity, against values worked out by hand, and the gate that judges them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise.core.formats import Activation, OfferedFormat, parse_format
from edgewise.core.outcome import FinishReason
from edgewise.core.quantity import Measured, Unknown
from edgewise.errors import InputError
from edgewise.qualify.distance import distance as distance_of
from edgewise.qualify.distance import reading
from edgewise.qualify.parity import SideBySide, _side_by_side
from edgewise.qualify.parity_gate import GATES, gate_for, judge
from edgewise.qualify.parity_messages import Answer, Distance


def store(folder: Path, name: str, rows: list[list[float]]) -> None:
    np.save(folder / f"{name}.npy", np.log(np.asarray(rows, dtype=np.float32)))


def between(folder: Path, windows: tuple[tuple[int, ...], ...]) -> Distance:
    return distance_of(folder / "first.npy", folder / "second.npy", windows)


def test_the_figures_of_two_positions(tmp_path: Path) -> None:
    store(tmp_path, "first", [[0.5, 0.25, 0.25], [0.9, 0.05, 0.05]])
    store(tmp_path, "second", [[0.25, 0.5, 0.25], [0.9, 0.05, 0.05]])
    found = between(tmp_path, ((7, 0, 1),))
    first_kl = 0.5 * math.log(2) - 0.25 * math.log(2)
    assert found.positions == 2
    assert found.kl_mean_nats.value == pytest.approx(first_kl / 2, abs=1e-6)
    assert found.kl_max_nats.value == pytest.approx(first_kl, abs=1e-6)
    assert found.top1_agreement.value == 0.5
    assert found.perplexity.value == pytest.approx((1 / (0.5 * 0.05)) ** 0.5, rel=1e-5)
    assert found.other_perplexity.value == pytest.approx((1 / (0.25 * 0.05)) ** 0.5, rel=1e-5)


def test_a_window_starts_anew_and_padding_of_the_vocabulary_does_not_count(tmp_path: Path) -> None:
    store(tmp_path, "first", [[0.6, 0.4], [0.7, 0.3]])
    store(tmp_path, "second", [[0.6, 0.4, 1e-9], [0.7, 0.3, 1e-9]])
    found = between(tmp_path, ((0, 0), (1, 1)))
    assert found.kl_mean_nats.value == pytest.approx(0, abs=1e-6)
    assert found.perplexity.value == pytest.approx((1 / (0.6 * 0.3)) ** 0.5, rel=1e-5)


def test_near_ties_are_set_apart(tmp_path: Path) -> None:
    store(tmp_path, "first", [[0.501, 0.499], [0.9, 0.1]])
    store(tmp_path, "second", [[0.499, 0.501], [0.9, 0.1]])
    found = between(tmp_path, ((0, 0, 0),))
    assert found.top1_agreement.value == 0.5
    assert (found.top1_without_near_ties.value, found.top1_without_near_ties.n) == (1.0, 1)
    store(tmp_path, "first", [[0.501, 0.499], [0.499, 0.501]])
    assert isinstance(between(tmp_path, ((0, 0, 0),)).top1_without_near_ties, Unknown)


def answer(tokens: tuple[int, ...], prompt: tuple[int, ...] = (1, 2), **more: Any) -> Answer:
    settings: dict[str, Any] = {
        "text": "",
        "finish": FinishReason.STOP,
        "prompt_tokens": len(prompt),
        **more,
    }
    return Answer(tokens=tokens, prompt=prompt, **settings)


def test_side_by_side() -> None:
    assert _side_by_side("q", answer((5, 6, 7)), answer((5, 9))).agreeing_tokens == 1
    assert _side_by_side("q", answer((5, 6)), answer((5, 6, 7))).agreeing_tokens == 2
    assert not _side_by_side("q", answer((5,)), answer((5,), (1, 3))).same_prompt
    native = answer((), (), prompt_tokens=2)
    seen = _side_by_side("q", answer((5,)), native)
    assert seen.agreeing_tokens is None
    assert seen.same_prompt
    assert not _side_by_side("q", answer((5,)), answer((), (), prompt_tokens=3)).same_prompt


def measured(value: float) -> Measured:
    return Measured(value=value, source="test")


def distance(kl: float, top1: float) -> Distance:
    rest = dict.fromkeys(
        ("top1_without_near_ties", "kl_p99_nats", "kl_max_nats", "perplexity", "other_perplexity"),
        measured(1.0),
    )
    return Distance(positions=9, kl_mean_nats=measured(kl), top1_agreement=measured(top1), **rest)


def side(*, same_prompt: bool = True) -> SideBySide:
    return SideBySide(
        question="q",
        text="a",
        other_text="a",
        finish=FinishReason.STOP,
        other_finish=FinishReason.STOP,
        same_prompt=same_prompt,
        agreeing_tokens=1,
    )


def test_the_unfaithful_path_of_the_field_fails_and_the_faithful_ones_pass() -> None:
    """Figures of FIELD tests: Q4_1 with a rounded zero point, and exports that are right."""
    as_shipped, real = GATES["as-shipped"], GATES["float"]
    assert judge(as_shipped, distance(0.30, 0.73), (), ()).passed is False
    assert judge(as_shipped, distance(0.003, 0.96), (), ()).passed is True
    assert judge(real, distance(1e-6, 1.0), (), ()).passed is True
    assert judge(real, distance(0.0049, 0.985), (), ()).passed is False
    assert judge(GATES["int8"], distance(0.008, 0.963), (), ()).passed is True


def test_every_reason_is_given() -> None:
    found = judge(GATES["float"], distance(0.2, 0.5), ("é",), (side(same_prompt=False), side()))
    assert len(found.reasons) == 4
    assert "1 texts are tokenised differently" in found.reasons[0]


def test_without_logits_nothing_passes_by_itself() -> None:
    assert judge(GATES["int4"], None, (), (side(),)).passed is None
    assert judge(GATES["int4"], None, (), (side(same_prompt=False),)).passed is False


def offered(weights: str, activation: Activation = Activation.FLOAT, **more: str) -> OfferedFormat:
    return OfferedFormat(
        name="x",
        weights=parse_format(weights),
        embedding=parse_format(more.get("embedding", weights)),
        output=parse_format(more.get("output", weights)),
        activation=activation,
    )


@pytest.mark.parametrize(
    ("resolved", "gate"),
    [
        (offered("f32"), "float"),
        (offered("f16"), "as-shipped"),
        (offered("f32", embedding="f16"), "as-shipped"),
        (offered("int8-channel-sym-f32", embedding="f32"), "int8"),
        (offered("int8-channel-sym-f32", embedding="int4-g32-sym-f32"), "int4"),
        (offered("int4-g32-sym-f16"), "int4"),
    ],
)
def test_which_gate_applies(resolved: OfferedFormat, gate: str) -> None:
    assert gate_for(resolved, same_weights=False) == GATES[gate]
    assert gate_for(resolved, same_weights=True) == GATES["as-shipped"]


def test_what_is_lost_by_reading_at_once_fails_whatever_the_gate() -> None:
    """ik_llama.cpp with Q4_1 in steps of 32 and more; in shorter ones it says the same."""
    kept = reading([0.0, 0.0], [True, True], 63)
    lost = reading([1.2, 2.9], [True, False], 63)
    assert lost.kl_mean_nats == Measured(
        value=2.05, source="read at once, token by token against it", n=2
    )
    assert (lost.places, lost.longest_tokens) == (2, 63)
    assert lost.kl_max_nats.number == 2.9
    assert lost.top1_agreement.number == 0.5
    for gate in GATES.values():
        assert judge(gate, distance(0.0, 1.0), (), (), reading=kept).passed is True
        found = judge(gate, distance(0.0, 1.0), (), (), reading=lost)
        assert found.passed is False
        assert "2.0500 nats from itself" in found.reasons[0]
    with pytest.raises(InputError) as caught:
        reading([float("nan")], [False], 63)
    assert caught.value.code == "value-not-finite"
