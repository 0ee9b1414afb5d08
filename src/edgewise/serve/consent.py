"""Consent over HTTP: an application answers a question, or a person does on a page.

Invariants: what is answered is the question that was made here; only its name comes from outside.
What cannot be recorded is an error, and the question stays open. A page of another site can
neither read a question nor answer it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hmac
import urllib.parse
from collections.abc import Callable
from typing import TypeVar

from edgewise.errors import EdgewiseError, InputError
from edgewise.route.consent import Choice, ConsentLedger, Origin, record_choice
from edgewise.serve.consent_bodies import ChoiceBody, ChoiceReply, DecisionList, RevokeReply
from edgewise.serve.consent_page import PAGE_HEADERS, ask_page, done_page, problem_page
from edgewise.serve.exchange import Exchange
from edgewise.serve.json_body import decode
from edgewise.serve.limits import Limits
from edgewise.serve.problems import ProblemError
from edgewise.serve.questions import Question, Questions

__all__ = ["ConsentDesk"]

_HTML = "text/html; charset=utf-8"
_FORM_BYTES_MAX = 4096
_FIELDS = frozenset({"token", "choice", "until"})
T = TypeVar("T")


class ConsentDesk:
    """Tells and records decisions, for one ledger."""

    def __init__(self, questions: Questions, ledger: ConsentLedger, limits: Limits) -> None:
        self._questions = questions
        self._ledger = ledger
        self._limits = limits
        self._writing = asyncio.Lock()  # a locked ledger holds one thread, and not all

    # -- for applications

    async def answer(self, exchange: Exchange, name: str) -> None:
        """Record what an application was told."""
        data = await exchange.json_body()
        try:
            body = decode(data, ChoiceBody, nesting_max=self._limits.nesting_max)
        except InputError as error:
            if error.context.get("param") == "until":
                raise _no_moment(self._questions.get(name)) from None
            raise
        decision = await self._record(name, body.choice, body.until, Origin.API)
        await exchange.reply(
            ChoiceReply(choice=body.choice, decision=decision, question=name, until=body.until)
        )

    async def decisions(self, exchange: Exchange) -> None:
        """Tell every decision."""
        entries = await self._ledger_call(self._ledger.entries)
        await exchange.reply(DecisionList(data=list(entries)))

    async def revoke(self, exchange: Exchange, name: str) -> None:
        """Take a decision back."""
        count = await self._ledger_call(lambda: self._ledger.revoke(name, origin=Origin.API))
        await exchange.reply(RevokeReply(id=name, revoked=count))

    # -- for a person

    async def show(self, exchange: Exchange, name: str) -> None:
        """Show a question."""
        try:
            page = ask_page(self._questions.get(name))
        except EdgewiseError as error:
            await self._show_problem(exchange, error)
            return
        await exchange.raw(page.encode(), _HTML, headers=PAGE_HEADERS)

    async def take(self, exchange: Exchange, name: str) -> None:
        """Record what the form of a question says, and show what was done."""
        try:
            form = _form(await exchange.form_body(_FORM_BYTES_MAX))
            question = self._questions.get(name)
            given = form.get("token", "").encode()
            if not hmac.compare_digest(given, question.form_token.encode()):
                raise _form_refused("it is not the form of this question")
            choice = _choice(form.get("choice", ""))
            until = _end_of_day(form.get("until", ""), question) if choice is Choice.UNTIL else None
            decision = await self._record(name, choice, until, Origin.WEB)
        except EdgewiseError as error:
            await self._show_problem(exchange, error)
            return
        page = done_page(question, choice, until, decision)
        await exchange.raw(page.encode(), _HTML, headers=PAGE_HEADERS)

    async def _show_problem(self, exchange: Exchange, error: EdgewiseError) -> None:
        problem = ProblemError(error)
        exchange.note = error.code
        await exchange.raw_problem(
            problem, problem_page(problem).encode(), _HTML, headers=PAGE_HEADERS
        )

    # -- both

    async def _record(
        self, name: str, choice: Choice, until: dt.datetime | None, origin: Origin
    ) -> str:
        def record() -> str:
            with self._questions.answering(name) as question:
                return record_choice(
                    self._ledger, question.prompt, choice, origin=origin, until=until
                )

        self._questions.get(name)  # a name that is none waits for nobody
        return await self._ledger_call(record)

    async def _ledger_call(self, call: Callable[[], T]) -> T:
        async with self._writing:
            return await asyncio.to_thread(call)


def _form(data: bytes) -> dict[str, str]:
    """Return the fields of a form, each once and known.

    Raises:
        InputError: it is no such form (``consent-form-refused``).
    """
    try:
        pairs = urllib.parse.parse_qsl(
            data.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=len(_FIELDS),
        )
    except ValueError:
        raise _form_refused("it is not what the page sends") from None
    form = dict(pairs)
    if len(form) != len(pairs) or not form.keys() <= _FIELDS:
        raise _form_refused("it has other fields than the page's")
    return form


def _choice(text: str) -> Choice:
    try:
        return Choice(text)
    except ValueError:
        raise _form_refused("it has no choice") from None


def _end_of_day(text: str, question: Question) -> dt.datetime:
    """Return the end of a day in this device's time zone, or the latest moment if it is earlier."""
    try:
        day = dt.date.fromisoformat(text)
        end = dt.datetime.combine(day + dt.timedelta(days=1), dt.time()).astimezone()
    except (ValueError, OverflowError):
        raise InputError(
            "consent-date-invalid",
            "the day until which you agree is missing, or is no date",
            hint="choose a day and answer again",
        ) from None
    latest = question.prompt.until_at_most
    # The page offers whole days: the last of them ends when the offer does.
    if latest is not None and day == latest.astimezone().date():
        return min(end, latest)
    return end


def _no_moment(question: Question) -> InputError:
    latest = question.prompt.until_at_most
    allowed = (
        "this question takes none"
        if latest is None
        else f"{latest.isoformat(timespec='seconds')} at most"
    )
    return InputError(
        "parameter-invalid",
        f"until: it is no moment with a time zone; {allowed}",
        context={"param": "until"},
        hint="write it like 2027-03-31T18:00:00+02:00, with the choice `until`",
    )


def _form_refused(why: str) -> InputError:
    return InputError(
        "consent-form-refused",
        f"this answer was not taken: {why}; nothing was recorded",
        hint="open the question again and answer there",
    )
