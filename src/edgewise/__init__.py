"""Edgewise: from a model checkpoint to a qualified, observable feature on a device.

The public face. Importing it reads no file, opens no socket and attaches no log handler; each
name is loaded when it is first used.

    >>> import edgewise
    >>> plan = edgewise.plan("smollm2-135m-instruct", tier="raspberry-pi")  # doctest: +SKIP
    >>> str(plan.verdict)  # doctest: +SKIP
    'fits'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgewise._version import __version__

if TYPE_CHECKING:
    from edgewise.api import (
        open,  # noqa: A004 - the verb users expect
        open_async,
        plan,
        probe,
        up,
    )
    from edgewise.core.outcome import Completed, Declined, Failed, FinishReason, Outcome
    from edgewise.core.release import Released
    from edgewise.core.request import ContextPolicy, DataClass, Message, Request, Sampling
    from edgewise.core.structure import Structure, StructureKind
    from edgewise.core.tools import Tool, ToolCall, ToolChoice
    from edgewise.errors import (
        AdapterError,
        EdgewiseError,
        InputError,
        IntegrityError,
        RemoteError,
        ResourceError,
        UnsupportedError,
    )
    from edgewise.planner import Plan, Verdict
    from edgewise.workflow.async_chat import AsyncChat
    from edgewise.workflow.chat import Chat

_HOMES = {
    "edgewise.api": ("open", "open_async", "plan", "probe", "up"),
    "edgewise.core.outcome": ("Completed", "Declined", "Failed", "FinishReason", "Outcome"),
    "edgewise.core.release": ("Released",),
    "edgewise.core.request": ("ContextPolicy", "DataClass", "Message", "Request", "Sampling"),
    "edgewise.core.structure": ("Structure", "StructureKind"),
    "edgewise.core.tools": ("Tool", "ToolCall", "ToolChoice"),
    "edgewise.errors": (
        "AdapterError",
        "EdgewiseError",
        "InputError",
        "IntegrityError",
        "RemoteError",
        "ResourceError",
        "UnsupportedError",
    ),
    "edgewise.planner": ("Plan", "Verdict"),
    "edgewise.workflow.async_chat": ("AsyncChat",),
    "edgewise.workflow.chat": ("Chat",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdapterError",
    "AsyncChat",
    "Chat",
    "Completed",
    "ContextPolicy",
    "DataClass",
    "Declined",
    "EdgewiseError",
    "Failed",
    "FinishReason",
    "InputError",
    "IntegrityError",
    "Message",
    "Outcome",
    "Plan",
    "Released",
    "RemoteError",
    "Request",
    "ResourceError",
    "Sampling",
    "Structure",
    "StructureKind",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "UnsupportedError",
    "Verdict",
    "__version__",
    "open",
    "open_async",
    "plan",
    "probe",
    "up",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'edgewise' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
