"""``edgewise probe``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import StepPrinter, print_json, print_table, say, show, show_quantity

if TYPE_CHECKING:
    from edgewise.device import DeviceProfile

__all__ = ["probe_command"]


@click.command("probe")
@click.option("--read-only", is_flag=True, help="Read only; measure nothing and try no runtime.")
@json_option
def probe_command(*, read_only: bool, as_json: bool) -> int:
    """Say what this device is: processor, memory, bandwidth, runtimes that truly load, signals.

    Every value says whether it was measured, estimated or declared, and where it comes from.
    """
    from edgewise.device import page_cache_ratio
    from edgewise.errors import InputError
    from edgewise.workflow.context import Context
    from edgewise.workflow.probing import measure_and_record

    printer = StepPrinter()
    context = Context(report=printer)
    profile = context.device if read_only else measure_and_record(context)[0]
    printer.clear()
    try:
        bundle = context.bundles.active()
        cached = page_cache_ratio(context.bundles.artifact(bundle))
    except InputError:
        cached = None
    if as_json:
        import msgspec

        data: dict[str, Any] = msgspec.to_builtins(profile)
        data["digest"] = profile.digest
        data["active_model_page_cache_ratio"] = (
            {"kind": "unknown", "reason": "no model is active"}
            if cached is None
            else msgspec.to_builtins(cached)
        )
        print_json(data)
        return 0
    _show(profile, cached)
    return 0


def _show(profile: DeviceProfile, cached: Any) -> None:
    rows: list[list[str]] = []

    def add(section: str, name: str, quantity: Any, unit: str = "") -> None:
        label = name.removesuffix("_bytes_s").removesuffix("_bytes").replace("_", " ")
        source = getattr(quantity, "source", "")
        rows.append([section, label, show_quantity(quantity, unit), source])

    for section in (
        "os",
        "abi",
        "cpu",
        "memory",
        "storage",
        "bandwidth",
        "power",
        "thermal",
        "accelerators",
        "container",
    ):
        values = getattr(profile, section)
        for name in values.__struct_fields__:
            quantity = getattr(values, name)
            if not hasattr(quantity, "value") and not hasattr(quantity, "reason"):
                continue
            unit = (
                "bytes/s"
                if name.endswith("_bytes_s")
                else ("bytes" if name.endswith("_bytes") else "")
            )
            add(section, name, quantity, unit)
    if cached is not None:
        add("storage", "active_model_in_page_cache", cached)
    print_table(["section", "what", "value", "source"], rows)
    for runtime in profile.runtimes:
        state = "runs" if runtime.can_run else "does not run"
        show(f"runtime {runtime.name} {runtime.version}: {state} ({runtime.reason})")
    print(f"device {profile.digest}")
    for reason in profile.contention.reasons:
        say(f"contention: {reason}")
