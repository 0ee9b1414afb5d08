"""From the results of the stages to a deployment, and to a bundle with its notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders import tiny_gguf
from tests.unit.core.values import ledger, size

from edgewise.build import BuildReceipt
from edgewise.core.bundle import Bundle
from edgewise.core.canonical import digest_of
from edgewise.core.fingerprint import Deployment, diff
from edgewise.core.recipe import Recipe, RunConfig
from edgewise.route import DEFAULT_POLICY
from edgewise.run.messages import RuntimeFacts
from edgewise.runtimes.reports import PartitionReport
from edgewise.store import Home
from edgewise.workflow.checkpoints import Checkpoint, Description, describe, text_settings
from edgewise.workflow.context import Context
from edgewise.workflow.deployment import make_bundle, make_deployment

PARTITION = PartitionReport(
    requested="CPU", operators={"MUL_MAT": {"CPU": 9}}, weights={}, fallbacks=(), features=("AVX2",)
)
CHECKPOINT = Checkpoint(
    reference="pypi:tiny==1.0", revision="1.0 sha256=a", sha256="a" * 64, size_bytes=9, pinned=True
)


FACTS = RuntimeFacts(name="llamacpp", version="0.3.36", operators="f" * 64)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Home(tmp_path / "home"))


def described(tmp_path: Path, **changes: Any) -> Description:
    return describe(tiny_gguf(tmp_path / "tiny.gguf", **changes))


def deployment(context: Context, description: Description, **changes: Any) -> Deployment:
    receipt = BuildReceipt(
        checkpoint=CHECKPOINT.identity,
        recipe=Recipe(name="q8_0", weights="q8_0"),
        runtime="llamacpp",
        exporter="llama.cpp",
        exporter_version="0.3.36",
        format="gguf",
        sha256="e" * 64,
        size_bytes=7,
        copied=False,
        double_quantised=False,
        types={"Q8_0": 3},
        deviations=(),
        seconds=size(1),
        peak_memory_bytes=size(1),
    )
    values: dict[str, Any] = {
        "checkpoint": CHECKPOINT,
        "description": description,
        "text": text_settings(description),
        "receipt": receipt,
        "run_config": RunConfig(threads=2),
        "partition": PARTITION,
        "runtime": FACTS,
    }
    return make_deployment(context.device, **{**values, **changes})


def test_every_part_is_where_it_belongs(context: Context, tmp_path: Path) -> None:
    description = described(tmp_path)
    made = deployment(context, description)
    assert made.checkpoint == CHECKPOINT.identity
    assert made.text.tokenizer_sha256 == description.tokenizer.digest
    assert made.export.graph == "llama"
    assert made.recipe.weights == "q8_0"
    assert (made.artifact.format, made.artifact.sha256, made.artifact.size_bytes) == (
        "gguf",
        "e" * 64,
        7,
    )
    assert made.runtime.operators == "f" * 64
    assert made.compute.backend == "CPU"
    assert made.compute.partition_sha256 == digest_of(PARTITION)
    assert made.compute.run_config.threads == 2
    assert made.policy.routing == DEFAULT_POLICY.version
    assert made.environment.device_class.endswith("]")
    assert made.fingerprint == deployment(context, description).fingerprint


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"run_config": RunConfig(threads=3)}, ["compute.run_config.threads"]),
        (
            {"partition": msgspec.structs.replace(PARTITION, fallbacks=("ROPE",))},
            ["compute.partition_sha256", "compute.fallbacks"],
        ),
        (
            {"checkpoint": msgspec.structs.replace(CHECKPOINT, revision="1.1")},
            ["checkpoint.revision"],
        ),
    ],
)
def test_a_change_is_seen(
    context: Context, tmp_path: Path, changes: dict[str, Any], fields: list[str]
) -> None:
    description = described(tmp_path)
    found = diff(deployment(context, description), deployment(context, description, **changes))
    assert [difference.field for difference in found] == fields


def test_another_tokenizer_or_template_is_another_deployment(
    context: Context, tmp_path: Path
) -> None:
    before = deployment(context, described(tmp_path))
    merges = described(tmp_path, metadata={"tokenizer.ggml.merges": ["b a"]})
    after = deployment(context, merges)
    assert [d.field for d in diff(before, after)] == ["text.tokenizer_sha256"]
    template = described(tmp_path, metadata={"tokenizer.chat_template": "{{ messages }}"})
    found = diff(before, deployment(context, template))
    assert [d.field for d in found] == ["text.template_sha256"]


@pytest.mark.parametrize(
    ("licence", "metadata", "line"),
    [
        ("MIT", {}, "licence: MIT"),
        (None, {}, "licence: apache-2.0"),
        (None, None, "licence: the source states none"),
    ],
)
def test_the_notice(
    context: Context, tmp_path: Path, licence: str | None, metadata: Any, line: str
) -> None:
    drop = ["general.license"] if metadata is None else []
    description = described(tmp_path, drop=drop)
    bundle: Bundle = make_bundle(
        deployment(context, description),
        checkpoint=msgspec.structs.replace(CHECKPOINT, licence=licence),
        description=description,
        text=text_settings(description),
        memory=ledger(),
        evidence=("1" * 64,),
    )
    assert bundle.model == "Tiny"
    assert bundle.artifact_name == "model.gguf"
    assert bundle.notice.splitlines() == [
        "Tiny",
        "from pypi:tiny==1.0 (1.0 sha256=a)",
        line,
    ]
    assert bundle.evidence == ("1" * 64,)
