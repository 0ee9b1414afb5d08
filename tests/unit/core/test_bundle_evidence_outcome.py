"""Bundles keep to their fingerprint; evidence has one digest; outcomes survive JSON."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from tests.unit.core.values import DEPLOYMENT, DRAFT, TEXT, UNKNOWN, bundle, evidence, size

from edgewise.core.bundle import Bundle
from edgewise.core.canonical import canonical_json
from edgewise.core.evidence import Evidence
from edgewise.core.outcome import (
    Completed,
    Declined,
    Event,
    Failed,
    FinishReason,
    Outcome,
    Provenance,
    Route,
    RouteDecision,
    RuleResult,
    Timings,
    TokenCounts,
)
from edgewise.core.quantity import Measured
from edgewise.core.state import DeviceState, MemoryState, PowerState, StorageState, ThermalState
from edgewise.errors import IntegrityError, ResourceError

TEXT_CHANGES: list[dict[str, Any]] = [
    {"template_source": TEXT.template_source + " "},
    {"template_source": TEXT.template_source.replace("\r\n", "\n")},
    {"bos_token": ""},
    {"eos_token": "</S>"},
    {"add_bos": False},
    {"end_token_ids": (2,)},
    {"end_token_ids": (7, 2)},
    {"special_tokens": ("</s>",)},
]


@pytest.mark.parametrize("change", TEXT_CHANGES)
def test_text_that_is_not_the_fingerprints(change: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError) as caught:
        bundle(text=msgspec.structs.replace(TEXT, **change))
    assert caught.value.code == "bundle-text-mismatch"


@pytest.mark.parametrize(
    "name", ["", "model.gguf", "..", "manifest.json", "a/b", "NOTICE.txt"], ids=repr
)
def test_a_draft_has_a_file_name_of_its_own(name: str) -> None:
    drafted = msgspec.structs.replace(DEPLOYMENT, draft=DRAFT)
    assert bundle(deployment=drafted, draft_name="draft.gguf").draft_name == "draft.gguf"
    with pytest.raises(IntegrityError, match="bundle-invalid"):
        bundle(deployment=drafted, draft_name=name)


def test_a_draft_that_the_fingerprint_does_not_know() -> None:
    with pytest.raises(IntegrityError, match="bundle-invalid"):
        bundle(draft_name="draft.gguf")


def test_moving_text_between_fields_is_noticed() -> None:
    one = msgspec.structs.replace(TEXT, bos_token="ab", eos_token="c")
    other = msgspec.structs.replace(TEXT, bos_token="a", eos_token="bc")
    assert one.special_tokens_sha256 != other.special_tokens_sha256


def test_template_digest_is_of_its_bytes() -> None:
    assert TEXT.template_sha256 == hashlib.sha256(TEXT.template_source.encode()).hexdigest()


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/etc/passwd",
        "../model.gguf",
        "a/b",
        "a\\b",
        "..\\b",
        "C:model",
        "model\0.gguf",
        "manifest.json",
        "template.jinja",
        "NOTICE.txt",
    ],
)
def test_artifact_name_stays_in_the_bundle(name: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        bundle(artifact_name=name)
    assert caught.value.code == "bundle-invalid"
    data = msgspec.to_builtins(bundle())
    data["artifact_name"] = name
    with pytest.raises((IntegrityError, msgspec.ValidationError)):
        msgspec.convert(data, type=Bundle)


@pytest.mark.parametrize("name", ["model.gguf", "..gguf", "m", "mod\u00e8le 1.gguf"])
def test_file_names_are_taken(name: str) -> None:
    assert bundle(artifact_name=name).artifact_name == name


def test_bundle_round_trip() -> None:
    whole = bundle(evidence=("1" * 64,))
    assert whole.fingerprint == DEPLOYMENT.fingerprint
    assert msgspec.json.decode(canonical_json(whole), type=Bundle) == whole


def test_evidence_digest() -> None:
    piece = evidence()
    assert piece.digest == hashlib.sha256(canonical_json(piece)).hexdigest()
    changes: list[dict[str, Any]] = [
        {"kind": "bench"},
        {"subject": "c" * 64},
        {"device": "c" * 64},
        {"created": "2026-11-30T12:00:01Z"},
        {"producer": "edgewise 1"},
        {"figures": {"passed": False}},
        {"figures": {}},
        {"cites": ("d" * 64,)},
        {"schema_version": 2},
    ]
    digests = {evidence(**change).digest for change in changes}
    assert len(digests | {piece.digest}) == len(changes) + 1
    assert {name for change in changes for name in change} == set(Evidence.__struct_fields__)


def test_evidence_digest_survives_storage() -> None:
    figures = {"a": {"z": 1.0, "b": [True, None, "\u20ac"]}, "rate": 0.1}
    piece = evidence(figures=figures)
    again = msgspec.json.decode(canonical_json(piece), type=Evidence)
    assert again.digest == piece.digest


ROUTE = RouteDecision(
    route=Route.LOCAL,
    reasons=("because",),
    rules=(RuleResult(rule="memory", verdict="allows", reason="room"),),
    policy_version="p@1",
)
PROVENANCE = Provenance(
    route=ROUTE,
    fingerprint="a" * 64,
    policy_version="p@1",
    runtime="llamacpp 0.3.36",
    device="b" * 64,
    template="in the file",
    seed=2**63 - 1,
)
TIME = Measured(value=1.25, source="clock")
OUTCOMES: list[Outcome] = [
    Completed(
        text="\U0001f600\x00",
        finish=FinishReason.LENGTH,
        tokens=TokenCounts(prompt=3, reused=1, completion=2),
        timings=Timings(
            queue_ms=TIME,
            prefill_ms=TIME,
            ttft_ms=TIME,
            decode_ms=TIME,
            total_ms=TIME,
            decode_tok_s=UNKNOWN,
        ),
        provenance=PROVENANCE,
        memory_peak_bytes={"total": size(5)},
        events=(Event(code="waited", message="for another", context={"ms": 4}),),
    ),
    Declined(reasons=("no room",), provenance=PROVENANCE, shortfall_bytes=size(9)),
    Declined(reasons=("no",), provenance=PROVENANCE),
    Failed(
        error=ResourceError("disk-full", "full", context={"free_bytes": 0}).to_dict(),
        partial_text="half",
        provenance=PROVENANCE,
    ),
]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_outcome_round_trip(outcome: Outcome) -> None:
    for codec in (msgspec.json, msgspec.msgpack):
        back = codec.decode(codec.encode(outcome), type=Outcome)
        assert back == outcome
        assert type(back) is type(outcome)
    tag = msgspec.json.decode(msgspec.json.encode(outcome))["outcome"]
    assert tag == type(outcome).__name__.lower()


def test_an_outcome_without_its_tag_is_refused() -> None:
    data = msgspec.to_builtins(OUTCOMES[2])
    del data["outcome"]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(data, type=Outcome)


def test_nothing_read_is_unknown() -> None:
    state = DeviceState()
    assert (state.memory, state.storage) == (MemoryState.UNKNOWN, StorageState.UNKNOWN)
    assert (state.power, state.thermal) == (PowerState.UNKNOWN, ThermalState.UNKNOWN)
    assert msgspec.json.decode(msgspec.json.encode(state), type=DeviceState) == state
