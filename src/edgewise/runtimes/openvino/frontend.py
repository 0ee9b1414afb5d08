"""Graphs from OpenVINO's GGUF frontend, made into ones that keep their KV cache.

The frontend writes keys and values into preallocated caches that the caller passes in and out.
Here each cache becomes a state that the new rows are appended to. Weights stay as the frontend
decodes them: Q4_1's minima as float zero points, which OpenVINO GenAI's own reader rounds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgewise.errors import UnsupportedError
from edgewise.runtimes.openvino import native

__all__ = ["read_with_frontend"]

_TOKEN_AXIS = 1


def read_with_frontend(gguf: Path) -> Any:
    """Return the stateful graph of a GGUF file.

    Raises:
        UnsupportedError: this OpenVINO has no GGUF frontend, or the frontend does not know the
            architecture, or makes a graph that is no plain decoder.
    """
    native.load()
    manager = native.need("openvino.frontend").FrontEndManager()
    try:
        frontend = manager.load_by_framework("gguf")
        model = frontend.convert(frontend.load(str(gguf)))
        _make_stateful(model)
    except RuntimeError as error:
        raise UnsupportedError(
            "architecture-unsupported",
            f"OpenVINO's GGUF frontend does not read {gguf.name}",
            context={"native": str(error)[-500:]},
            hint="build from the Hugging Face form, which supports more models",
        ) from error
    return model


def _make_stateful(model: Any) -> None:
    opset = native.load().opset13
    pairs: dict[str, str] = {}
    for result in model.get_results()[1:]:
        write = result.input_value(0).get_node()
        cache = write.input_value(0).get_node()
        if write.get_type_name() != "ScatterUpdate" or cache.get_type_name() != "Parameter":
            raise UnsupportedError(
                "architecture-unsupported",
                f"the frontend's graph keeps {result.get_friendly_name()} in an unknown way",
                hint="build from the Hugging Face form",
            )
        rows = write.input_value(2).get_node().input_value(0)  # before they are flattened
        kept_as = write.get_output_element_type(0)
        # The plugin computes in f32 and would round states only when they are read out.
        kept = opset.parameter(
            cache.get_output_partial_shape(0), native.load().Type.f32, cache.get_friendly_name()
        )
        kept.output(0).set_names({cache.get_friendly_name()})
        model.replace_parameter(model.get_parameter_index(cache), kept)
        grown = opset.concat([kept, opset.convert(rows, "f32")], _TOKEN_AXIS)
        name = f"present_{cache.get_friendly_name()}"
        grown.output(0).set_names({name})
        write.output(0).replace(opset.convert(grown, kept_as).output(0))
        result.input(0).replace_source_output(grown.output(0))
        pairs[cache.get_friendly_name()] = name
    model.validate_nodes_and_infer_types()
    passes = native.need("openvino._offline_transformations")
    passes.apply_make_stateful_transformation(model, pairs)
