"""Older turns come back when they share words with the last user message.

Ranked by BM25 (Robertson and Zaragoza, 2009) as SQLite's FTS5 computes it, in memory. Each word
goes into the index and into the query as letters and digits only and in quotation marks, so no
text can act as query syntax. Where writing has no spaces, pairs of characters stand for words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from edgewise.core.outcome import Event
from edgewise.errors import UnsupportedError
from edgewise.run.context.task import Fitted, Task, attempt, fewest
from edgewise.run.context.turns import Conversation, ranges

if TYPE_CHECKING:
    import sqlite3

__all__ = ["RETRIEVED_SHARE", "rank", "retrieve"]

# Of the room, at most; the newest turns have the rest, and what retrieval leaves.
RETRIEVED_SHARE: Final = 0.5

_QUERY_WORDS_MAX: Final = 256
# Chinese, Japanese, Thai, Lao, Burmese and Khmer are written without spaces.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs of the scripts of India are no letters to a regular expression.
_LETTER: Final = rf"(?:[^\W_{_UNSPACED}]|[\u0900-\u0dff])"
_WORD: Final = re.compile(rf"[{_UNSPACED}]+|{_LETTER}+")
_UNSPACED_FIRST: Final = re.compile(f"[{_UNSPACED}]")
_INDEX: Final = "CREATE VIRTUAL TABLE turns USING fts5(words, tokenize = 'porter unicode61')"
_QUERY: Final = "SELECT rowid FROM turns WHERE turns MATCH ? ORDER BY bm25(turns), rowid DESC"


def retrieve(task: Task) -> Fitted:
    """Return the newest turns, and those older ones that share most with the last message.

    Raises:
        UnsupportedError: SQLite has no full-text search here.
        EdgewiseError: messages cannot be rendered.
    """
    share = int(task.room * RETRIEVED_SHARE)
    left_out, tokens = task.newest_turns(max(task.room - share, len(task.least)))
    older = range(left_out)
    ranked = [turn for turn in rank(task.conversation, _question(task)) if turn in older]
    chosen = _that_fit(task, ranked, min(share, task.room - len(tokens)))
    chosen, tokens = _verified(task, chosen, left_out, tokens)
    left_out, tokens = _filled_up(task, chosen, left_out, tokens)
    return _fitted(task, [turn for turn in chosen if turn < left_out], left_out, tokens)


def rank(conversation: Conversation, question: str) -> list[int]:
    """Return the turns before the last that share words with a text, best first.

    Among equals the newer one comes first.

    Raises:
        UnsupportedError: SQLite has no full-text search here.
    """
    asked = list(dict.fromkeys(_words(question)))[:_QUERY_WORDS_MAX]
    with closing(_index()) as index:
        index.executemany(
            "INSERT INTO turns (rowid, words) VALUES (?, ?)",
            (
                (number, " ".join(_words_of(conversation, number)))
                for number in range(len(conversation.turns) - 1)
            ),
        )
        query = " OR ".join(f'"{word}"' for word in asked)
        return [row[0] for row in index.execute(_QUERY, (query,))] if query else []


def _index() -> sqlite3.Connection:
    try:
        import sqlite3  # noqa: PLC0415 - few requests need it, and Python may lack it
    except ImportError as error:
        raise _unavailable("this Python has no sqlite3") from error
    index = sqlite3.connect(":memory:")
    try:
        # What a user said is never written to a temporary file.
        index.execute("PRAGMA temp_store = MEMORY")
        index.execute(_INDEX)
    except sqlite3.OperationalError as error:
        index.close()
        raise _unavailable(f"SQLite {sqlite3.sqlite_version} says: {error}") from error
    return index


def _unavailable(why: str) -> UnsupportedError:
    return UnsupportedError(
        "retrieval-unavailable",
        f"older turns cannot be searched: {why}",
        context={"reason": why},
        hint="use a Python whose SQLite has FTS5, or another context policy",
    )


def _question(task: Task) -> str:
    users = [m.content for m in task.conversation.turn(task.last) if m.role == "user"]
    return users[-1] if users else ""


def _words_of(conversation: Conversation, number: int) -> Iterable[str]:
    for message in conversation.turn(number):
        yield from _words(message.content)
        for call in message.tool_calls:
            yield from _words(f"{call.name} {call.arguments}")


def _words(text: str) -> Iterable[str]:
    for run in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        if len(run) > 1 and _UNSPACED_FIRST.match(run):
            yield from (run[at : at + 2] for at in range(len(run) - 1))
        else:
            yield run


def _that_fit(task: Task, ranked: Sequence[int], spare: int) -> list[int]:
    """Return the best turns that about fit into so many tokens together."""
    chosen: list[int] = []
    for turn in ranked:
        if spare <= task.empty_and_frame[1]:
            break
        cost = task.cost(task.conversation.turn(turn))
        if cost <= spare:
            chosen.append(turn)
            spare -= cost
    return chosen


def _kept(task: Task, chosen: Iterable[int], left_out: int) -> frozenset[int]:
    return frozenset(chosen) | frozenset(range(left_out, len(task.conversation.turns)))


def _verified(
    task: Task, chosen: list[int], left_out: int, without: list[int]
) -> tuple[list[int], list[int]]:
    """Return as many of the chosen turns as do fit, best first, and the prompt with them."""

    def render(fewer: int) -> list[int] | None:
        best = chosen[: len(chosen) - fewer]
        return task.attempt(task.conversation.keep(_kept(task, best, left_out)))

    tokens = render(0) if chosen else without
    if tokens is not None:
        return chosen, tokens
    fewer, tokens = fewest(
        (0, None),
        (len(chosen), without),
        room=task.room,
        weights=range(len(chosen) + 1),
        render=render,
    )
    return chosen[: len(chosen) - fewer], tokens


def _filled_up(
    task: Task, chosen: list[int], left_out: int, tokens: list[int]
) -> tuple[int, list[int]]:
    """Return how few turns are left out, when newer ones take what room is left.

    That is mostly little, so the search goes from there in steps that double.
    """

    def render(fewer: int) -> list[int] | None:
        kept = task.conversation.keep(_kept(task, chosen, fewer))
        return attempt(task.render, kept, task.room)

    step, bad = 1, (0, task.whole)
    while left_out - step > 0:
        found = render(left_out - step)
        if found is None or len(found) > task.room:
            bad = (left_out - step, None if found is None else len(found))
            break
        left_out, tokens = left_out - step, found
        step *= 2
    return fewest(bad, (left_out, tokens), room=task.room, weights=task.characters, render=render)


def _fitted(task: Task, back: list[int], left_out: int, tokens: list[int]) -> Fitted:
    kept = _kept(task, back, left_out)
    facts = task.facts(tokens, sorted(kept), turns_retrieved=ranges(sorted(back)))
    events: tuple[Event, ...] = (task.left_out(tokens, sorted(kept)),)
    if back:
        event = Event(
            code="context-turns-retrieved",
            message=f"{len(back)} older turns stay, since they share words with the last message",
            context=facts,
        )
        events = (*events, event)
    return Fitted(messages=task.conversation.keep(kept), tokens=tokens, events=events)
