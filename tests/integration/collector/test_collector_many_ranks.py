"""Requests about many ranks leave the collector's loop to others, and a rank whose clock is wrong moves no window."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import TypeVar

import msgspec

from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live.live import Live
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.orders.order import WindowOrder
from stepscope.collector.orders.orders import Orders
from stepscope.collector.web.charts import Charts
from stepscope.exporters.stream.step_summary import StepTime
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import WindowRecord
from stepscope.runtime.requests.command import Answer, Command
from tests.unit.collector.test_collector_live import SECOND, START, record_frame, run_of

T = TypeVar("T")

RANKS = 3000
WINDOWS = 32
LONGEST = 0.08
"""Seconds of the processor for which one turn may last; a look at all ranks at once takes several times as long."""


class Turns:
    """The longest turn of the loop."""

    longest = 0.0


@contextlib.asynccontextmanager
async def watched() -> AsyncGenerator[Turns]:
    """The turns inside, by the time that the loop's thread works: neither another process counts nor the search for cycles."""
    found = Turns()

    async def watch() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            found.longest = max(found.longest, time.thread_time() - before)

    task = asyncio.create_task(watch())
    await asyncio.sleep(0)
    gc.disable()
    try:
        yield found
    finally:
        gc.enable()
        await asyncio.sleep(0)
        task.cancel()


def closed(index: int, start_ns: int) -> tuple[int, int, bytes]:
    """A window without steps."""
    return record_frame(fmt.FrameType.WINDOW_CLOSED, WindowRecord(index=index, start_ns=start_ns, end_ns=start_ns + 1))


async def test_no_request_about_many_ranks_holds_the_loop() -> None:
    """All states, charts and windows of 3,000 ranks, and one rank."""
    streams = Streams(2 * RANKS)
    windows = [closed(index, START + index * SECOND) for index in range(WINDOWS)]
    durations = [StepTime(0, n, START + n * SECOND, START + (n + 1) * SECOND, SECOND) for n in range(20)]
    for rank in range(RANKS):
        streams.add(stream := Stream(f"{rank:032x}", run_of(rank)))
        stream.add_frames(windows, 0, len(windows))
        stream.steps.add_steps(durations, 0, START, START + 100 * SECOND)
    live, charts = Live(streams, Downloads(Path("/nowhere")), exposed=False), Charts(streams)

    async def measured(work: Awaitable[T]) -> T:
        async with watched() as turns:
            found = await work
        assert turns.longest < LONGEST, work
        return found

    assert (await measured(live.snapshot(age=0))).job.ranks == RANKS
    assert [job.ranks for job in await measured(live.jobs())] == [RANKS]
    assert (detail := await measured(live.rank("job-17"))) is not None and detail.rank.rank == 17
    assert [one.ranks for one in await measured(live.windows(200))] == [RANKS] * WINDOWS
    assert [len(group.rows) for group in await measured(live.window(9, "job"))] == [RANKS]
    assert len((await measured(charts.chart("recent", ["job-17"]))).series) == 1


class Willing:
    """A process that answers at once."""

    control = 1

    async def order(self, command: Command, seconds: float) -> Answer:
        await asyncio.sleep(0)
        return Answer(step=7, pid=1)


async def test_no_order_to_many_ranks_holds_the_loop() -> None:
    """All of 3,000 are asked, in many turns."""
    streams = Streams(2 * RANKS)
    for rank in range(RANKS):
        streams.add(stream := Stream(f"{rank:032x}", run_of(rank)))
        stream.connection = Willing()
    async with watched() as turns:
        result = await Orders(streams).obey(WindowOrder(command="status"))
    assert result.outcome == "done" and len(result.ranks) == RANKS and result.ranks[17].id == "job-17"
    assert turns.longest < LONGEST


async def test_a_clock_that_is_wrong_moves_no_window() -> None:
    """A window begins when half of its ranks have, and never before 1970 or after now."""
    streams = Streams(64)
    for rank in range(3):
        streams.add(stream := Stream(f"{rank:032x}", run_of(rank)))
        frames = [closed(index, START + index * SECOND) for index in range(6)]
        stream.add_frames(frames, 0, len(frames))
    live = Live(streams, Downloads(Path("/nowhere")), exposed=False)
    honest = await live.windows(3)
    assert [(one.index, one.started_ns) for one in honest] == [(n, START + n * SECOND) for n in (5, 4, 3)]
    for rank, (start_ns, monotonic_ns) in enumerate([(-(1 << 63), (1 << 62) - 1), ((1 << 62) - 1, -(1 << 62))], 3):
        run = msgspec.structs.replace(run_of(rank), anchor=ClockAnchor(monotonic_ns, 0, 0))
        streams.add(stream := Stream(f"{rank:032x}", run))
        stream.add_frames([closed(5, start_ns), closed(9, start_ns)], 0, 2)
        windows = await live.windows(200)
        assert [(one.index, one.started_ns) for one in windows if one.index < 9] == [
            (n, START + n * SECOND) for n in (5, 4, 3, 2, 1, 0)
        ]
        assert all(0 <= one.started_ns <= time.time_ns() for one in windows)
