"""A conversation for asyncio: the same as :class:`~edgewise.workflow.chat.Chat`, awaited.

The engine answers in a process of its own and the waiting is done in a thread, so the event loop
is never held up. Cancelling the task that waits cancels the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final, Self

from edgewise.core.outcome import Outcome
from edgewise.core.release import Released
from edgewise.core.request import Request
from edgewise.workflow.chat import Chat

__all__ = ["AnswerStream", "AsyncChat"]

_END: Final = None
# A cancel that comes before the call has reached the worker finds nothing to cancel.
_CANCEL_AGAIN_S: Final = 0.02


class AnswerStream:
    """The text of one answer as it comes; iterate over it, then read :attr:`outcome`."""

    def __init__(self, chat: AsyncChat, prompt: str, options: dict[str, Any]) -> None:
        self._chat = chat
        self._prompt = prompt
        self._options = options
        self._outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """Return the outcome.

        Raises:
            RuntimeError: the answer has not ended, or ended by an exception.
        """
        if self._outcome is None:
            raise RuntimeError("the answer has not ended yet: iterate over the stream first")
        return self._outcome

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        """Yield pieces of text, whole characters each. Leaving the loop cancels the answer."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        def take(text: str) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, text)

        answering = asyncio.ensure_future(
            self._chat.ask(self._prompt, on_text=take, **self._options)
        )
        answering.add_done_callback(lambda _done: pieces.put_nowait(_END))
        try:
            while (piece := await pieces.get()) is not _END:
                yield piece
            self._outcome = await answering
        finally:
            if not answering.done():
                answering.cancel()
                await asyncio.wait({answering})


class AsyncChat:
    """A conversation over a session. Use it in an ``async with`` block; it ends the worker."""

    def __init__(self, chat: Chat) -> None:
        """Take a conversation that nobody else uses."""
        self._chat = chat
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def fingerprint(self) -> str:
        """Return the deployment fingerprint of the model that answers."""
        return self._chat.fingerprint

    async def ask(
        self, prompt: str, *, on_text: Callable[[str], None] | None = None, **options: Any
    ) -> Outcome:
        """Return the outcome of the next turn; several calls are answered one after the other.

        Args:
            prompt: What the user says.
            on_text: Called with each piece of text as it comes, in another thread.
            **options: As for :meth:`Chat.ask <edgewise.Chat.ask>`.

        Raises:
            InputError: the prompt is empty or does not fit, or an option is out of range.
            IntegrityError: the model's file has changed since it was qualified.
            asyncio.CancelledError: this task was cancelled; so was the answer.
        """
        return await self._wait(self._chat.ask, prompt, on_text=on_text, **options)

    async def give(
        self,
        results: Mapping[str, str],
        *,
        on_text: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Outcome:
        """Return the outcome once the model has the results of its calls.

        Arguments and errors as for :meth:`Chat.give <edgewise.Chat.give>` and :meth:`ask`.
        """
        return await self._wait(self._chat.give, results, on_text=on_text, **options)

    async def request(
        self, request: Request, *, on_text: Callable[[str], None] | None = None
    ) -> Outcome:
        """Return the outcome of a request of your own, apart from the history.

        Errors as for :meth:`ask`.
        """
        return await self._wait(self._chat.request, request, on_text=on_text)

    async def _wait(self, call: Callable[..., Outcome], asked: Any, **options: Any) -> Outcome:
        async with self._turn:
            answering = asyncio.ensure_future(asyncio.to_thread(call, asked, **options))
            try:
                return await asyncio.shield(answering)
            except asyncio.CancelledError:
                # The thread ends by itself once the engine has stopped; only then is the
                # conversation free for the next turn.
                while not answering.done():
                    self._chat.cancel()
                    await asyncio.wait({answering}, timeout=_CANCEL_AGAIN_S)
                raise

    def stream(self, prompt: str, **options: Any) -> AnswerStream:
        """Return the answer's text as an asynchronous iterator; arguments as for :meth:`ask`."""
        return AnswerStream(self, prompt, options)

    async def release(self, *, budget_s: float = 2.0) -> Released:
        """Hand the model's memory back; as :meth:`Chat.release <edgewise.Chat.release>`.

        It does not wait for an answer that runs: cancel the task that does first.

        Raises:
            InputError: an answer is running, or the budget is no time.
        """
        return await asyncio.to_thread(self._chat.release, budget_s=budget_s)

    async def warm(self) -> float:
        """Load the model ahead of the next question; as :meth:`Chat.warm <edgewise.Chat.warm>`.

        Raises:
            EdgewiseError: an answer is running, or the model cannot be loaded now.
        """
        return await asyncio.to_thread(self._chat.warm)

    def reset(self) -> None:
        """Forget the conversation, keep the system message."""
        self._chat.reset()

    async def close(self) -> None:
        """End the worker."""
        await asyncio.to_thread(self._chat.close)
