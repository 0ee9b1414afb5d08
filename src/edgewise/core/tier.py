"""A device class, by the properties that decide whether and how well a model runs on it."""

from __future__ import annotations

import msgspec

from edgewise.core.quantity import Quantity

__all__ = ["Tier"]


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device class.

    Attributes:
        name: Identifier, e.g. ``phone-flagship``.
        title: What a person calls it, with an example.
        os: Operating system family and least version.
        abi: Binary interface, e.g. ``arm64-v8a``.
        memory_total_bytes: Memory the device class has.
        memory_budget_bytes: Memory that one application may hold in the foreground.
        memory_bandwidth_bytes_s: Sequential read bandwidth of memory.
        compute_gflops: Sustained f32 matrix throughput of the CPU, for prefill.
        page_bytes: Base page size.
        notes: What a reader must know before trusting a verdict for this tier.
    """

    name: str
    title: str
    os: str
    abi: str
    memory_total_bytes: Quantity
    memory_budget_bytes: Quantity
    memory_bandwidth_bytes_s: Quantity
    compute_gflops: Quantity
    page_bytes: int = 4096
    notes: str = ""
