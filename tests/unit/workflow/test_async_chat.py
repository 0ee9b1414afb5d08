"""The conversation for asyncio, on the real model."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path

import pytest

import edgewise
from edgewise.core.outcome import Completed
from edgewise.errors import InputError

STORY = "Write a long story about a lighthouse keeper who learns to play the cello."

pytestmark = [pytest.mark.model, pytest.mark.slow]


def test_several_turns_and_a_stream(ready_home: Path) -> None:
    async def talk() -> None:
        async with edgewise.open_async(home=ready_home) as chat:
            first = await chat.ask("Name a fruit.", max_tokens=12)
            assert isinstance(first, Completed)
            stream = chat.stream("And another one.", max_tokens=12)
            with pytest.raises(RuntimeError):
                _ = stream.outcome
            pieces = [piece async for piece in stream]
            assert isinstance(stream.outcome, Completed)
            assert "".join(pieces) == stream.outcome.text
            assert stream.outcome.tokens.reused > 0

    asyncio.run(talk())


def test_calls_at_once_are_answered_in_turn(ready_home: Path) -> None:
    async def talk() -> None:
        async with edgewise.open_async(home=ready_home) as chat:
            outcomes = await asyncio.gather(
                *(chat.ask(f"Say the number {n}.", max_tokens=8) for n in range(3))
            )
            assert all(isinstance(outcome, Completed) for outcome in outcomes)

    asyncio.run(talk())


def test_the_loop_goes_on_meanwhile_and_a_cancel_frees_the_engine(ready_home: Path) -> None:
    async def talk() -> None:
        async with edgewise.open_async(home=ready_home) as chat:
            await chat.ask("Hello", max_tokens=2)
            chat.reset()
            task = asyncio.create_task(chat.ask(STORY, max_tokens=1500))
            await asyncio.sleep(0.3)
            started = time.perf_counter()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.perf_counter() - started < 5
            assert isinstance(await chat.ask("Hello", max_tokens=2), Completed)

    asyncio.run(talk())


def test_leaving_the_stream_cancels_the_answer(ready_home: Path) -> None:
    async def talk() -> None:
        async with edgewise.open_async(home=ready_home) as chat:
            pieces = chat.stream(STORY, max_tokens=1500).__aiter__()
            await anext(pieces)
            await pieces.aclose()
            assert isinstance(await chat.ask("Hello", max_tokens=2), Completed)

    asyncio.run(talk())


def test_errors_come_through(ready_home: Path) -> None:
    async def talk() -> None:
        async with edgewise.open_async(home=ready_home) as chat:
            with pytest.raises(InputError):
                await chat.ask("")
            with pytest.raises(InputError):
                async for _ in chat.stream("x", max_tokens=10**9):
                    pass

    asyncio.run(talk())


def test_the_memory_is_handed_back_and_the_conversation_goes_on(
    ready_home: Path, tmp_path: Path
) -> None:
    home = tmp_path / "own"
    shutil.copytree(ready_home, home, copy_function=os.link)

    async def talk() -> None:
        async with edgewise.open_async(home=home, state_disk_bytes=64 << 20) as chat:
            first = await chat.ask("Name a fruit, and say where it grows.", max_tokens=24)
            assert isinstance(first, Completed)
            released = await chat.release(budget_s=20)
            assert isinstance(released, edgewise.Released)
            assert released.state_kept
            assert await chat.warm() > 0
            second = await chat.ask("And another one.", max_tokens=4)
            assert isinstance(second, Completed)
            assert first.tokens.prompt is not None
            assert second.tokens.reused > first.tokens.prompt
            task = asyncio.create_task(chat.ask(STORY, max_tokens=1500))
            await asyncio.sleep(0.3)
            with pytest.raises(InputError) as caught:
                await chat.release()
            assert caught.value.code == "session-busy"
            task.cancel()
            await asyncio.wait({task})
            assert (await chat.release()).resident_bytes.number > 0

    asyncio.run(talk())


def test_a_negative_quota_is_refused(ready_home: Path) -> None:
    with pytest.raises(InputError) as caught:
        edgewise.open(home=ready_home, state_disk_bytes=-1)
    assert caught.value.code == "size-invalid"
