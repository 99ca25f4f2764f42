"""A collector bounds its memory for messages that are not written yet, however many ranks send at once."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.connection import Connection
from stepscope.collector.errors import FullError
from stepscope.collector.files.disk import DiskQuota
from stepscope.collector.memory_budget import Grant, MemoryBudget
from stepscope.collector.web import web_protocols
from stepscope.exporters.stream import protocol
from stepscope.runtime.requests.command import Command
from tests.support.basics import poll
from tests.support.collectors import answer, collecting, connected
from tests.support.messages import refused
from tests.support.streams import frames, frames_header, hello

LIMIT = 1 << 20


# leave to hold a message


@given(st.lists(st.tuples(st.integers(1, 150), st.integers(0, 5)), max_size=40))
def test_memory_of_messages_is_bounded(rows: list[tuple[int, int]]) -> None:
    """Waiting connections come in the order in which they asked, and in the end all have come."""
    budget = MemoryBudget(100)
    asked: list[Grant] = []
    came: list[int] = []
    for number, (size, over) in enumerate(rows):
        grant = budget.request(size, partial(came.append, number))
        if grant.granted:
            came.append(number)
        asked.append(grant)
        for one in [one for one in asked if one.granted and not one.released][:over]:
            one.release()
        granted = [one for one in asked if one.granted and not one.released]
        assert budget.used == sum(one.size for one in granted) and (budget.used <= 100 or len(granted) == 1)
    while granted := [one for one in asked if not one.released and one.granted]:
        granted[0].release()
        granted[0].release()
    assert came == list(range(len(rows))) and budget.used == budget.waiting == 0


def test_a_waiting_request_that_is_released_holds_up_no_other() -> None:
    """It is passed over, and holds up nobody."""
    budget = MemoryBudget(10)
    first, second, third = (budget.request(8, lambda: None) for _ in range(3))
    second.release()
    assert budget.waiting == 1 and not third.granted
    first.release()
    assert third.granted and not second.granted and budget.used == 8


# a collector


async def test_a_written_message_takes_no_memory(tmp_path: Path) -> None:
    """A thousand exporters that are silent for a while use no memory for their last messages."""
    count, size = 4, 2 << 20
    async with collecting(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for number in range(count):
            one = await stack.enter_async_context(connected(running.url))
            await one.send(hello(stream=f"{number:032x}"))
            assert isinstance(await answer(one), protocol.Welcome)
            await one.send(protocol.encode(frames_header(0, 1), frames(0, 1, size=size)))
            assert await answer(one) == protocol.Ack(1)
        await poll(lambda: running.collector.budget.used == 0)
        # Before the pong of its client, which comes after twenty seconds.
        async with asyncio.timeout(10):
            await poll(lambda: tracemalloc.get_traced_memory()[0] < 2 * size)


async def test_an_unfinished_message_makes_others_wait_and_not_for_ever(tmp_path: Path) -> None:
    """Waiting connections are not read, yet may compare clocks before; they come when it is finished, or goes away."""
    whole = asyncio.Event()
    message = protocol.encode(frames_header(0, 1), frames(0, 1, size=900_000))

    async def parts() -> AsyncGenerator[bytes]:
        yield message[:500_000]
        await whole.wait()
        yield message[500_000:]

    async with collecting(tmp_path, max_intake=LIMIT) as running:
        budget = running.collector.budget
        async with connected(running.url) as slow, connected(running.url) as one, connected(running.url) as other:
            for number, made in enumerate((slow, one, other)):
                await made.send(hello(stream=f"{number:032x}"))
                assert isinstance(await answer(made), protocol.Welcome)
            sending = asyncio.create_task(slow.send(parts()))
            await poll(lambda: budget.used)
            await one.send(protocol.encode(protocol.Ping(1)))
            assert isinstance(await answer(one), protocol.Pong)
            waiting = [asyncio.create_task(made.send(message)) for made in (one, other)]
            await poll(lambda: budget.waiting == 2)
            assert not running.journal(f"{1:032x}").exists()
            whole.set()
            assert [await answer(made) for made in (slow, one, other)] == [protocol.Ack(1)] * 3
            await asyncio.gather(sending, *waiting)
            # One that goes in the middle leaves its place to the others.
            whole.clear()
            message = protocol.encode(frames_header(1, 1), frames(1, 1, size=900_000))
            sending = asyncio.create_task(slow.send(parts()))
            await poll(lambda: budget.used)
            next_one = asyncio.create_task(one.send(message))
            await poll(lambda: budget.waiting == 1)
            sending.cancel()
            slow.transport.abort()
            assert await answer(one) == protocol.Ack(2)
            await next_one
            await asyncio.gather(sending, return_exceptions=True)
        await poll(lambda: budget.used == budget.waiting == 0)


async def test_a_client_that_does_not_take_its_answers_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds nothing for long: neither a connection nor what was to be sent."""
    monkeypatch.setattr(web_protocols, "STALLED", 0.3)
    async with collecting(tmp_path) as running, connected(running.url, max_queue=1) as one:
        await one.send(hello(control=1))
        assert isinstance(await answer(one), protocol.Welcome)
        (stream,) = running.collector.streams.all.values()
        assert isinstance(connection := stream.connection, Connection)
        one.transport.pause_reading()
        large = Command(command="status", reason="x" * 30_000)
        outcomes = await asyncio.gather(*(connection.order(large, 60) for _ in range(400)), return_exceptions=True)
        assert all(isinstance(error, ConnectionError) for error in outcomes)


# quota on the disk


async def test_writes_wait_for_a_look_that_finds_room() -> None:
    """A measurement may not contain bytes that are written while it runs."""
    quota = DiskQuota()
    async with quota.writing(1 << 40):
        pass  # no limit
    quota.bound(1000, 100)
    began: list[int] = []

    async def write(size: int) -> None:
        async with quota.writing(size):
            began.append(size)

    first = asyncio.create_task(write(600))
    await quota.due.wait()
    quota.begin_measurement()
    await quota.end_measurement(100)
    await first
    second = asyncio.create_task(write(400))
    await quota.due.wait()
    assert began == [600]
    quota.begin_measurement()
    await quota.end_measurement(600)
    await second
    assert began == [600, 400]


async def test_a_write_under_way_is_subtracted() -> None:
    """A measurement begins in the middle of a write: it may have seen none of it."""
    quota = DiskQuota()
    quota.bound(1000, 100)
    quota.begin_measurement()
    await quota.end_measurement(0)
    async with quota.writing(700):
        quota.begin_measurement()
    await quota.end_measurement(0)
    waiting = asyncio.create_task(quota.writing(301).__aenter__())
    await quota.due.wait()
    quota.begin_measurement()
    await quota.end_measurement(700)
    with refused(FullError, "1000"):
        await waiting
    async with quota.writing(300):
        pass


async def test_a_measurement_is_due_when_half_of_the_free_room_is_used() -> None:
    """Of what is usually left, or of less if the last one found less: not after each write on a disk that is nearly full."""
    quota = DiskQuota()
    quota.bound(1000, 100)
    for left in (500, 80):
        quota.begin_measurement()
        await quota.end_measurement(1000 - left)
        async with quota.writing(left - min(left, 100) // 2):
            pass
        assert not quota.due.is_set()
        async with quota.writing(1):
            pass
        assert quota.due.is_set()


async def test_room_that_others_took_is_waited_for_again() -> None:
    """Two for which there is not quota at once: the second is not refused, but written after the next look."""
    quota = DiskQuota()
    quota.bound(1000, 100)
    done: list[int] = []

    async def write(number: int) -> None:
        async with quota.writing(600):
            done.append(number)

    writing = [asyncio.create_task(write(number)) for number in (0, 1)]
    await quota.due.wait()
    await poll(lambda: quota.wanted == 600)  # of both together it would be more than a quarter of the limit
    quota.begin_measurement()
    await quota.end_measurement(0)
    await quota.due.wait()
    await writing[0]
    assert done == [0]
    quota.begin_measurement()
    await quota.end_measurement(100)
    await writing[1]
    assert done == [0, 1] and quota.wanted == 0
