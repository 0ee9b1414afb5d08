"""``--assume NAME=VALUE`` of ``edgewise route``."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from edgewise.cli.options import model_size
from edgewise.core.quantity import Declared
from edgewise.core.state import LinkState, MemoryState, PowerState, StorageState, ThermalState
from edgewise.errors import InputError

if TYPE_CHECKING:
    from edgewise.workflow.assuming import Assumed

__all__ = ["ASSUME_HELP", "assumed_of"]

_PERCENT = re.compile(r"([0-9]{1,3})%")
_Field = tuple[str, Any]


def assumed_of(texts: tuple[str, ...], link: str | None) -> Assumed:
    """Return what ``NAME=VALUE`` texts, and ``--link``, say is to be assumed.

    Raises:
        InputError: there is no such thing to assume, it has no such value, or it is said twice
            (``assumption-invalid``).
    """
    from edgewise.workflow.assuming import Assumed

    found: dict[str, Any] = {}
    every = [*texts, *([] if link is None else [f"link={link}"])]
    for text in every:
        name, separator, value = text.partition("=")
        if not separator or name not in _READERS:
            raise _invalid(f"{text[:80]!r} is nothing that can be assumed", tuple(_READERS))
        field, read = _READERS[name][0](value.strip())
        if read is None:
            allowed = _READERS[name][1]
            raise _invalid(f"{name} cannot be {value[:80]!r}", allowed, name)
        if field in found:
            raise _invalid(f"{name} is assumed twice", (), name)
        found[field] = read
    return Assumed(**found)


def _one_of(field: str, kind: type[StrEnum]) -> Callable[[str], _Field]:
    return lambda text: (field, kind(text) if text in set(kind) else None)


def _battery(text: str) -> _Field:
    percent = _PERCENT.fullmatch(text)
    if percent is None:
        return _one_of("power", PowerState)(text)
    if int(percent[1]) > 100:
        return "power", None
    from edgewise.device.power import power_state
    from edgewise.device.sections import PowerInfo

    info = PowerInfo(
        battery_present=Declared(value=True, source="assumed"),
        battery_ratio=Declared(value=int(percent[1]) / 100, source="assumed"),
        charging=Declared(value=False, source="assumed"),
    )
    return "power", power_state(info)[0]


def _memory(text: str) -> _Field:
    if text in set(MemoryState):
        return "memory", MemoryState(text)
    try:
        return "memory_available_bytes", model_size(text)
    except InputError:
        return "memory", None


def _doubt(text: str) -> _Field:
    return "unsure", {"unsure": True, "sure": False}.get(text)


_READERS: dict[str, tuple[Callable[[str], _Field], tuple[str, ...]]] = {
    "battery": (_battery, (*PowerState, "0% to 100%, on battery")),
    "thermal": (_one_of("thermal", ThermalState), tuple(ThermalState)),
    "memory": (_memory, (*MemoryState, "or what is available, such as 512MiB")),
    "storage": (_one_of("storage", StorageState), tuple(StorageState)),
    "link": (_one_of("link", LinkState), tuple(LinkState)),
    "doubt": (_doubt, ("unsure", "sure")),
}
ASSUME_HELP = f"Assume {', '.join(_READERS)} instead of reading it, as battery=12%; repeatable."


def _invalid(why: str, allowed: tuple[str, ...], name: str = "") -> InputError:
    told = ", ".join(map(str, allowed))
    return InputError(
        "assumption-invalid",
        why,
        context={"name": name, "allowed": [str(one) for one in allowed]},
        hint=f"{f'{name} is' if name else 'write NAME=VALUE with'} one of: {told}"
        if allowed
        else "say it once",
    )
