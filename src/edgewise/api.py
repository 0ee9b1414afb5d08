"""The verbs of the Python interface, each one call; each imports only what it needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from edgewise.core.recipe import KvType
from edgewise.errors import InputError
from edgewise.store import Home
from edgewise.workflow.context import Context, Report

if TYPE_CHECKING:
    from edgewise.device import DeviceProfile
    from edgewise.planner import Plan
    from edgewise.workflow.async_chat import AsyncChat
    from edgewise.workflow.chat import Chat
    from edgewise.workflow.up_report import UpReport

Folder: TypeAlias = str | os.PathLike[str]

__all__ = ["open", "open_async", "plan", "probe", "up"]


def probe(*, home: Folder | None = None, measure_again: bool = False) -> DeviceProfile:
    """Return what this device is and can do, measured on the first call.

    Raises:
        AdapterError: the measuring process died.
        ResourceError: the home cannot be written.
    """
    from edgewise.workflow.probing import known_or_measured_device

    return known_or_measured_device(_context(home), measure_again=measure_again)[0]


def plan(
    model: str | None = None,
    *,
    tier: str = "this-device",
    context_length: int = 2048,
    kv_type: KvType | str = KvType.F16,
    app_bytes: int | None = None,
    draft: str | None = None,
    home: Folder | None = None,
) -> Plan:
    """Return whether a model fits a tier, what would make it fit, and how fast it can be.

    Args:
        model: Name, path or reference; ``None`` for the default model.
        tier: Name of a tier; this device by default.
        context_length: Tokens of context to reserve.
        kv_type: KV cache format, ``f16`` or ``q8_0``.
        app_bytes: Share of the hosting application, where you know it.
        draft: Reference of a draft model beside it, which guesses tokens ahead.
        home: Home folder, instead of ``EDGEWISE_HOME``.

    Raises:
        InputError: unknown tier or KV type, malformed reference, missing file, or a draft model
            that does not go with the model.
        IntegrityError: the file is no sound model.
        RemoteError: the model cannot be fetched.
        ResourceError: the home cannot be written.
    """
    from edgewise.workflow.planning import PlanRequest, plan_model

    request = PlanRequest(
        model=model,
        tier=tier,
        context_length=context_length,
        kv_type=KvType.parse(kv_type),
        app_bytes=app_bytes,
        draft=draft,
    )
    return plan_model(_context(home), request)


def up(
    model: str | None = None,
    *,
    home: Folder | None = None,
    report: Report | None = None,
    **options: Any,
) -> UpReport:
    """Return the report of setting a model up on this device: see ``edgewise up --help``.

    Args:
        model: Name, path or reference; ``None`` for the default model.
        home: Home folder, instead of ``EDGEWISE_HOME``.
        report: Called with each step as it happens.
        **options: Other fields of :class:`edgewise.workflow.up.UpRequest`.

    Raises:
        EdgewiseError: a step could not be carried out; a step that said no is in the report.
    """
    from edgewise.workflow.up import bring_up
    from edgewise.workflow.up_report import UpRequest

    return bring_up(_context(home, report), UpRequest(model=model, **options))


def open(  # noqa: A001 - the verb users expect
    fingerprint: str | None = None,
    *,
    system: str | None = None,
    home: Folder | None = None,
    state_disk_bytes: int = 0,
) -> Chat:
    """Return a conversation with the active model, or with another bundle.

    Args:
        fingerprint: Start of a fingerprint; ``None`` for the active deployment.
        system: System message.
        home: Home folder, instead of ``EDGEWISE_HOME``.
        state_disk_bytes: Disk on which the conversation's state may be kept, for after a
            ``release`` and for the next run; it holds the conversation. None by default.

    Raises:
        InputError: nothing is active, there is no such bundle, or the size is negative.
        IntegrityError: the bundle is damaged.
    """
    from edgewise.run.messages import PrefixSettings
    from edgewise.workflow.chat import Chat
    from edgewise.workflow.opening import open_session

    if state_disk_bytes < 0:
        raise InputError(
            "size-invalid", f"state_disk_bytes is a number of bytes, not {state_disk_bytes}"
        )
    prefixes = PrefixSettings(disk_bytes=state_disk_bytes) if state_disk_bytes else None
    return Chat(open_session(_context(home), fingerprint, prefixes=prefixes), system=system)


def open_async(
    fingerprint: str | None = None,
    *,
    system: str | None = None,
    home: Folder | None = None,
    state_disk_bytes: int = 0,
) -> AsyncChat:
    """Return a conversation for asyncio; arguments and errors as for :func:`open`."""
    from edgewise.workflow.async_chat import AsyncChat

    return AsyncChat(open(fingerprint, system=system, home=home, state_disk_bytes=state_disk_bytes))


def _context(home: Folder | None, report: Report | None = None) -> Context:
    return Context(Home(Path(home)) if home is not None else None, report=report)
