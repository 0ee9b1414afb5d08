"""The smoke test passes a sound artifact and fails one whose weights are broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.core.recipe import RunConfig
from edgewise.models.gguf import read_gguf
from edgewise.qualify import smoke

pytestmark = pytest.mark.model

CONFIG = RunConfig(context_length=512, threads=2, flash_attention=True)


def test_a_sound_artifact_passes(smollm2_path: Path) -> None:
    report = smoke("llamacpp", smollm2_path, CONFIG)
    assert report.passed, report.reasons
    assert [c.name for c in report.checks] == [
        "tokenizer-round-trip",
        "perplexity",
        "prefill-equals-decode",
        "rewind-equals-clean-run",
        "state-restores",
        "cancel-then-reuse",
    ]
    perplexity = report.checks[1].figure
    assert 5 < perplexity.number < 60
    assert report.memory.peak_resident_bytes.number > 100 << 20


def test_the_second_architecture_passes(gemma_path: Path) -> None:
    report = smoke("llamacpp", gemma_path, CONFIG)
    assert report.passed, report.reasons


def test_broken_weights_fail_with_a_reason(smollm2_path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    data = bytearray(smollm2_path.read_bytes())
    for tensor in read_gguf(smollm2_path).tensors:
        if tensor.name.endswith("ffn_down.weight"):
            start = tensor.offset_bytes
            # The same bytes backwards: sound to read, and nonsense.
            chunk = data[start : start + tensor.size_bytes]
            data[start : start + tensor.size_bytes] = chunk[::-1]
    broken.write_bytes(data)
    report = smoke("llamacpp", broken, CONFIG)
    assert not report.passed
    assert any("perplexity" in reason for reason in report.reasons)


def test_a_draft_model_is_checked_as_it_is_deployed(smollm2_path: Path) -> None:
    alone = smoke("llamacpp", smollm2_path, CONFIG)
    report = smoke("llamacpp", smollm2_path, CONFIG, draft=smollm2_path)
    assert report.passed, report.reasons
    assert [c.name for c in report.checks[-2:]] == ["draft-agrees", "draft-changes-nothing"]
    agrees, changes = report.checks[-2:]
    assert agrees.figure.number == 1.0  # the model itself: it says the very same
    assert agrees.figure.n > 40
    assert changes.figure.number == 0.0
    assert report.checks[1].figure.number == alone.checks[1].figure.number
    assert report.memory.draft is not None
