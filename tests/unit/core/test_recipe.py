"""Run configurations: bounds, and the one rule between two fields."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edgewise.core.recipe import KvType, LoadMode, Recipe, RunConfig
from edgewise.errors import InputError

COUNTS = ("context_length", "threads", "batch_tokens")


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [-1, 0, 2**31 + 1, 10**400])
def test_out_of_range(name: str, value: int) -> None:
    fields: dict[str, Any] = {name: value}
    with pytest.raises(InputError) as caught:
        RunConfig(**fields)
    assert caught.value.code == "run-config-invalid"
    assert name in caught.value.message
    assert caught.value.context == {"field": name}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [1, 2, 2**31 - 1, 2**31])
def test_in_range(name: str, value: int) -> None:
    fields: dict[str, Any] = {name: value}
    assert getattr(RunConfig(**fields), name) == value


def test_a_quantised_cache_needs_flash_attention() -> None:
    with pytest.raises(InputError) as caught:
        RunConfig(kv_type=KvType.Q8_0)
    assert caught.value.code == "kv-type-needs-flash-attention"
    assert caught.value.hint
    assert RunConfig(kv_type=KvType.Q8_0, flash_attention=True).kv_type is KvType.Q8_0
    assert not RunConfig(kv_type=KvType.F16).flash_attention


def test_parse_of_kv_types() -> None:
    for kind in KvType:
        assert KvType.parse(str(kind)) is kind
    for text in ("", "F16", "q4_1", "q8_0 "):
        with pytest.raises(InputError) as caught:
            KvType.parse(text)
        assert caught.value.code == "kv-type-unknown"
        assert "f16, q8_0" in str(caught.value.hint)


@pytest.mark.parametrize(
    "value",
    [
        RunConfig(),
        RunConfig(
            context_length=3,
            kv_type=KvType.Q8_0,
            threads=2,
            flash_attention=True,
            load_mode=LoadMode.MALLOC,
            huge_pages=True,
            batch_tokens=9,
        ),
        Recipe(name="r", overrides=(("a", "b"), ("c", "d")), embedding="q8_0"),
    ],
)
def test_round_trip(value: Any) -> None:
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value


def test_the_rules_hold_for_json_too() -> None:
    for text in ('{"threads":0}', '{"kv_type":"q8_0"}', '{"kv_type":"q4"}', '{"thread":1}'):
        with pytest.raises((InputError, msgspec.ValidationError)):
            msgspec.json.decode(text, type=RunConfig)
