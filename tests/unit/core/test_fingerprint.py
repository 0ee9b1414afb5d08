"""The fingerprint: every field counts, and what a difference means."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.unit.core.values import DEPLOYMENT, DRAFT

from edgewise.core import fingerprint
from edgewise.core.canonical import canonical_json
from edgewise.core.fingerprint import Deployment, diff

GOLDEN = "599f3ab50a1d3c6e41d43662f333f6396ad19b7f22c822f05a6130adf46e26c8"

LEAVES = {
    "schema_version",
    "adapters",
    "checkpoint.reference",
    "checkpoint.revision",
    "checkpoint.sha256",
    "text.tokenizer_sha256",
    "text.special_tokens_sha256",
    "text.template_name",
    "text.template_sha256",
    "export.exporter",
    "export.version",
    "export.graph",
    "recipe.name",
    "recipe.weights",
    "recipe.embedding",
    "recipe.output",
    "recipe.activation",
    "recipe.method",
    "recipe.kv",
    "recipe.context_length",
    "recipe.overrides",
    "recipe.calibration_revision",
    "artifact.format",
    "artifact.sha256",
    "artifact.size_bytes",
    "runtime.name",
    "runtime.version",
    "runtime.operators",
    "compute.backend",
    "compute.partition_sha256",
    "compute.fallbacks",
    "compute.precision.KV_CACHE_PRECISION",
    "compute.run_config.context_length",
    "compute.run_config.kv_type",
    "compute.run_config.threads",
    "compute.run_config.flash_attention",
    "compute.run_config.load_mode",
    "compute.run_config.huge_pages",
    "compute.run_config.batch_tokens",
    "compute.run_config.parallel",
    "compute.run_config.hints",
    "environment.os_build",
    "environment.abi",
    "environment.device_class",
    "policy.routing",
    "policy.context",
    "policy.sampling",
}

EVERYTHING = {"parity", "smoke", "quality", "tuning", "bench", "memory", "calibration"}
SPARED = {
    "schema_version": set(),
    "checkpoint": set(),
    "text": {"tuning", "bench", "memory"},
    "adapters": set(),
    "export": {"tuning"},
    "recipe": set(),
    "artifact": set(),
    "runtime": set(),
    "compute": {"quality"},
    "environment": {"quality"},
    "policy": {"parity", "tuning", "bench", "memory"},
    "draft": {"parity", "quality", "tuning", "calibration"},
}


def leaves(value: Any, prefix: str = "") -> Iterator[str]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from leaves(inner, f"{prefix}{key}.")
        else:
            yield prefix + key


def changed(path: str) -> Deployment:
    data = msgspec.to_builtins(DEPLOYMENT)
    *folders, name = path.split(".")
    part = data
    for folder in folders:
        part = part[folder]
    other = {
        "kv_type": "q8_0",
        "load_mode": "malloc",
        "kv": "q8_0",
        "activation": "float",
    }
    match part[name]:
        case bool(flag):
            part[name] = not flag
        case int(number):
            part[name] = number + 1
        case str(text):
            part[name] = other.get(name, text + "x")
        case tuple(items):
            part[name] = items[:-1]
        case unexpected:
            raise AssertionError(unexpected)
    return msgspec.convert(data, type=Deployment)


def test_golden() -> None:
    """A failure here means that every stored bundle and evidence has lost its identity."""
    assert DEPLOYMENT.fingerprint == GOLDEN
    assert hashlib.sha256(canonical_json(DEPLOYMENT.identity)).hexdigest() == GOLDEN


def test_a_manifest_from_before_several_requests_and_drafts_keeps_its_fingerprint() -> None:
    data = msgspec.to_builtins(DEPLOYMENT)
    del data["compute"]["run_config"]["parallel"]
    del data["draft"]
    older = msgspec.convert(data, type=Deployment)
    assert older == DEPLOYMENT
    assert hashlib.sha256(canonical_json(data)).hexdigest() == older.fingerprint == GOLDEN


def test_these_are_all_leaves() -> None:
    assert set(leaves(msgspec.to_builtins(DEPLOYMENT))) == LEAVES | {"draft"}


def test_a_draft_model_makes_another_deployment_by_each_of_its_facts() -> None:
    drafted = msgspec.structs.replace(DEPLOYMENT, draft=DRAFT)
    data = msgspec.to_builtins(DRAFT)
    others = [
        {**data, "recipe": {**data["recipe"], "weights": "q8_0"}},
        {**data, "artifact": {**data["artifact"], "sha256": "3" * 64}},
        {**data, "checkpoint": {**data["checkpoint"], "revision": "3"}},
    ]
    prints = {DEPLOYMENT.fingerprint, drafted.fingerprint}
    for other in others:
        part = msgspec.convert(other, type=type(DRAFT))
        prints.add(msgspec.structs.replace(DEPLOYMENT, draft=part).fingerprint)
    assert len(prints) == 5
    found = diff(DEPLOYMENT, drafted)
    assert {one.field.partition(".")[0] for one in found} == {"draft"}
    assert {one.field for one in found} >= {"draft.artifact.sha256", "draft.recipe.weights"}
    assert {one.before for one in found} == {None}
    for one in found:
        assert set(one.invalidates) == EVERYTHING - SPARED["draft"]


@pytest.mark.parametrize("path", sorted(LEAVES))
def test_any_change_is_another_fingerprint_and_named(path: str) -> None:
    after = changed(path)
    assert after.fingerprint != DEPLOYMENT.fingerprint
    (difference,) = diff(DEPLOYMENT, after)
    assert difference.field == path
    assert difference.before != difference.after
    section = path.partition(".")[0]
    assert set(difference.invalidates) == EVERYTHING - SPARED[section]
    assert len(difference.invalidates) == len(set(difference.invalidates))
    assert difference.meaning
    (back,) = diff(after, DEPLOYMENT)
    assert (back.before, back.after) == (difference.after, difference.before)


def test_all_single_changes_are_distinct() -> None:
    prints = {changed(path).fingerprint for path in LEAVES} | {DEPLOYMENT.fingerprint}
    assert len(prints) == len(LEAVES) + 1


def test_every_section_has_a_meaning() -> None:
    assert set(fingerprint._INVALIDATES) == set(Deployment.__struct_fields__) == set(SPARED)


def test_no_difference() -> None:
    copy = msgspec.json.decode(msgspec.json.encode(DEPLOYMENT), type=Deployment)
    assert copy == DEPLOYMENT
    assert diff(DEPLOYMENT, copy) == ()


def test_several_differences_in_the_order_of_the_fields() -> None:
    after = msgspec.structs.replace(
        changed("compute.run_config.threads"), checkpoint=changed("checkpoint.sha256").checkpoint
    )
    assert [d.field for d in diff(DEPLOYMENT, after)] == [
        "checkpoint.sha256",
        "compute.run_config.threads",
    ]


def test_a_value_that_comes_or_goes() -> None:
    recipe = msgspec.structs.replace(DEPLOYMENT.recipe, embedding=None)
    (difference,) = diff(DEPLOYMENT, msgspec.structs.replace(DEPLOYMENT, recipe=recipe))
    assert (difference.field, difference.before, difference.after) == (
        "recipe.embedding",
        "q6_k",
        None,
    )


def test_unknown_fields_are_refused() -> None:
    data = msgspec.to_builtins(DEPLOYMENT)
    data["checkpoint"]["branch"] = "main"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(data, type=Deployment)
