"""Building: copied or quantised, every deviation named, nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgewise.build import build
from edgewise.core.fingerprint import CheckpointIdentity
from edgewise.core.recipe import Recipe
from edgewise.errors import (
    AdapterError,
    EdgewiseError,
    InputError,
    IntegrityError,
    UnsupportedError,
)
from edgewise.models.gguf import read_gguf
from edgewise.store import Home

pytestmark = pytest.mark.model


@pytest.fixture
def home(tmp_path: Path, smollm2_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.folder("blobs")
    os.link(smollm2_path, home.blob(smollm2_path.name))
    return home


@pytest.fixture
def checkpoint(smollm2_path: Path) -> CheckpointIdentity:
    return CheckpointIdentity(reference="test", revision="test", sha256=smollm2_path.name)


def make(home: Home, checkpoint: CheckpointIdentity, recipe: Recipe, **options):
    return build(home, checkpoint, recipe, runtime="llamacpp", threads=2, **options)


def test_as_shipped_is_taken_over_unchanged(home: Home, checkpoint: CheckpointIdentity) -> None:
    receipt = make(home, checkpoint, Recipe(name="as-shipped"))
    assert receipt.copied
    assert not receipt.double_quantised
    assert receipt.sha256 == checkpoint.sha256
    assert receipt.size_bytes == 98_362_432
    assert receipt.deviations == ()
    assert receipt.types["q4_1"] > 100


def test_quantising_again_is_marked_and_deviations_are_named(
    home: Home, checkpoint: CheckpointIdentity
) -> None:
    receipt = make(home, checkpoint, Recipe(name="q8_0", weights="q8_0"))
    assert receipt.double_quantised
    assert not receipt.copied
    assert receipt.deviations == ()
    artifact = read_gguf(home.verified_blob(receipt.sha256))
    matrices = {t.name: t.type.name for t in artifact.tensors if len(t.shape) > 1}
    assert set(matrices.values()) == {"Q8_0"}
    assert not list(home.staging.glob("work-*"))


def test_a_k_quant_that_rows_do_not_divide_is_reported(
    home: Home, checkpoint: CheckpointIdentity
) -> None:
    receipt = make(home, checkpoint, Recipe(name="q4_k_m", weights="q4_k_m"))
    # 576 columns are no multiple of 256, 1536 are: only the down projections can be K-quants.
    named = {d.tensor: d for d in receipt.deviations}
    query = named["blk.0.attn_q.weight"]
    assert (query.asked, query.got) == ("q4_k", "q5_0")
    assert "576" in query.reason
    assert sum(d.got == "q5_0" for d in receipt.deviations) > 100
    artifact = read_gguf(home.verified_blob(receipt.sha256))
    kept = {t.name for t in artifact.tensors if len(t.shape) > 1 and t.type.name == "Q4_K"}
    assert kept
    assert not kept & set(named)


def test_overrides_are_honoured(home: Home, checkpoint: CheckpointIdentity) -> None:
    recipe = Recipe(name="mixed", weights="q4_0", overrides=((r"ffn_down", "q8_0"),))
    receipt = make(home, checkpoint, recipe)
    artifact = read_gguf(home.verified_blob(receipt.sha256))
    types = {t.name: t.type.name for t in artifact.tensors}
    assert types["blk.3.ffn_down.weight"] == "Q8_0"
    assert types["blk.3.ffn_up.weight"] == "Q4_0"
    assert {d.tensor for d in receipt.deviations} <= {"token_embd.weight"}


@pytest.mark.parametrize(
    ("recipe", "error", "code"),
    [
        (Recipe(name="x", weights="w8a8s"), UnsupportedError, "recipe-unsupported"),
        (
            Recipe(name="x", weights="q4_0", overrides=(("ffn", "int3"),)),
            UnsupportedError,
            "tensor-type-unsupported",
        ),
        (
            Recipe(name="x", weights="q4_0", overrides=(("no-such", "q8_0"),)),
            InputError,
            "override-matches-nothing",
        ),
        (
            Recipe(name="x", weights="q4_0", overrides=(("(", "q8_0"),)),
            InputError,
            "override-invalid",
        ),
        (Recipe(name="x", overrides=(("ffn", "q8_0"),)), InputError, "recipe-contradiction"),
    ],
)
def test_a_recipe_that_cannot_be_honoured_is_refused(
    home: Home,
    checkpoint: CheckpointIdentity,
    recipe: Recipe,
    error: type[EdgewiseError],
    code: str,
) -> None:
    with pytest.raises(error) as caught:
        make(home, checkpoint, recipe)
    assert caught.value.code == code
    assert sorted(p.name for p in (home.root / "blobs").iterdir()) == [checkpoint.sha256]
    assert not list(home.staging.glob("work-*"))


def test_an_altered_source_is_not_built(
    tmp_path: Path, smollm2_path: Path, checkpoint: CheckpointIdentity
) -> None:
    home = Home(tmp_path / "other")
    home.folder("blobs")
    data = bytearray(smollm2_path.read_bytes())
    data[70_000_000] ^= 1
    home.blob(checkpoint.sha256).write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        make(home, checkpoint, Recipe(name="as-shipped"))
    assert caught.value.code == "blob-corrupt"


def test_the_exporter_stays_under_its_memory_limit_or_fails_typed(
    home: Home, checkpoint: CheckpointIdentity
) -> None:
    with pytest.raises(AdapterError) as caught:
        make(
            home,
            checkpoint,
            Recipe(name="f16", weights="f16"),
            memory_limit_bytes=60 << 20,
        )
    assert caught.value.code in {"worker-crashed", "quantise-failed", "runtime-library-broken"}
    assert not list(home.staging.glob("work-*"))
