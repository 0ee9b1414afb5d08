"""Which operators a delegate took, from node lists as the interpreter gives them."""

from __future__ import annotations

import pytest

from edgewise.runtimes.litert.report import assign, report_from


def node(index: int, name: str, inputs: list[int], outputs: list[int]) -> dict[str, object]:
    return {"index": index, "op_name": name, "inputs": inputs, "outputs": outputs}


# An embedding on the CPU, a block in one partition, a cache update on the CPU that needs the
# block's result, and a second partition behind it. Tensors 90 and up are constants.
NODES = [
    node(0, "EMBEDDING_LOOKUP", [0, 90], [1]),
    node(1, "FULLY_CONNECTED", [1, 91, -1], [2]),
    node(2, "MUL", [2, 1], [3]),
    node(3, "DYNAMIC_UPDATE_SLICE", [50, 3, 92], [51]),
    node(4, "STABLEHLO_COMPOSITE", [3], [4]),
    node(5, "FULLY_CONNECTED", [4, 93, -1], [5]),
    node(6, "ADD", [5, 51], [6]),
    node(7, "DELEGATE", [1, 91], [3]),
    node(8, "DELEGATE", [4, 93, 51], [6]),
]
NAMES = ["EMBEDDING_LOOKUP", "FULLY_CONNECTED", "MUL", "DYNAMIC_UPDATE_SLICE"]
NAMES += ["odml.rms_norm", "FULLY_CONNECTED", "ADD"]


def test_an_operator_belongs_to_the_partition_between_whose_borders_it_lies() -> None:
    assert assign(NODES[:7], NODES[7:]) == {1: 7, 2: 7, 5: 8, 6: 8}


def test_the_report_counts_places_and_names_what_fell_back() -> None:
    report = report_from(NODES, NAMES, threads=2)
    assert report.operators["FULLY_CONNECTED"] == {"XNNPACK": 2}
    assert report.operators["odml.rms_norm"] == {"CPU kernels": 1}
    assert (report.delegated, report.fallen_back) == (4, 3)
    assert report.fallbacks == ("DYNAMIC_UPDATE_SLICE", "EMBEDDING_LOOKUP", "odml.rms_norm")
    assert report.weights == {"CPU kernels": 1, "XNNPACK": 2}
    assert "2 partitions" in report.source


@pytest.mark.parametrize("names", [[], NAMES[:3]])
def test_names_that_do_not_fit_the_nodes_are_not_used(names: list[str]) -> None:
    report = report_from(NODES, names, threads=1)
    assert "STABLEHLO_COMPOSITE" in report.operators


def test_without_a_delegate_everything_fell_back() -> None:
    report = report_from(NODES[:7], NAMES, threads=1)
    assert report.delegated == 0
    assert report.fallen_back == 7
