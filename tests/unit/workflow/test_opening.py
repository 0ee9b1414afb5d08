"""Opening a bundle: which one, and whether its evidence still stands."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tests.unit.core.values import evidence, with_artifact

from edgewise.core.bundle import Bundle
from edgewise.core.state import DeviceState
from edgewise.errors import InputError
from edgewise.store import Home
from edgewise.workflow.context import PRODUCER, Context
from edgewise.workflow.opening import _qualified, open_session

ARTIFACT = b"GGUF and so on"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    home = Home(tmp_path / "home")
    path = home.folder("staging", "fetch") / "m"
    path.write_bytes(ARTIFACT)
    home.adopt(path, hashlib.sha256(ARTIFACT).hexdigest())
    return Context(home)


def cited(context: Context, **changes: Any) -> Bundle:
    import msgspec

    plain = with_artifact(hashlib.sha256(ARTIFACT).hexdigest(), len(ARTIFACT))
    fields = {
        "kind": "smoke",
        "subject": plain.fingerprint,
        "device": context.device.digest,
        "figures": {"passed": True},
        **changes,
    }
    digest = context.evidence.add(evidence(**fields))
    return msgspec.structs.replace(plain, evidence=(digest,))


def test_nothing_is_active(context: Context) -> None:
    with pytest.raises(InputError) as caught:
        open_session(context)
    assert caught.value.code == "nothing-active"


def test_qualified(context: Context) -> None:
    assert _qualified(context, cited(context))


@pytest.mark.parametrize(
    "changes",
    [
        {"figures": {"passed": False}},
        {"figures": {}},
        {"kind": "bench"},
        {"subject": "0" * 64},
        {"device": "0" * 64},
    ],
)
def test_not_qualified(context: Context, changes: dict[str, Any]) -> None:
    assert not _qualified(context, cited(context, **changes))


def test_removed_evidence_no_longer_counts(context: Context) -> None:
    bundle = cited(context)
    (context.home.root / "evidence" / f"{bundle.evidence[0]}.json").unlink()
    assert not _qualified(context, bundle)


def test_tampered_evidence_is_a_no(context: Context) -> None:
    bundle = cited(context, figures={"passed": False})
    path = context.home.root / "evidence" / f"{bundle.evidence[0]}.json"
    path.write_bytes(path.read_bytes().replace(b"false", b"true"))
    assert not _qualified(context, bundle)
    assert not path.exists()  # set aside, to be looked at


def test_open_by_prefix_loads_nothing(context: Context) -> None:
    bundle = cited(context)
    context.bundles.add(bundle)
    with open_session(context, bundle.fingerprint[:8]) as session:
        assert session.bundle == bundle
    context.bundles.activate(bundle.fingerprint)
    with open_session(context) as session:
        assert session.bundle == bundle


def test_a_record_is_evidence_of_this_device(context: Context) -> None:
    digest = context.record("bench", "a" * 64, {"state": DeviceState()}, cites=("b" * 64,))
    _, piece = context.evidence.get(digest)
    assert (piece.kind, piece.subject, piece.cites) == ("bench", "a" * 64, ("b" * 64,))
    assert piece.device == context.device.digest
    assert piece.producer == PRODUCER
    assert piece.created.endswith("Z")
    assert len(piece.created) == len("2026-11-30T12:00:00Z")
    assert piece.figures["state"]["thermal"] == "unknown"
