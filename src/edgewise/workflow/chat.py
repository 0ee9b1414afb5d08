"""A conversation in Python: ask, get an outcome, the history kept for you."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from edgewise.core.outcome import Completed, Outcome
from edgewise.core.request import Message, Request, Sampling
from edgewise.run.session import Session

__all__ = ["Chat"]


class Chat:
    """A conversation over a session. Use it in a ``with`` block; it ends the worker."""

    def __init__(self, session: Session, *, system: str | None = None) -> None:
        self._session = session
        self._start = (Message(role="system", content=system),) if system else ()
        self.messages: tuple[Message, ...] = self._start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def fingerprint(self) -> str:
        """Return the deployment fingerprint of the model that answers."""
        return self._session.bundle.fingerprint

    def ask(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        on_text: Callable[[str], None] | None = None,
        **request: Any,
    ) -> Outcome:
        """Return the outcome of the next turn; a completed answer joins the history.

        Args:
            prompt: What the user says.
            max_tokens: Most tokens to generate; ``None`` for up to 512.
            sampling: How tokens are chosen; greedy by default.
            on_text: Called with each piece of text as it comes.
            **request: Other fields of :class:`edgewise.Request`, such as ``stop``.

        Raises:
            InputError: the prompt is empty or does not fit, or an option is out of range.
            IntegrityError: the model's file has changed since it was qualified.
        """
        asked = (*self.messages, Message(role="user", content=prompt))
        outcome = self._session.ask(
            Request(
                messages=asked, max_tokens=max_tokens, sampling=sampling or Sampling(), **request
            ),
            on_text=on_text,
        )
        if isinstance(outcome, Completed) and outcome.text:
            self.messages = (*asked, Message(role="assistant", content=outcome.text))
        return outcome

    def cancel(self) -> None:
        """Cancel the running answer. Callable from any thread."""
        self._session.cancel()

    def reset(self) -> None:
        """Forget the conversation, keep the system message."""
        self.messages = self._start

    def close(self) -> None:
        """End the worker."""
        self._session.close()
