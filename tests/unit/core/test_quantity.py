"""Quantities: four kinds that cannot be confused, none without a source, none that is no number."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from edgewise.core.quantity import Declared, Estimated, Measured, Quantity, Unknown
from edgewise.errors import InputError

KINDS = [Measured, Estimated, Declared]
ALL: list[Quantity] = [
    Measured(value=1.5, source="clock", n=9, spread=0.25, device="a" * 64),
    Measured(value=7, source="clock"),
    Estimated(value=True, source="formula"),
    Declared(value="aarch64", source="vendor"),
    Declared(value=("avx2", "fma"), source="cpuid"),
    Declared(value=0, source="vendor"),
    Unknown(reason="no sensor"),
]


def code_of(make: Any, **fields: Any) -> str:
    with pytest.raises(InputError) as caught:
        make(**fields)
    return caught.value.code


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, -(10**400)])
def test_what_is_no_number_is_refused(kind: Any, value: Any) -> None:
    assert code_of(kind, value=value, source="x") == "value-not-finite"


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_is_required(kind: Any) -> None:
    assert code_of(kind, value=1, source="") == "value-without-source"
    with pytest.raises(TypeError):
        kind(value=1)


@pytest.mark.parametrize("n", [0, -1])
def test_measured_has_samples(n: int) -> None:
    assert code_of(Measured, value=1, source="x", n=n) == "value-without-samples"
    assert Measured(value=1, source="x", n=1).n == 1


@pytest.mark.parametrize("spread", [math.nan, math.inf, -0.5])
def test_spread_is_a_width(spread: float) -> None:
    assert code_of(Measured, value=1, source="x", spread=spread) == "value-not-finite"
    assert Measured(value=1, source="x", spread=0.0).spread == 0


@pytest.mark.parametrize("quantity", ALL)
def test_json_round_trip(quantity: Quantity) -> None:
    data = msgspec.json.encode(quantity)
    back = msgspec.json.decode(data, type=Quantity)
    assert back == quantity
    assert type(back) is type(quantity)
    if not isinstance(quantity, Unknown):
        assert type(getattr(back, "value", None)) is type(quantity.value)
    assert msgspec.json.decode(data)["kind"] == type(quantity).__name__.lower()


def test_json_of_a_measured_value() -> None:
    assert msgspec.json.decode(msgspec.json.encode(ALL[0])) == {
        "kind": "measured",
        "value": 1.5,
        "source": "clock",
        "n": 9,
        "spread": 0.25,
        "device": "a" * 64,
    }
    assert msgspec.json.encode(ALL[-1]) == b'{"kind":"unknown","reason":"no sensor"}'


@pytest.mark.parametrize(
    "text",
    [
        '{"value":1,"source":"x"}',
        '{"kind":"guessed","value":1,"source":"x"}',
        '{"kind":"declared","value":1,"source":"x","n":3}',
        '{"kind":"declared","value":null,"source":"x"}',
        '{"kind":"declared","value":1,"source":""}',
        '{"kind":"measured","value":1,"source":"x","n":0}',
        '{"kind":"unknown","reason":"x","value":1}',
        '{"kind":"unknown"}',
    ],
)
def test_malformed_json_is_refused(text: str) -> None:
    with pytest.raises((msgspec.ValidationError, InputError)):
        msgspec.json.decode(text, type=Quantity)


def test_number() -> None:
    assert Measured(value=3, source="x").number == 3.0
    assert isinstance(Measured(value=3, source="x").number, float)
    for value in (True, "3", ("a",)):
        with pytest.raises(InputError) as caught:
            _ = Declared(value=value, source="x").number
        assert caught.value.code == "value-not-a-number"


def test_kinds_are_not_equal_and_frozen() -> None:
    one = [kind(value=1, source="x") for kind in (Measured, Estimated, Declared)]
    assert one[0] != one[1]
    assert one[1] != one[2]
    with pytest.raises(AttributeError):
        one[0].value = 2  # type: ignore[misc]
