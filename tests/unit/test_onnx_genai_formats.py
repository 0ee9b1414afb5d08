"""ONNX graphs, formats and placement of the onnx-genai runtime, without its libraries."""

from __future__ import annotations

from typing import Any

import pytest

from edgewise.core.formats import Activation, OfferedFormat, parse_query
from edgewise.core.recipe import Recipe, resolve
from edgewise.errors import InputError, IntegrityError, UnsupportedError
from edgewise.runtimes.onnx_genai.formats import (
    FORMATS,
    activation_of,
    builder_options,
    offered,
    weights_of,
)
from edgewise.runtimes.onnx_genai.graph import Graph, parse_graph, read_graph
from edgewise.runtimes.onnx_genai.placement import report

CPU = "CPUExecutionProvider"
FLOAT, UINT8 = 1, 2


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def node(op: str, name: str, inputs: list[str], output: str = "", **integers: int) -> bytes:
    body = b"".join(field(1, one) for one in inputs) + field(2, output or f"{name}/output_0")
    body += field(3, name) + field(4, op)
    for key, value in integers.items():
        body += field(5, field(1, key) + field(3, value) + field(20, 2))
    return field(1, body)


def tensor(name: str, data_type: int, *shape: int) -> bytes:
    packed = b"".join(varint(one) for one in shape)
    return field(5, field(1, packed) + field(2, data_type) + field(8, name))


def model(*parts: bytes) -> bytes:
    return field(1, 10) + field(2, "somebody") + field(7, b"".join(parts))


def float_model() -> bytes:
    return model(
        node("Transpose", "/model/embed_tokens/Transpose", ["lm_head.weight"]),
        node(
            "Gather",
            "/model/embed_tokens/Gather",
            ["/model/embed_tokens/Transpose/output_0", "input_ids"],
        ),
        node("Gather", "/lm_head/prune/Gather", ["norm", "last"], axis=1),
        node("MatMul", "/model/layers.0/attn/o_proj/MatMul", ["x", "o_proj.weight"]),
        node("MatMul", "/model/rotary/MatMul", ["x", "y"]),
        node("MatMul", "/lm_head/MatMul", ["h", "lm_head.weight"]),
        tensor("lm_head.weight", FLOAT, 576, 49152),
        tensor("o_proj.weight", FLOAT, 576, 576),
    )


def quantised_model(*, bits: int = 4, asymmetric: bool = False, level: int = 4) -> bytes:
    def product(name: str, weight: str, bits: int) -> bytes:
        inputs = ["x", f"{weight}_Q", f"{weight}_scales"] + [f"{weight}_zp"] * asymmetric
        attributes: dict[str, Any] = {"bits": bits, "block_size": 32, "K": 576, "N": 576}
        if level:
            attributes["accuracy_level"] = level
        return node("MatMulNBits", name, inputs, **attributes)

    embedding = ["/embed/Reshape/output_0", "input_ids", "head_scales"] + ["head_zp"] * asymmetric
    return model(
        node("Reshape", "/embed/Reshape", ["head_Q", "shape"]),
        node(
            "GatherBlockQuantized",
            "/model/embed_tokens/GatherBlockQuantized",
            embedding,
            bits=8,
            block_size=32,
            gather_axis=0,
        ),
        product("/model/layers.0/mlp/up_proj/MatMul_Q4", "up", bits),
        product("/lm_head/MatMul_Q8", "head", 8),
        tensor("head_Q", UINT8, 49152, 18, 32),
        tensor("head_scales", FLOAT, 49152, 18),
        tensor("up_Q", UINT8, 1536, 18, 16),
        tensor("up_scales", FLOAT, 1536, 18),
    )


def stated(graph: Graph) -> list[tuple[str, str, str]]:
    return [(w.part, w.tensor, str(w.format)) for w in weights_of(graph)]


def test_a_graph_is_read_with_names_shapes_and_attributes() -> None:
    graph = parse_graph(quantised_model())
    product = next(n for n in graph.nodes if n.op == "MatMulNBits")
    assert product.name == "/model/layers.0/mlp/up_proj/MatMul_Q4"
    assert product.integers["block_size"] == 32
    assert graph.initializers["up_Q"].shape == (1536, 18, 16)
    assert graph.initializers["up_Q"].data_type == UINT8
    assert graph.producer("/embed/Reshape/output_0").op == "Reshape"
    assert graph.producer("head_Q") is None


def test_a_negative_attribute_keeps_its_sign() -> None:
    graph = parse_graph(model(node("Gather", "g", ["a"], axis=-1)))
    assert graph.nodes[0].integers == {"axis": -1}


@pytest.mark.parametrize("cut", range(1, 60, 3))
def test_a_file_that_ends_early_is_refused(cut: int) -> None:
    with pytest.raises(IntegrityError) as caught:
        parse_graph(float_model()[:-cut])
    assert caught.value.code == "onnx-malformed"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 12,
        b"\x0b",
        field(7, b""),
        field(7, b"\x0a\xff"),
        model(field(1, field(4, b"\xff\xfe"))),
    ],
)
def test_bytes_that_are_no_model_are_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        parse_graph(data)


def test_a_missing_file_is_refused(tmp_path) -> None:
    with pytest.raises(IntegrityError) as caught:
        read_graph(tmp_path / "model.onnx")
    assert caught.value.code == "onnx-unreadable"


def test_float_weights_are_found_behind_a_transposition() -> None:
    assert stated(parse_graph(float_model())) == [
        ("embedding", "lm_head.weight", "f32"),
        ("body", "o_proj.weight", "f32"),
        ("head", "lm_head.weight", "f32"),
    ]


def test_quantised_weights_are_stated_by_their_operators() -> None:
    assert stated(parse_graph(quantised_model())) == [
        ("embedding", "head_Q", "int8-g32-sym-f32"),
        ("body", "up_Q", "int4-g32-sym-f32"),
        ("head", "head_Q", "int8-g32-sym-f32"),
    ]
    zero_points = stated(parse_graph(quantised_model(asymmetric=True)))
    assert {text for _, _, text in zero_points} == {"int8-g32-asym-f32", "int4-g32-asym-f32"}


@pytest.mark.parametrize(
    ("level", "expected"), [(4, {"int8-dynamic": 2}), (0, {"float": 2}), (1, {"float": 2})]
)
def test_activations_follow_the_accuracy_level(level: int, expected: dict[str, int]) -> None:
    assert activation_of(parse_graph(quantised_model(level=level))) == expected


def test_a_graph_without_a_head_is_refused() -> None:
    with pytest.raises(IntegrityError):
        weights_of(parse_graph(model(node("Add", "a", ["x", "x"]))))


def test_an_embedding_of_no_stored_tensor_is_refused() -> None:
    broken = model(node("GatherBlockQuantized", "e", ["nowhere", "input_ids", "s"], bits=4))
    with pytest.raises(IntegrityError):
        weights_of(parse_graph(broken))


def test_names_of_formats_are_unique_and_every_one_can_be_asked_for() -> None:
    assert len({offer.name for offer in FORMATS}) == len(FORMATS)
    for offer in FORMATS:
        assert choice(offer.name) == offer.name
        with pytest.raises(InputError):  # a name that is a query would hide the other offers
            parse_query(offer.name)


def choice(weights: str, *, tied: bool = True, **more: Any) -> str:
    recipe = Recipe(name="r", weights=weights, **more)
    return resolve(recipe, offered(tied=tied), runtime="onnx-genai").name


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("f32", "fp32"),
        ("int4", "kquant-int4-head8"),
        ("int4-g32-asym-f32", "kquant-int4-head8"),
        ("int4-g32-sym", "rtn-int4-head8"),
        ("w4a8", "kquant-int4-head8"),
        ("w4a16", "rtn-int4-float"),
        ("w4a16-asym", "kquant-int4-float"),
        ("w4a16-sym", "rtn-int4-float"),
        ("int4-g128", "rtn-int4-g128"),
        ("int8", "rtn-int8"),
        ("w8a8-g32", "rtn-int8"),
        ("w8a16", "rtn-int8-float"),
    ],
)
def test_a_recipe_gets_the_first_format_that_meets_it(recipe: str, expected: str) -> None:
    assert choice(recipe) == expected


def test_embedding_head_and_method_are_constraints() -> None:
    assert choice("int4", embedding="int8", output="int8") == "kquant-int4-head8"
    assert choice("int4-sym", output="int8") == "rtn-int4-head8"
    assert choice("int4", embedding="f32") == "rtn-int4-embed32"
    assert choice("int4-asym", method="rtn") == "rtn-int4-asym"
    assert choice("int4", activation=Activation.FLOAT) == "rtn-int4-float"


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("f16", {}),
        ("int4-g64", {}),
        ("int4-channel", {}),
        ("w8a8s", {}),
        ("int4", {"method": "awq"}),
        ("int8-asym", {}),
        ("int8", {"embedding": "int8"}),
        ("q4_k_m", {}),
        ("as-is", {}),
    ],
)
def test_what_is_not_offered_is_refused(recipe: str, more: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        choice(recipe, **more)
    assert caught.value.code == "recipe-unsupported"
    assert caught.value.hint


def test_an_8_bit_embedding_needs_a_model_that_ties_it_to_the_head() -> None:
    with pytest.raises(UnsupportedError):
        choice("int4", embedding="int8", tied=False)
    assert choice("int4", tied=False) == "rtn-int4"


def options(name: str, *, tied: bool = True) -> tuple[str, set[str]]:
    offer: OfferedFormat = next(one for one in FORMATS if one.name == name)
    precision, pairs = builder_options(offer, tied=tied)
    return precision, set(pairs)


def test_the_builder_is_told_everything_it_would_guess() -> None:
    precision, pairs = options("rtn-int4")
    assert precision == "int4"
    assert {
        "block_size=32",
        "accuracy_level=4",
        "is_symmetric=true",
        "op_types_to_quantize=MatMul/Gather",
        "shared_embeddings=true",
        "hf_token=false",
        "windowed_kv_cache=false",
    } <= pairs
    assert not any(pair.startswith("algo_config") for pair in pairs)


def test_methods_and_widths_reach_the_builder() -> None:
    assert "algo_config=k_quant" in options("kquant-int4")[1]
    assert "algo_config=rtn" in options("rtn-int4-asym")[1]
    assert {"algo_config=rtn", "matmul_mixed_precision=last_matmul:int8"} <= options(
        "rtn-int4-head8"
    )[1]
    assert "accuracy_level=0" in options("rtn-int4-float")[1]
    assert "block_size=128" in options("rtn-int4-g128")[1]
    assert "op_types_to_quantize=MatMul" in options("rtn-int8")[1]
    assert options("fp32")[0] == "fp32"


def test_a_matrix_is_shared_only_where_the_model_ties_it() -> None:
    assert "shared_embeddings=false" in options("rtn-int4", tied=False)[1]
    assert "shared_embeddings=false" in options("rtn-int8")[1]
    assert "shared_embeddings=true" in options("fp32")[1]


def test_placement_counts_operators_and_names_fallbacks() -> None:
    graph = parse_graph(quantised_model())
    placed = [("MatMulNBits", "CUDA")] * 3 + [("MatMulNBits", CPU), ("Shape", CPU), ("Add", "CUDA")]
    found = report(placed, graph, requested="CUDA", cache_types={"tensor(float)"})
    assert found.operators["MatMulNBits"] == {"CUDA": 3, CPU: 1}
    assert found.fallbacks == ("MatMulNBits", "Shape")
    assert found.weights == {"CUDA": 3, CPU: 1}
    assert (found.delegated, found.fallen_back) == (4, 2)
    assert found.precision == {"activations": "2 matrix products int8-dynamic", "kv_cache": "f32"}
    assert found.source


def test_nothing_falls_back_when_all_is_where_it_was_asked_for() -> None:
    found = report(
        [("Add", CPU)] * 2, parse_graph(float_model()), requested=CPU, cache_types={"tensor(int8)"}
    )
    assert found.fallbacks == ()
    assert found.precision["kv_cache"] == "tensor(int8)"
    assert found.operators == {"Add": {CPU: 2}}
