"""Making a format from the float model with ai-edge-quantizer."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from pathlib import Path
from typing import Any

from edgewise.errors import AdapterError, ResourceError
from edgewise.runtimes.litert.artifact import find_model
from edgewise.runtimes.litert.flatbuffer import open_model
from edgewise.runtimes.litert.formats import QuantPlan
from edgewise.store.home import storage_error

__all__ = ["quantise"]

_EVERYWHERE = ".*"
_ERROR_CHARACTERS = 500


def quantise(source: Path, destination: Path, plan: QuantPlan) -> None:
    """Write ``source`` in another format.

    Args:
        source: The float model.
        destination: The file to write.
        plan: What to make of the matrices.

    Raises:
        AdapterError: the quantiser failed.
        ResourceError: memory or disk ran out.
    """
    quantizer = importlib.import_module("ai_edge_quantizer.quantizer")

    heads = [m.name for m in open_model(find_model(source)).matrices() if m.role == "head"]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            work = quantizer.Quantizer(str(source))
            work.load_quantization_recipe(_recipe(plan, heads))
            work.quantize().export_model(str(destination), overwrite=True)
    except MemoryError as error:
        raise ResourceError(
            "export-out-of-memory", "the quantiser ran out of memory", retryable=True
        ) from error
    except OSError as error:
        raise storage_error(error, destination, "quantising") from error
    except Exception as error:
        raise AdapterError(
            "quantise-failed",
            f"ai-edge-quantizer failed with {type(error).__name__}",
            context={"error": str(error)[:_ERROR_CHARACTERS]},
        ) from error
    destination.chmod(0o644)  # the quantiser marks its file as executable


def _recipe(plan: QuantPlan, heads: list[str]) -> Any:
    qtyping = importlib.import_module("ai_edge_quantizer.qtyping")
    recipe_manager = importlib.import_module("ai_edge_quantizer.recipe_manager")

    operations = qtyping.TFLOperationName
    granularities = qtyping.QuantGranularity
    manager = recipe_manager.RecipeManager()
    by_row = granularities.CHANNELWISE
    body = granularities[f"BLOCKWISE_{plan.block}"] if plan.block else by_row

    def add(pattern: str, operation: Any, bits: int, granularity: Any) -> None:
        method = manager.add_dynamic_config if plan.integer else manager.add_weight_only_config
        method(pattern, operation, bits, granularity)

    ends = (plan.ends_bits, by_row) if plan.ends_bits else (plan.body_bits, body)
    add(_EVERYWHERE, operations.FULLY_CONNECTED, plan.body_bits, body)
    add(_EVERYWHERE, operations.EMBEDDING_LOOKUP, *ends)
    for name in heads:
        add(re.escape(name), operations.FULLY_CONNECTED, *ends)
    return manager.get_quantization_recipe()
