"""A conversation in Python: ask, get an outcome, the history kept for you."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from edgewise.core.outcome import Completed, Outcome
from edgewise.core.release import Released
from edgewise.core.request import ContextPolicy, Message, Request, Sampling
from edgewise.errors import InputError
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

        An answer with tool calls joins it too: give their results with :meth:`give`.

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
        request |= {"max_tokens": max_tokens, "sampling": sampling or Sampling()}
        return self._turn((Message(role="user", content=prompt),), request, on_text)

    def give(
        self,
        results: Mapping[str, str],
        *,
        on_text: Callable[[str], None] | None = None,
        **request: Any,
    ) -> Outcome:
        """Return the outcome once the model has the results of the calls it made last.

        Args:
            results: What each call came to, by the call's id.
            on_text: Called with each piece of text as it comes.
            **request: Fields of :class:`edgewise.Request`; give the ``tools`` again.

        Raises:
            InputError: the last answer made other calls, or as for :meth:`ask`.
            IntegrityError: the model's file has changed since it was qualified.
        """
        calls = [call.id for call in self.messages[-1].tool_calls] if self.messages else []
        if not calls or set(calls) != set(results):
            raise InputError(
                "tool-results-mismatched",
                f"the last answer made {len(calls)} calls, and the results are for {len(results)}",
                context={"calls": calls, "results": list(results)},
                hint="give one result for each call of outcome.tool_calls, by its id",
            )
        answers = (Message(role="tool", content=results[call], tool_call_id=call) for call in calls)
        return self._turn(tuple(answers), request, on_text)

    def request(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Outcome:
        """Return the outcome of a request of your own; the history is neither used nor changed.

        Raises:
            InputError: the request does not fit.
            IntegrityError: the model's file has changed since it was qualified.
        """
        return self._session.ask(request, on_text=on_text)

    def _turn(
        self,
        new: tuple[Message, ...],
        fields: dict[str, Any],
        on_text: Callable[[str], None] | None,
    ) -> Outcome:
        asked = (*self.messages, *new)
        outcome = self._session.ask(_request(asked, fields), on_text=on_text)
        if isinstance(outcome, Completed) and (outcome.text or outcome.tool_calls):
            said = Message(role="assistant", content=outcome.text, tool_calls=outcome.tool_calls)
            self.messages = (*asked, said)
        return outcome

    def cancel(self) -> None:
        """Cancel the running answer. Callable from any thread."""
        self._session.cancel()

    def release(self, *, budget_s: float = 2.0) -> Released:
        """Hand the model's memory back, for an application that goes into the background.

        The history stays here. Where a quota on disk was given, the conversation's state is
        written first, if the time suffices. The next question loads the model again.

        Args:
            budget_s: How long it may take, in seconds.

        Raises:
            InputError: an answer is running (cancel it first), or the budget is no time.
        """
        return self._session.release(budget_s=budget_s)

    def warm(self) -> float:
        """Load the model ahead of the next question; return what that took, in milliseconds.

        Raises:
            EdgewiseError: as for :meth:`ask`, or the model cannot be loaded now.
        """
        return self._session.warm()

    def reset(self) -> None:
        """Forget the conversation, keep the system message."""
        self.messages = self._start

    def close(self) -> None:
        """End the worker."""
        self._session.close()


def _request(messages: tuple[Message, ...], fields: dict[str, Any]) -> Request:
    """Return a request; lists and names are taken where Python users write them.

    Raises:
        InputError: there is no such field, or a value is out of range.
    """
    known = set(Request.__struct_fields__) - {"messages"}
    unknown = sorted(set(fields) - known)
    if unknown:
        sampled = [name for name in unknown if name in Sampling.__struct_fields__]
        raise InputError(
            "request-invalid",
            f"a turn has no option {unknown[0]!r}",
            context={"field": unknown[0]},
            hint=f"write sampling=edgewise.Sampling({sampled[0]}=…)"
            if sampled
            else f"it has: {', '.join(sorted(known - {'prompt', 'echo'}))}",
        )
    stop, tools, policy = (fields.get(name) for name in ("stop", "tools", "context_policy"))
    if isinstance(stop, str):
        fields["stop"] = (stop,)
    elif isinstance(stop, list):
        fields["stop"] = tuple(stop)
    if isinstance(tools, list):
        fields["tools"] = tuple(tools)
    if isinstance(policy, str) and policy in set(ContextPolicy):
        fields["context_policy"] = ContextPolicy(policy)
    return Request(messages=messages, **fields)
