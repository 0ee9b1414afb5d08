"""Fixed values that the tests of several folders share."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from edgewise.core.bundle import Bundle, TextSettings
from edgewise.core.evidence import Evidence
from edgewise.core.fingerprint import (
    ArtifactIdentity,
    CheckpointIdentity,
    ComputeIdentity,
    Deployment,
    DraftIdentity,
    EnvironmentIdentity,
    ExportIdentity,
    PolicyIdentity,
    RuntimeIdentity,
    TextIdentity,
)
from edgewise.core.formats import Activation
from edgewise.core.ledger import MemoryLedger
from edgewise.core.quantity import Declared, Quantity, Unknown
from edgewise.core.recipe import KvType, Recipe, RunConfig
from edgewise.core.tier import Tier
from edgewise.models.architecture import ModelShape

TEXT = TextSettings(
    template_name="in the file",
    template_source="{{ messages }}\r\n\u00e9",
    bos_token="<s>",
    eos_token="</s>",
    add_bos=True,
    end_token_ids=(2, 7),
    special_tokens=("</s>", "<s>"),
)

RECIPE = Recipe(
    name="q8_0",
    weights="q8_0",
    embedding="q6_k",
    output="f16",
    activation=Activation.INT8_DYNAMIC,
    method="imatrix",
    kv=KvType.F16,
    context_length=512,
    overrides=(("ffn_down", "q4_k"),),
    calibration_revision="c" * 64,
)

DEPLOYMENT = Deployment(
    checkpoint=CheckpointIdentity(reference="file:/m.gguf", revision="1", sha256="a" * 64),
    text=TextIdentity(
        tokenizer_sha256="b" * 64,
        special_tokens_sha256=TEXT.special_tokens_sha256,
        template_name=TEXT.template_name,
        template_sha256=TEXT.template_sha256,
    ),
    adapters=("d" * 64,),
    export=ExportIdentity(exporter="llamacpp", version="0.3.36", graph="llama"),
    recipe=RECIPE,
    artifact=ArtifactIdentity(format="gguf", sha256="e" * 64, size_bytes=7),
    runtime=RuntimeIdentity(name="llamacpp", version="0.3.36", operators="f" * 64),
    compute=ComputeIdentity(
        backend="cpu",
        partition_sha256="0" * 64,
        fallbacks=("RMSNorm",),
        precision={"KV_CACHE_PRECISION": "u8"},
        run_config=RunConfig(flash_attention=True, hints=(("repack", "1"),)),
    ),
    environment=EnvironmentIdentity(os_build="Linux 6", abi="x86_64", device_class="cpu [avx2]"),
    policy=PolicyIdentity(routing="r@1", context="reject", sampling="per-request"),
)

DRAFT = DraftIdentity(
    checkpoint=CheckpointIdentity(reference="file:/d.gguf", revision="2", sha256="1" * 64),
    recipe=Recipe(name="q4_0", weights="q4_0"),
    artifact=ArtifactIdentity(format="gguf", sha256="2" * 64, size_bytes=3),
)


def size(value: float) -> Quantity:
    return Declared(value=value, source="test")


UNKNOWN = Unknown(reason="nobody looked")


def ledger(**lines: Any) -> MemoryLedger:
    values: dict[str, Any] = {
        "weights_bytes": size(100),
        "kv_cache_bytes": size(20),
        "workspace_bytes": size(3),
        "runtime_bytes": size(4000),
        "app_bytes": size(50000),
        "budget_bytes": size(60000),
    }
    return MemoryLedger(**{**values, **lines})


def bundle(**fields: Any) -> Bundle:
    values: dict[str, Any] = {
        "model": "Tiny",
        "deployment": DEPLOYMENT,
        "text": TEXT,
        "memory": ledger(),
        "artifact_name": "model.gguf",
        "notice": "Tiny \u00a9\nlicence: none\n",
    }
    return Bundle(**{**values, **fields})


def evidence(**fields: Any) -> Evidence:
    values: dict[str, Any] = {
        "kind": "smoke",
        "subject": "a" * 64,
        "device": "b" * 64,
        "created": "2026-11-30T12:00:00Z",
        "producer": "edgewise 0",
        "figures": {"passed": True},
    }
    return Evidence(**{**values, **fields})


def with_artifact(sha256: str, size_bytes: int) -> Bundle:
    artifact = ArtifactIdentity(format="gguf", sha256=sha256, size_bytes=size_bytes)
    return bundle(deployment=msgspec.structs.replace(DEPLOYMENT, artifact=artifact))


# SmolLM2 135M Instruct, from its own metadata, with made-up byte counts of the weights.
SMOLLM2 = ModelShape(
    architecture="llama",
    n_layers=30,
    n_embd=576,
    n_ff=(1536,) * 30,
    n_heads=(9,) * 30,
    n_kv_heads=(3,) * 30,
    head_dim_k=64,
    head_dim_v=64,
    vocab_size=49152,
    context_length_trained=8192,
    rope_theta=100000.0,
    sliding_window=None,
    is_sliding=(False,) * 30,
    tied_embeddings=True,
    parameter_count=134_515_008,
    weights_bytes=100_000_000,
    weights_bytes_per_token=100_000_000,
    bytes_by_type={"Q4_K": 100_000_000},
    name="SmolLM2",
    licence="apache-2.0",
)

# Gemma 3 270M: 18 layers, every sixth is global, the others see 512 tokens.
GEMMA3 = dataclasses.replace(
    SMOLLM2,
    architecture="gemma3",
    n_layers=18,
    n_embd=640,
    n_ff=(2048,) * 18,
    n_heads=(4,) * 18,
    n_kv_heads=(1,) * 18,
    head_dim_k=256,
    head_dim_v=256,
    vocab_size=262144,
    context_length_trained=32768,
    sliding_window=512,
    is_sliding=tuple(layer % 6 != 5 for layer in range(18)),
    parameter_count=268_098_176,
)


def tier(budget: Quantity, **fields: Any) -> Tier:
    values: dict[str, Any] = {
        "name": "test",
        "title": "A test device",
        "os": "Linux",
        "abi": "x86_64",
        "memory_total_bytes": size(1 << 34),
        "memory_budget_bytes": budget,
        "memory_bandwidth_bytes_s": size(10e9),
        "compute_gflops": size(50),
    }
    return Tier(**{**values, **fields})
