"""Reports on a model that is loaded in a browser, from llama.cpp's log of loading it there.

wllama gives no other account: no operator list, no buffer names. A line that is not found is
unknown, never zero.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgewise.core.quantity import Measured, Quantity, Unknown
from edgewise.errors import AdapterError
from edgewise.runtimes.reports import PartitionReport

__all__ = ["buffer_bytes", "partition_report"]

_MIB = 1 << 20
_BUFFER = re.compile(r"(\S+)\s+(model|KV|compute|output) buffer size =\s*([0-9.]+) MiB")
_GRAPH = re.compile(r"graph: nodes = (\d+), splits = (\d+)")
_REQUESTED = "CPU"


def buffer_bytes(log: Sequence[str], *kinds: str) -> Quantity:
    """Return the size of buffers, e.g. of ``KV``, or of ``compute`` and ``output`` together."""
    sizes: dict[str, float] = {}
    for line in log:
        for _, kind, size in _BUFFER.findall(line):
            sizes[kind] = sizes.get(kind, 0.0) + float(size)
    if kinds[0] not in sizes:
        return Unknown(reason=f"llama.cpp logged no {kinds[0]} buffer size")
    total = sum(sizes.get(kind, 0.0) for kind in kinds)
    return Measured(value=int(total * _MIB), source="llama.cpp log in the browser: buffer size")


def partition_report(log: Sequence[str], threads: int) -> PartitionReport:
    """Return where llama.cpp's graph runs.

    A graph of one split whose buffers all lie in one place runs there, node by node; a graph of
    several splits is divided in a way that the log does not tell, and counts as fallen back.

    Raises:
        AdapterError: the log names no graph or no buffers.
    """
    text = "\n".join(log)
    places = {place for place, _, _ in _BUFFER.findall(text)}
    graph = _GRAPH.search(text)
    if graph is None or not places:
        raise AdapterError("partition-failed", "wllama logged no graph or no buffers")
    whole = int(graph[2]) == 1 and places == {_REQUESTED}
    where = _REQUESTED if whole else "divided among " + ", ".join(sorted(places))
    attention = "flash attention" if "Flash Attention enabled" in text else "plain attention"
    return PartitionReport(
        requested=_REQUESTED,
        operators={"graph nodes": {where: int(graph[1])}},
        fallbacks=() if whole else ("graph nodes",),
        features=("WebAssembly", f"threads={threads}", attention),
        source="llama.cpp's log in the browser: graph nodes, splits, and the buffers' places",
    )
