"""The active model's file is altered, cut or removed: refused before it is read, and healed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.model


def damage(home: Path, how: str) -> None:
    bundle = next(p for p in (home / "bundles").iterdir())
    artifact = bundle / "model.gguf"
    blob = (
        home
        / "blobs"
        / json.loads((bundle / "manifest.json").read_text())["deployment"]["artifact"]["sha256"]
    )
    for path in (artifact, blob):
        path.chmod(0o644)
        if how == "flip":
            with path.open("r+b") as stream:
                stream.seek(50_000_000)
                byte = stream.read(1)
                stream.seek(50_000_000)
                stream.write(bytes([byte[0] ^ 1]))
        elif how == "cut":
            os.truncate(path, 50_000_000)
        elif how == "html":
            path.write_text("<html>please log in</html>")
        else:
            path.unlink()


@pytest.mark.parametrize("how", ["flip", "cut", "html", "gone"])
def test_a_damaged_artifact_is_refused_and_up_heals_it(own_home, edgewise, how) -> None:
    damage(own_home, how)
    refused = edgewise("run", "Hi", "--json", "--max-tokens", "2")
    assert refused.returncode == 4, refused.stderr
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == ("artifact-missing" if how == "gone" else "artifact-corrupt")
    assert "edgewise up" in error["hint"]
    # The checkpoint's blob is damaged too, and offline it cannot be had again: said, not hung.
    offline = edgewise("up", "--offline", "--no-chat")
    assert offline.returncode == 6
    assert "fetched again" in offline.stderr
    assert "error: fetch-offline" in offline.stderr


@pytest.mark.parametrize("how", ["flip", "gone"])
def test_with_a_good_checkpoint_up_heals_the_bundle(
    own_home, edgewise, smollm2_path: Path, how: str
) -> None:
    damage(own_home, how)
    blob = own_home / "blobs" / smollm2_path.name
    blob.unlink(missing_ok=True)
    blob.write_bytes(smollm2_path.read_bytes())
    healed = edgewise("up", "--offline", "--no-chat", "--json")
    assert healed.returncode == 0, healed.stderr
    assert json.loads(healed.stdout)["answer"]["outcome"] == "completed"
    assert edgewise("run", "Hi", "--max-tokens", "2").returncode == 0
