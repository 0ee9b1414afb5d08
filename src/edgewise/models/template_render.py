"""Running a chat template in a thread of its own that can be stopped.

Invariants: the caller gets an answer or a typed error soon after the time limit, also when the
thread cannot be stopped, and then the error says so; every failure of jinja2 becomes one of our
codes.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from jinja2 import Template, TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from edgewise.errors import EdgewiseError, InputError, IntegrityError
from edgewise.models.template_limits import TooLargeError, start_meter
from edgewise.models.template_sandbox import build_environment

__all__ = ["render_bounded"]

# How long a thread gets to notice that it must stop, and how often it is told.
_STOP_GRACE_S: Final = 0.25
_STOP_ATTEMPTS: Final = 8


class _StopRender(BaseException):
    """Ends a render; no ``except Exception`` on the way can hold it up."""


class _RejectedError(Exception):
    """The template called ``raise_exception``."""


class _Worker(threading.Thread):
    def __init__(self, render: Any) -> None:
        super().__init__(name="edgewise-template", daemon=True)
        self._render = render
        self._lock = threading.Lock()
        self._finished = False
        self.text = ""
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            try:
                self.text = self._render()
            except BaseException as error:  # noqa: BLE001 - carried to the caller
                self.error = error
            with self._lock:
                self._finished = True
        except _StopRender as error:  # told to stop just as it ended
            self.error = error

    def stop(self) -> bool:
        """Return whether the thread has ended, after telling it to."""
        for _ in range(_STOP_ATTEMPTS):
            with self._lock:
                if not self._finished and self.ident is not None:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(self.ident), ctypes.py_object(_StopRender)
                    )
            self.join(_STOP_GRACE_S)
            if not self.is_alive():
                return True
        return False


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    return build_environment().from_string(source)


def render_bounded(
    source: str,
    name: str,
    variables: Mapping[str, Any],
    *,
    now: datetime,
    time_limit_s: float,
    size_limit_chars: int,
) -> str:
    """Return what a template makes of the variables.

    Args:
        source: Jinja source.
        name: For messages.
        variables: Plain data.
        now: What ``strftime_now`` formats.
        time_limit_s: Wall time for compiling and rendering.
        size_limit_chars: Largest result.

    Raises:
        InputError: the template refuses the messages (``template-rejected``).
        IntegrityError: ``template-invalid``, ``template-too-slow``, ``template-too-large`` or
            ``template-unsafe``.
    """

    def raise_exception(message: object = "") -> None:
        raise _RejectedError(str(message)[:500])

    def strftime_now(layout: str) -> str:
        return now.strftime(str(layout)[:200])

    functions: dict[str, Any] = {"raise_exception": raise_exception, "strftime_now": strftime_now}
    for function in functions.values():
        function.edgewise_template_function = True  # what the sandbox lets a template call

    def render() -> str:
        start_meter()
        pieces: list[str] = []
        size = 0
        template = _compiled(source)
        for piece in template.generate({**variables, **functions}):
            size += len(piece)
            if size > size_limit_chars:
                message = f"the prompt has more than {size_limit_chars} characters"
                raise TooLargeError(message)
            pieces.append(piece)
        return "".join(pieces)

    worker = _Worker(render)
    worker.start()
    worker.join(time_limit_s)
    stopped = not worker.is_alive() or worker.stop()
    if not stopped or isinstance(worker.error, _StopRender):
        raise IntegrityError(
            "template-too-slow",
            f"the chat template {name} did not end within {time_limit_s:g} s",
            context={
                "template": name,
                "time_limit_s": time_limit_s,
                "thread_stopped": stopped,
            },
            hint="the template is hostile, or the conversation is far too long for it",
        )
    if worker.error is not None:
        raise _typed(worker.error, name) from worker.error
    return worker.text


def _typed(error: BaseException, name: str) -> EdgewiseError:
    """Return the error to raise for what went wrong in a template."""
    context: dict[str, Any] = {"template": name, "reason": str(error)[:500]}
    if isinstance(error, TemplateSyntaxError):
        context["line"] = error.lineno
    if isinstance(error, _RejectedError):
        return InputError(
            "template-rejected",
            f"the chat template {name} refuses these messages: {error}",
            context=context,
            hint="change the messages as the template asks",
        )
    hint = "the model file is damaged or hostile; use another source for it"
    if isinstance(error, SecurityError):
        return IntegrityError(
            "template-unsafe",
            f"the chat template {name} reaches for what it must not: {error}",
            context=context,
            hint=hint,
        )
    if isinstance(error, TooLargeError | MemoryError | OverflowError | RecursionError):
        return IntegrityError(
            "template-too-large",
            f"the chat template {name} makes too much: {error}",
            context=context,
            hint="the conversation is too long for one prompt, or the template is hostile",
        )
    what = "is not valid" if isinstance(error, TemplateSyntaxError) else "fails"
    kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    return IntegrityError(
        "template-invalid",
        f"the chat template {name} {what}: {kind}{str(error)[:200]}",
        context=context,
        hint="the template does not fit these messages, or the model file is damaged",
    )
