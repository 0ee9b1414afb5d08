"""Plan a model for a tier or for this device."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgewise.core.quantity import Declared, Quantity, Unknown
from edgewise.core.recipe import KvType, RunConfig
from edgewise.core.tier import Tier
from edgewise.device import DeviceProfile
from edgewise.device.process import peak_resident_bytes
from edgewise.models.sources import default_model, parse_reference
from edgewise.models.sources.files import folder_of, is_folder, local_path
from edgewise.models.sources.reference import FileReference
from edgewise.planner import THIS_DEVICE, Candidate, DraftCandidate, Plan, load_tier, make_plan
from edgewise.runtimes import registry
from edgewise.runtimes.launch import default_loading
from edgewise.store import trees
from edgewise.workflow.checkpoints import Description, describe, fetch_checkpoint
from edgewise.workflow.context import Context
from edgewise.workflow.draft_setup import (
    draft_candidate,
    require_pair,
    require_place,
    require_smaller,
)
from edgewise.workflow.probing import known_or_measured_device

__all__ = [
    "DEFAULT_CONTEXT",
    "DEFAULT_RUNTIME",
    "PlanRequest",
    "app_share",
    "candidate",
    "default_run_config",
    "device_tier",
    "locate",
    "plan_model",
]

DEFAULT_CONTEXT = 2048
DEFAULT_RUNTIME = "llamacpp"
# What a hosting application of its own may take, where nobody has measured one.
_APP_SHARE_BYTES = 64 << 20


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to plan.

    ``model`` is a reference or ``None`` for the default model, ``draft`` one of a draft model.
    """

    model: str | None = None
    tier: str = THIS_DEVICE
    context_length: int = DEFAULT_CONTEXT
    kv_type: KvType = KvType.F16
    runtime: str = DEFAULT_RUNTIME
    app_bytes: int | None = None
    offline: bool = False
    parallel: int = 1
    draft: str | None = None


def plan_model(context: Context, request: PlanRequest) -> Plan:
    """Return the plan of a model on a tier.

    A model that is not in the home yet is fetched, since a plan from anything but the real
    tensor index would be a guess. A local file is read where it lies.

    Raises:
        InputError: unknown tier, malformed reference, missing file, or a draft model that does
            not go with the model.
        IntegrityError: the file is no sound model.
        RemoteError: the model cannot be fetched.
        ResourceError: the home cannot be written.
        UnsupportedError: no such runtime is registered, or it has no place for a draft model.
    """
    if request.draft is not None:
        require_place(request.runtime, request.parallel)
    here = request.tier == THIS_DEVICE
    tier = None if here else load_tier(request.tier)
    path, facts = locate(context, request.model, offline=request.offline)
    description = describe(path)
    draft = _draft(context, request, description, str(facts["name"]))
    config = default_run_config(context, request, description)
    if tier is None:
        tier = device_tier(known_or_measured_device(context)[0], huge_pages=config.huge_pages)
    return make_plan(
        candidate(description, config, facts, app_bytes=app_share(request, here=here), draft=draft),
        tier,
        registry.adapter(request.runtime).footprint,
    )


def candidate(
    description: Description,
    config: RunConfig,
    facts: dict[str, str | int | None],
    *,
    app_bytes: Quantity,
    draft: DraftCandidate | None = None,
) -> Candidate:
    """Return what the planner needs to know about a described model."""
    shape = description.shape
    return Candidate(
        shape=shape,
        shape_missing=description.shape_missing,
        weights_bytes=sum(t.size_bytes for t in description.file.tensors),
        run_config=config,
        app_bytes=app_bytes,
        draft=draft,
        facts={
            **facts,
            "architecture": str(description.file.metadata.get("general.architecture")),
            "parameters": None if shape is None else shape.parameter_count,
            "context_length_trained": None if shape is None else shape.context_length_trained,
            "file_size_bytes": description.file.file_size_bytes,
        },
    )


def _draft(
    context: Context, request: PlanRequest, description: Description, name: str
) -> DraftCandidate | None:
    if request.draft is None:
        return None
    path, facts = locate(context, request.draft, offline=request.offline)
    found = describe(path)
    require_pair(str(facts["name"]), found, name, description)
    sizes = [sum(t.size_bytes for t in one.file.tensors) for one in (found, description)]
    require_smaller(str(facts["name"]), sizes[0], name, sizes[1])
    return draft_candidate(found)


def default_run_config(
    context: Context, request: PlanRequest, description: Description
) -> RunConfig:
    """Return the run configuration to plan with, before anything is tuned.

    Where it is a setting (the llama.cpp family) flash attention is on, since it bounds the
    workspace; but off in ik_llama.cpp with an f16 cache, whose passes over several tokens are
    exact only without it, and whose decoding is no slower. Loading is by huge pages where this
    platform has them. What tuning chooses on the device replaces both.
    """
    del description
    load_mode, huge = default_loading(
        request.runtime, device_has_huge_pages=_thp_available(context)
    )
    usable = context.device.cpu.cores_usable
    return RunConfig(
        context_length=request.context_length,
        kv_type=request.kv_type,
        threads=1 if isinstance(usable, Unknown) else max(1, int(usable.number)),
        flash_attention=_flash_attention(request),
        load_mode=load_mode,
        huge_pages=huge,
        parallel=request.parallel,
    )


def _flash_attention(request: PlanRequest) -> bool:
    if registry.adapter(request.runtime).source_form != "gguf":
        return False
    return request.runtime != "ik" or request.kv_type is not KvType.F16


def device_tier(profile: DeviceProfile, *, huge_pages: bool) -> Tier:
    """Return this device as a tier, every number as the probe knows it.

    The budget is what is available now, so what other programs use is never counted as free.
    """
    return Tier(
        name=THIS_DEVICE,
        title=f"this device ({_text(profile.cpu.model)})",
        os=f"{_text(profile.os.name)} {_text(profile.os.build)}",
        abi=_text(profile.abi.triple),
        memory_total_bytes=profile.memory.total_bytes,
        memory_budget_bytes=profile.memory.budget_bytes,
        memory_bandwidth_bytes_s=(
            profile.bandwidth.read_huge_bytes_s
            if huge_pages
            else profile.bandwidth.read_base_bytes_s
        ),
        compute_gflops=profile.bandwidth.matmul_gflops,
        page_bytes=_number(profile.memory.page_bytes, 4096),
        notes="; ".join(profile.contention.reasons),
    )


def locate(
    context: Context, model: str | None, *, offline: bool = False
) -> tuple[Path, dict[str, str | int | None]]:
    """Return where a model's file lies, fetched if need be, and what is known of it."""
    reference = parse_reference(model or default_model())
    if isinstance(reference, FileReference) and reference.sha256 is None:
        path = folder_of(reference) if is_folder(reference) else local_path(reference.path)
        return path, {"name": path.name, "sha256": None}
    checkpoint = fetch_checkpoint(context, model, offline=offline)
    return trees.path_of(context.home, checkpoint.sha256), {
        "name": checkpoint.reference,
        "sha256": checkpoint.sha256,
    }


def app_share(request: PlanRequest, *, here: bool) -> Quantity:
    """Return the hosting application's share: stated, or this process, or a declared reserve."""
    if request.app_bytes is not None:
        return Declared(value=request.app_bytes, source="stated by the caller")
    if here:
        return peak_resident_bytes()
    return Declared(
        value=_APP_SHARE_BYTES, source="reserve for a hosting application; state another with --app"
    )


def _thp_available(context: Context) -> bool:
    mode = context.device.memory.transparent_huge_pages
    return not isinstance(mode, Unknown) and mode.value in {"madvise", "always"}


def _text(quantity: Quantity) -> str:
    return "unknown" if isinstance(quantity, Unknown) else str(quantity.value)


def _number(quantity: Quantity, default: int) -> int:
    return default if isinstance(quantity, Unknown) else int(quantity.number)
