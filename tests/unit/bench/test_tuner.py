"""The tuner measures every combination and chooses the quickest; the choice is evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.bench.tuner import tune
from edgewise.core.recipe import KvType, LoadMode, RunConfig
from edgewise.errors import AdapterError

pytestmark = [pytest.mark.model, pytest.mark.slow]


def test_every_combination_is_tried_and_the_quickest_wins(smollm2_path: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    base = RunConfig(context_length=1024, flash_attention=True)
    tuning = tune(
        "llamacpp",
        smollm2_path,
        base,
        threads=(1, 2),
        device="d",
        progress=lambda *step: steps.append(step),
    )
    assert tuning.skipped == ()
    tried = {
        (t.run_config.threads, t.run_config.flash_attention, t.run_config.load_mode)
        for t in tuning.trials
    }
    assert len(tried) == len(tuning.trials) == 4
    assert tuning.trials[0].run_config == tuning.chosen
    assert tuning.chosen.flash_attention
    times = [t.reference_ms for t in tuning.trials]
    assert times == sorted(times)
    assert tuning.chosen.context_length == 1024
    assert all(t.decode_tok_s.device == "d" for t in tuning.trials)
    assert [s[0] for s in steps] == list(range(4))


def test_a_quantised_cache_is_tuned_with_flash_attention_only(smollm2_path: Path) -> None:
    base = RunConfig(context_length=512, kv_type=KvType.Q8_0, flash_attention=True)
    tuning = tune("llamacpp", smollm2_path, base, threads=(1,), device="d")
    assert all(t.run_config.flash_attention for t in tuning.trials)
    assert {t.run_config.load_mode for t in tuning.trials} == set(LoadMode)


def test_a_file_that_cannot_be_loaded_is_a_typed_error(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF not really")
    with pytest.raises(AdapterError) as caught:
        tune("llamacpp", bad, RunConfig(), threads=(1,), device="d")
    assert caught.value.code == "tuning-failed"
