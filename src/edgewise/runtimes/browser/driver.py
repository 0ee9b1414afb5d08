"""A headless browser with one page, driven from Python.

Invariants: the page reaches its own server and nothing else, and an attempt is reported; a page
that crashed, threw where nobody caught it, or did not answer in time is never used again; the
browser's processes end with the driver, whatever happened.

The browser's own thread runs an event loop; every public method may be called from any thread,
so that ``cancel`` works while another thread waits for an answer.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import queue
import threading
import time
import urllib.parse
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from edgewise.errors import AdapterError, EdgewiseError
from edgewise.runtimes.browser.calls import CALL, READY, is_memory, load_playwright, unwrap
from edgewise.runtimes.browser.chromium import require_browser, switches
from edgewise.runtimes.browser.processes import BrowserProcesses

__all__ = ["BrowserDriver"]

_START_TIMEOUT_S = 90.0
_CLOSE_TIMEOUT_S = 10.0
_CONSOLE_LINES = 400
_MESSAGE_CHARS = 2_000
_CRASH_HINT = "a page that runs out of memory ends like this: try a smaller model"
_LOCAL_SCHEMES = {"about", "blob", "data"}

_T = TypeVar("_T")


class BrowserDriver:
    """A page that keeps the convention of :mod:`edgewise.runtimes.browser`.

    Attributes:
        browser_version: Version of the browser, e.g. ``156.0.8078.73``.
    """

    def __init__(
        self, url: str, *, webgpu: bool = False, timeout_s: float = _START_TIMEOUT_S
    ) -> None:
        """Start a browser and open the page.

        Args:
            url: Address of a :class:`~edgewise.runtimes.browser.server.LoopbackServer`.
            webgpu: Whether the page needs WebGPU.
            timeout_s: Seconds for the browser to start and the page to become ready.

        Raises:
            UnsupportedError: there is no browser or no Playwright here.
            AdapterError: the browser does not start, or the page does not become ready.
        """
        self._origin = urllib.parse.urlsplit(url)
        self._browser_path = require_browser()
        self._api = load_playwright()
        self.browser_version = ""
        self._console: collections.deque[str] = collections.deque(maxlen=_CONSOLE_LINES)
        self._refused: list[str] = []
        self._broken: AdapterError | None = None
        self._streams: dict[int, queue.SimpleQueue[str | None]] = {}
        self._ids = itertools.count(1)
        self._processes = BrowserProcesses()
        self._loop = asyncio.new_event_loop()
        self._trouble: asyncio.Future[None] | None = None
        self._playwright: Any = None
        self._browser: Any = None
        self._page: Any = None
        self._closed = False
        self._thread = threading.Thread(
            target=self._run_loop, name="edgewise-browser-driver", daemon=True
        )
        self._thread.start()
        try:
            self._wait(self._start(url, webgpu=webgpu), timeout_s, "starting the browser")
        except BaseException:
            self.close()
            raise

    @property
    def console(self) -> tuple[str, ...]:
        """Return the last lines of the page's console, its workers' included."""
        return tuple(self._console)

    @property
    def refused_requests(self) -> tuple[str, ...]:
        """Return every address outside its own server that the page tried to reach."""
        return tuple(self._refused)

    @property
    def processes(self) -> BrowserProcesses:
        """Return the browser's processes, for their memory."""
        return self._processes

    def load(self, params: Mapping[str, Any], *, timeout_s: float = 600.0) -> Any:
        """Load a model and return what the page says of it; see :meth:`call`."""
        return self.call("load", params, timeout_s=timeout_s)

    def info(self, *, timeout_s: float = 30.0) -> Any:
        """Return the page's adapter, limits, threads and user agent; see :meth:`call`."""
        return self.call("info", None, timeout_s=timeout_s)

    def generate(
        self,
        params: Mapping[str, Any],
        on_text: Callable[[str], None] = lambda _piece: None,
        *,
        timeout_s: float = 600.0,
    ) -> Any:
        """Generate and return the page's result; ``on_text`` is called in this thread.

        An exception of ``on_text`` cancels the generation and is raised again.
        """
        return self.call("generate", params, on_text=on_text, timeout_s=timeout_s)

    def call(
        self,
        name: str,
        params: Any,
        *,
        on_text: Callable[[str], None] | None = None,
        timeout_s: float,
    ) -> Any:
        """Call ``window.edgewise[name](params, onText)`` and return what it promises.

        Args:
            name: A function of the page's API.
            params: JSON-able.
            on_text: Called with each piece of text, in this thread.
            timeout_s: Seconds until the page counts as hung; the browser is then ended.

        Raises:
            UnsupportedError: the page has no such function.
            AdapterError: the page rejected, threw, crashed, ran out of memory, or was too slow.
        """
        number = next(self._ids)
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._streams[number] = pieces
        try:
            future = self._submit(self._evaluate(name, params, number))
            future.add_done_callback(lambda _done: pieces.put(None))
            deadline = time.monotonic() + timeout_s
            self._deliver(pieces, on_text, deadline)
            return unwrap(name, self._result(future, deadline, name), self.console)
        finally:
            self._streams.pop(number, None)

    def cancel(self) -> None:
        """Ask the page to end its running generation. Callable from any thread; never waits."""
        with contextlib.suppress(AdapterError):
            self._submit(self._evaluate("cancel", None, 0))

    def screenshot(self, path: Path, *, width: int = 1100, height: int = 820) -> None:
        """Write a PNG of the page, in pixels."""

        async def take() -> None:
            await self._page.set_viewport_size({"width": width, "height": height})
            await self._page.screenshot(path=str(path))

        self._wait(take(), 60.0, "taking a screenshot")

    def act(self, script: str, argument: Any = None, *, timeout_s: float = 30.0) -> Any:
        """Evaluate a JavaScript function on the page, e.g. to press a button, in tests."""
        return self._wait(self._page.evaluate(script, argument), timeout_s, "a script")

    def close(self) -> None:
        """End the browser. Safe to call twice and after any failure."""
        if self._closed:
            return
        self._closed = True
        self._processes.note()
        with contextlib.suppress(Exception):
            ending = asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
            ending.result(_CLOSE_TIMEOUT_S)
        self._processes.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # In the caller's thread.

    def _deliver(
        self,
        pieces: queue.SimpleQueue[str | None],
        on_text: Callable[[str], None] | None,
        deadline: float,
    ) -> None:
        while True:
            try:
                piece = pieces.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            if piece is None:
                return
            if on_text is not None:
                try:
                    on_text(piece)
                except BaseException:
                    self.cancel()
                    self._deliver(pieces, None, min(deadline, time.monotonic() + 60.0))
                    raise

    def _submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        if self._closed or self._broken is not None:
            work.close()
            raise self._broken or AdapterError("browser-closed", "the browser has been closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, _T], timeout_s: float, what: str) -> _T:
        return self._result(self._submit(work), time.monotonic() + timeout_s, what)

    def _result(self, future: Future[_T], deadline: float, what: str) -> _T:
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeoutError:
            future.cancel()
            self._broken = AdapterError(
                "browser-timeout",
                f"the page did not finish {what} in time",
                context={"console": list(self.console[-20:])},
                hint="a loaded machine or a large model needs a longer limit",
            )
            self.close()
            raise self._broken from None
        except EdgewiseError:
            raise
        except Exception as error:
            raise self._broken or AdapterError(
                "browser-failed",
                f"the browser failed while {what}: {str(error)[:_MESSAGE_CHARS]}",
                context={"console": list(self.console[-20:])},
                hint="where it never starts, start it by hand once: a memory limit or a missing "
                "sandbox stops a browser",
            ) from error

    # In the browser's thread.

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()

    async def _start(self, url: str, *, webgpu: bool) -> None:
        self._trouble = self._loop.create_future()
        self._playwright = await self._api.async_playwright().start()
        self._processes.note()
        self._browser = await self._playwright.chromium.launch(
            executable_path=str(self._browser_path), headless=True, args=switches(webgpu=webgpu)
        )
        self._processes.note()
        self.browser_version = str(self._browser.version)
        self._browser.on(
            "disconnected", lambda _browser: self._fail("browser-died", "the browser died")
        )
        context = await self._browser.new_context(service_workers="block")
        await context.route("**/*", self._route)
        self._page = await context.new_page()
        self._page.on("crash", lambda _page: self._fail("browser-page-crashed", "the page crashed"))
        self._page.on("pageerror", self._page_error)
        self._page.on("console", self._console_line)
        self._page.on("websocket", self._note_socket)
        await self._page.expose_function("__edgewiseText", self._text)
        await self._page.goto(url, wait_until="load")
        said = await self._guarded(self._page.evaluate(READY))
        if said:
            raise AdapterError(
                "browser-page-not-ready",
                f"the page did not become ready: {said[:_MESSAGE_CHARS]}",
                context={"console": list(self.console[-20:])},
            )

    async def _stop(self) -> None:
        if self._browser is not None:
            await self._browser.close()
        if self._playwright is not None:
            await self._playwright.stop()

    async def _evaluate(self, name: str, params: Any, number: int) -> Any:
        return await self._guarded(self._page.evaluate(CALL, [name, params, number]))

    async def _guarded(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for the page, but no longer than it lives."""
        assert self._trouble is not None
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, self._trouble}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._broken is not None:
                raise self._broken
            return await task
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    def _fail(self, code: str, message: str, hint: str | None = _CRASH_HINT) -> None:
        if self._broken is None and not self._closed:
            self._broken = AdapterError(
                code, message, context={"console": list(self.console[-20:])}, hint=hint
            )
        if self._trouble is not None and not self._trouble.done():
            self._trouble.set_result(None)

    def _page_error(self, error: Any) -> None:
        text = str(getattr(error, "message", error))[:_MESSAGE_CHARS]
        self._console.append(f"uncaught: {text}")
        memory = is_memory(text)
        code = "browser-out-of-memory" if memory else "browser-page-error"
        message = f"the page threw and nobody caught it: {text}"
        self._fail(code, message, _CRASH_HINT if memory else None)

    def _console_line(self, message: Any) -> None:
        text = str(message.text)[:_MESSAGE_CHARS]
        self._console.append(f"{message.type}: {text}")
        if message.type == "error" and "Content Security Policy" in text:
            self._refused.append(f"content policy: {text[:300]}")

    def _text(self, number: int, piece: str) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            stream.put(piece)

    async def _route(self, route: Any) -> None:
        address = urllib.parse.urlsplit(route.request.url)
        if address.scheme in _LOCAL_SCHEMES or address[:2] == self._origin[:2]:
            await route.continue_()
        else:
            self._refused.append(route.request.url[:300])
            await route.abort("blockedbyclient")

    def _note_socket(self, socket: Any) -> None:
        # A socket cannot be routed without standing in for it; policy and proxy stop it.
        address = urllib.parse.urlsplit(str(socket.url))
        if address.netloc != self._origin.netloc:
            self._refused.append(str(socket.url)[:300])
