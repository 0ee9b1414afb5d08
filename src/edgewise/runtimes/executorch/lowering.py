"""From a checkpoint to a program: ExecuTorch's own decoder, quantised, traced and lowered.

Only this module imports the exporter's packages; they take half a minute to import. Paths handed
to them are relative to a work folder, because the library looks for words like ``8da4w`` in the
checkpoint's path and takes them for its format.
"""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgewise.core.formats import TensorFormat
from edgewise.errors import AdapterError
from edgewise.runtimes.executorch.checkpoint import Checkpoint, weights

if TYPE_CHECKING:
    from edgewise.core.formats import OfferedFormat
    from edgewise.runtimes.executorch.formats import Target

__all__ = ["STEP_TOKENS", "lower"]

# Tokens one run takes at most: the program plans its activations for so many.
STEP_TOKENS: Final = 128


def lower(
    checkpoint: Checkpoint,
    offer: OfferedFormat,
    target: Target,
    *,
    method: str,
    context_length: int,
    threads: int,
    work: Path,
    program: Path,
) -> dict[str, int]:
    """Write the program; return ``operator -> count`` of what the backend took.

    Args:
        checkpoint: The source.
        offer: The exact format.
        target: The backend.
        method: ``hqq`` or ``rtn``, for 4-bit weights.
        context_length: Tokens of the KV cache.
        threads: Threads torch may use.
        work: An empty folder for intermediate files.
        program: The absolute path to write.

    Raises:
        IntegrityError: the checkpoint's tensors do not fit its config.json.
        AdapterError: quantisation left a matrix out.
    """
    import torch  # noqa: PLC0415

    torch.set_num_threads(threads)
    torch._dynamo.reset()  # noqa: SLF001 - nothing of an earlier export in this process
    with contextlib.chdir(work), _silence():
        torch.save(weights(checkpoint), "weights.pth")
        Path("params.json").write_text(json.dumps(checkpoint.params), encoding="utf-8")
        config = _config(offer, target, method, context_length)
        from executorch.examples.models.llama import export_llama_lib  # noqa: PLC0415

        builder = export_llama_lib._prepare_for_llama_export(config)  # noqa: SLF001 - pinned
        if offer.weights.kind == "int":
            builder = builder.source_transform([_quantiser(offer, method)])
        builder = builder.export()
        builder.run_canonical_optimizations()
        builder = builder.pt2e_quantize([])
        if target.name == "vulkan":  # the one-step way keeps operators that it then refuses
            builder = builder.export_to_edge().to_backend(_partitioners(target))
        else:
            builder = builder.to_edge_transform_and_lower(_partitioners(target))
        delegated = _delegated(builder.edge_manager.exported_program().graph_module)
        builder = builder.to_executorch(passes=[])
        builder.save_to_pte(str(program))
    return delegated


def _config(offer: OfferedFormat, target: Target, method: str, context_length: int) -> Any:
    from executorch.extension.llm.export.config.llm_config import (  # noqa: PLC0415
        LlmConfig,
        ModelType,
    )

    config = LlmConfig()
    config.base.model_class = ModelType.llama3  # the class that overrides no parameter
    config.base.checkpoint, config.base.params = "weights.pth", "params.json"
    config.model.use_kv_cache = True
    config.model.use_sdpa_with_kv_cache = target.custom_attention
    config.model.enable_dynamic_shape = target.dynamic
    config.export.max_context_length = context_length
    # The tracer's limit for tokens is one less than this.
    config.export.max_seq_length = min(context_length, STEP_TOKENS + 1)
    if offer.embedding.kind == "int":
        config.quantization.embedding_quantize = (
            f"{offer.embedding.bits},{offer.embedding.group_size}"
        )
        config.quantization.use_hqq = _searches(offer.embedding, method)
    if target.name == "coreml":
        config.backend.coreml.enabled = True
        config.backend.coreml.ios = 18
    config.backend.vulkan.enabled = target.name == "vulkan"
    return config


def _partitioners(target: Target) -> list[Any]:
    from executorch.extension.llm.export import partitioner_lib  # noqa: PLC0415

    if target.name == "xnnpack":
        # Dynamically quantised products first: the general one would take them apart.
        return [partitioner_lib.get_xnnpack_partitioner(only) for only in (True, False)]
    if target.name == "vulkan":
        return [partitioner_lib.get_vulkan_partitioner("fp32", enable_dynamic_shape=True)]
    if target.name == "coreml":
        return [partitioner_lib.get_coreml_partitioner(18, coreml_compute_units="all")]
    return []


def _quantiser(offer: OfferedFormat, method: str) -> Any:
    from torch import nn  # noqa: PLC0415
    from torchao.quantization import quantize_  # noqa: PLC0415
    from torchao.utils import TorchAOBaseTensor  # noqa: PLC0415

    def is_linear(module: Any, name: str, *, head: bool) -> bool:
        return isinstance(module, nn.Linear) and (name == "output") is head

    def quantise(model: Any) -> Any:
        for values, head in ((offer.weights, False), (offer.output, True)):
            quantize_(
                model,
                _linear_config(values, method),
                filter_fn=lambda module, name, head=head: is_linear(module, name, head=head),
            )
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and not isinstance(module.weight, TorchAOBaseTensor):
                raise AdapterError(
                    "quantisation-incomplete", f"torchao left the matrix {name} unquantised"
                )
        return model

    return quantise


def _linear_config(values: TensorFormat, method: str) -> Any:
    import torch  # noqa: PLC0415
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig  # noqa: PLC0415
    from torchao.quantization.granularity import PerAxis, PerGroup  # noqa: PLC0415

    return Int8DynamicActivationIntxWeightConfig(
        weight_dtype=getattr(torch, f"int{values.bits}"),
        weight_granularity=PerGroup(values.group_size) if values.group_size else PerAxis(0),
        intx_choose_qparams_algorithm=("hqq_scale_only" if _searches(values, method) else "affine"),
    )


def _searches(values: TensorFormat, method: str) -> bool:
    return method == "hqq" and values.bits == 4


def _delegated(graph: Any) -> dict[str, int]:
    from executorch.devtools.backend_debug import get_delegation_info  # noqa: PLC0415

    found = get_delegation_info(graph).delegation_by_operator
    return {name: entry.delegated for name, entry in sorted(found.items()) if entry.delegated}


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep progress of the libraries off the log; they print pages."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
