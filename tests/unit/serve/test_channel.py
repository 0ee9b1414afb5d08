"""The way of chunks from the engine's thread to the loop: order, bounds, and a reader that stalls."""

from __future__ import annotations

import asyncio
import threading
import time

from edgewise.run.messages import Chunk
from edgewise.serve.channel import Channel


def write(channel: Channel, n: int, results: list[bool] | None = None) -> threading.Thread:
    def work() -> None:
        for i in range(n):
            kept_up = channel.put(Chunk(text=str(i)))
            if results is not None:
                results.append(kept_up)
        channel.end()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_all_chunks_arrive_in_order_through_a_small_buffer() -> None:
    async def read() -> list[str]:
        channel = Channel(asyncio.get_running_loop(), chunks_max=3, stall_s=5.0)
        thread = write(channel, 500)
        texts: list[str] = []
        while (chunks := await channel.take()) is not None:
            assert len(chunks) <= 3
            texts += [chunk.text for chunk in chunks]
        thread.join()
        assert await channel.take() is None
        return texts

    assert asyncio.run(read()) == [str(i) for i in range(500)]


def test_a_writer_is_told_that_nobody_reads() -> None:
    async def stall() -> list[bool]:
        channel = Channel(asyncio.get_running_loop(), chunks_max=2, stall_s=0.05)
        results: list[bool] = []
        thread = write(channel, 3, results)
        await asyncio.to_thread(thread.join)
        return results

    assert asyncio.run(stall()) == [True, True, False]


def test_shutting_lets_a_waiting_writer_go_at_once() -> None:
    async def shut() -> tuple[list[bool], float]:
        channel = Channel(asyncio.get_running_loop(), chunks_max=1, stall_s=30.0)
        results: list[bool] = []
        thread = write(channel, 5, results)
        while not results:  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.001)
        started = time.monotonic()
        channel.shut()
        await asyncio.to_thread(thread.join)
        assert await channel.take() is None
        return results, time.monotonic() - started

    results, took_s = asyncio.run(shut())
    assert results == [True] * 5
    assert took_s < 5


def test_a_writer_outlives_its_loop() -> None:
    async def make() -> Channel:
        return Channel(asyncio.get_running_loop(), chunks_max=9, stall_s=1.0)

    channel = asyncio.run(make())
    assert channel.put(Chunk(text="late"))
    channel.end()
