"""The queue before a profiler's pipeline: exporters that are behind are waited for, at the expense of nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import stepscope as sc
from stepscope.backends.simulated.scripted import Deliver, ScriptedBackend, Span
from stepscope.runtime.accounting.error_log import InternalErrors
from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import EVENT_DTYPE, Block, Kind, join_blocks, own_heap
from stepscope.runtime.events.survey import Survey
from stepscope.runtime.inbox.inbox import Inbox, PendingDeliveries
from stepscope.runtime.loop import backpressure
from stepscope.runtime.loop.backpressure import MIN_JUDGED_S, BackpressureQueue, DrainedBlock, DrainedTurn
from stepscope.runtime.loop_threads.condition import LoopCondition
from stepscope.runtime.memory_limits import memory_limits
from stepscope.runtime.sources.sink import Sink
from tests.support.basics import poll

SMALL = 64 << 10
MANY = 256 << 20
PAUSE = 0.2
"""Seconds that the slow one takes for a batch: it gets on, so it never looks like one that hangs."""


class Slow(sc.exporters.MemoryExporter):
    """Takes its time for each batch."""

    async def export(self, batch: sc.exporters.EventBatch) -> None:
        await anyio.sleep(PAUSE)
        await super().export(batch)


class Device(ScriptedBackend):
    """Delivers on demand."""

    sink: Sink

    def open(self, sink: Sink) -> None:
        super().open(sink)
        self.sink = sink

    def deliver(self, count: int) -> None:
        """So many spans of now."""
        events = np.zeros(count, EVENT_DTYPE)
        events["kind"], events["ts"], events["dur"] = Kind.SPAN, clock.now(), 10
        self.sink.deliver(events)


def record(count: int) -> None:
    for _ in range(count):
        sc.instant("x")


def outputs(profiler: sc.Profiler) -> dict[str, OutputLedger]:
    """Accounts by exporter."""
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    return {output.name: output.ledger for output in pipeline.exporters}


async def test_windows_close_while_an_exporter_is_behind(tmp_path: Path) -> None:
    """Also next to a profiler that keeps nobody waiting."""
    slow, quick = Slow(), sc.exporters.MemoryExporter()
    slow.name = "slow"
    crowded = sc.trace(
        name="crowded", schedule=sc.schedule(wait=0, warmup=0, active=1), exporters=[slow, quick],
        output_dir=tmp_path / "crowded", options=sc.Options(queue_bytes=SMALL, close_timeout=1),
    )  # fmt: skip
    with sc.trace(name="other", output_dir=tmp_path / "other") as other, crowded:
        with anyio.fail_after(60):
            while len(quick.windows) < 5:
                record(2000)
                crowded.step()
                await asyncio.sleep(0.02)
        assert len(slow.windows) < 5, "it is behind"
    recorder = crowded.statistics().recorder
    assert recorder is not None and recorder.dropped == 0
    assert not crowded.audit() and not other.audit()


async def test_deliveries_that_wait_are_bounded(tmp_path: Path) -> None:
    """By the limit of the inbox, whose overflow is counted; and those that are slow are passed over."""
    slow, quick, limit = Slow(), sc.exporters.MemoryExporter(), 1 << 20
    slow.name = "slow"
    backend = Device()
    options = sc.Options(queue_bytes=SMALL, inbox_bytes=limit, close_timeout=1)
    with sc.trace(backends=[backend], exporters=[slow, quick], output_dir=tmp_path, options=options) as profiler:
        with anyio.fail_after(60):
            await poll(lambda: hasattr(backend, "sink"))
            while outputs(profiler)["memory"].exported < 100_000:
                backend.deliver(2000)
                await asyncio.sleep(0.01)
                stats = profiler.statistics().pipeline
                assert stats is not None and stats.undelivered * EVENT_DTYPE.itemsize <= limit
        assert outputs(profiler)["slow"].exported < 100_000, "it is behind"
    assert not profiler.audit()


async def test_backends_are_closed_while_an_exporter_is_behind(tmp_path: Path) -> None:
    """The other exporters get the events that they deliver then."""
    slow, quick = Slow(), sc.exporters.MemoryExporter()
    slow.name = "slow"
    backend = ScriptedBackend([Deliver([Span("at the end", 0, 10)], "aclose")])
    options = sc.Options(queue_bytes=SMALL, close_timeout=6)
    with sc.trace(backends=[backend], exporters=[slow, quick], output_dir=tmp_path, options=options) as profiler:
        record(50_000)
        await poll(lambda: outputs(profiler)["slow"].exported)
    assert "at the end" in quick.names()
    assert len(quick.names(kind=Kind.INSTANT)) == 50_000
    assert not profiler.audit()


class Diary:
    """A pipeline that writes down what passes."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.deliveries = 0
        self.delivered = PendingDeliveries(Inbox[Any](1 << 30, lambda: None))

    def add_marks(self, marks: Block) -> None:
        self.lines.append(f"{len(marks)} marks")

    def route_block(self, events: Block, args: bytes, found: Survey) -> None:
        self.lines.append(f"{len(events)} events")

    async def process(self, turn: DrainedTurn, part_events: int, pace: Callable[[], Awaitable[bool]]) -> None:
        """As a pipeline does it."""
        self.add_marks(join_blocks(turn.marks))
        while turn.blocks:
            self.route_block(*turn.next_part(part_events))
            if not await pace():
                return
        self.set_watermark(turn.until)
        while self.route_delivery(turn.until):
            if not await pace():
                return
        self.save(turn.until)
        if turn.spans is not None:
            self.close_windows(turn.spans)

    def set_watermark(self, until: int) -> None:
        self.lines.append(f"until {until}")

    def route_delivery(self, until: int) -> bool:
        self.deliveries -= 1
        return self.deliveries >= 0

    def save(self, until: int) -> None:
        self.lines.append("save")

    def close_windows(self, open_spans: Block) -> None:
        self.lines.append(f"close with {len(open_spans)}")

    def drop_closed(self, source: str, events: Block) -> None:
        self.lines.append(f"{len(events)} dropped")

    def new_lines(self) -> list[str]:
        """Lines that were written since the last call."""
        lines, self.lines = self.lines, []
        return lines


class Exporter:
    """One that is waited for while it is `busy`."""

    def __init__(self) -> None:
        self.busy = False
        self.asked = 0
        self.change = LoopCondition()

    def half_full(self) -> bool:
        return self.busy

    async def wait_below_half(self) -> None:
        self.asked += 1
        await self.change.wait_for(lambda: not self.busy)

    def free(self) -> None:
        self.busy = False
        self.change.notify_all()


class Bench:
    """A queue with two exporters, of which one may be slow."""

    def __init__(self) -> None:
        self.diary, self.slow, self.quick, self.passed = Diary(), Exporter(), Exporter(), LoopCondition()
        # 1,024 events on top of what is under way.
        limits = memory_limits(sc.Options(memory_bytes=4 * MANY, queue_bytes=SMALL, ring_bytes=MANY), 2)
        workers, faults = [self.slow, self.quick], InternalErrors("it")
        self.backlog = BackpressureQueue(
            self.diary.process, self.diary.drop_closed, self.diary.delivered, workers, limits, faults
        )

    def give(self, count: int, until: int, *, spans: int | None = None) -> None:
        events = np.zeros(count, EVENT_DTYPE)
        open_spans = None if spans is None else np.zeros(spans, EVENT_DTYPE)
        self.backlog.push(events[:1], [DrainedBlock.of(events, b"")], until, open_spans)

    async def through(self) -> None:
        await self.passed.wait_for(lambda: self.backlog.empty)

    async def pause(self) -> None:
        """Lets everybody do what there is to do, for as long as it takes to tell who is slow."""
        await anyio.sleep(1.5 * MIN_JUDGED_S)


@asynccontextmanager
async def running() -> AsyncGenerator[Bench]:
    """With its task, which ends."""
    bench = Bench()
    async with anyio.create_task_group() as group:
        group.start_soon(bench.backlog.run, bench.passed)
        yield bench
        bench.backlog.close()


async def test_the_order_of_a_turn() -> None:
    async with running() as bench:
        bench.diary.deliveries = 1
        bench.give(3, 10, spans=2)
        assert not bench.backlog.empty
        await bench.through()
        assert bench.diary.new_lines() == ["1 marks", "3 events", "until 10", "save", "close with 2"]
        bench.give(600, 20)
        await bench.through()
        assert bench.diary.new_lines() == ["1 marks", "256 events", "256 events", "88 events", "until 20", "save"]


async def test_later_blocks_are_one_turn() -> None:
    """Unless windows close in between, which need what came before, and not what comes after."""
    async with running() as bench:
        bench.slow.busy = True
        bench.give(1, 1)
        await bench.pause()
        bench.give(2, 2)
        bench.give(3, 3, spans=1)
        bench.give(4, 4)
        bench.give(5, 5)
        bench.slow.free()
        await bench.through()
        assert bench.diary.new_lines() == [
            *("1 marks", "1 events", "until 1", "save"),
            *("2 marks", "2 events", "3 events", "until 3", "save", "close with 1"),
            *("2 marks", "4 events", "5 events", "until 5", "save"),
        ]


async def test_only_the_slow_one_is_passed_over() -> None:
    """When more waits than a queue may hold; once all has passed it is waited for again."""
    async with running() as bench:
        bench.slow.busy = True
        bench.give(1, 1)
        await bench.pause()
        bench.give(1024, 2)
        await bench.pause()
        assert bench.diary.new_lines() == ["1 marks", "1 events"]
        bench.quick.busy = True
        bench.give(1, 3)
        await bench.pause()
        assert bench.diary.new_lines() == ["until 1", "save", "2 marks", "256 events"], "the other one is waited for"
        bench.quick.free()
        await bench.through()
        assert bench.diary.new_lines()[-1] == "save" and bench.slow.busy
        asked = bench.slow.asked
        bench.give(1, 4)
        await bench.pause()
        assert not bench.backlog.empty and bench.slow.asked == asked + 1
        bench.slow.free()
        await bench.through()


async def test_a_second_slow_one_is_passed_over_as_well() -> None:
    async with running() as bench:
        bench.slow.busy = True
        bench.give(1, 1)
        await bench.pause()
        bench.quick.busy = True
        bench.give(1025, 2)
        await bench.pause()
        assert "256 events" in bench.diary.new_lines(), "nobody was waited for but the first"
        bench.give(1025, 3)
        await bench.through()
        assert bench.slow.busy and bench.quick.busy


async def test_uncuttable_blocks_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again."""
    failures = [MemoryError("once")]

    def cut(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return own_heap(*arguments)

    monkeypatch.setattr(backpressure, "own_heap", cut)
    async with running() as bench:
        bench.give(300, 1)
        await bench.through()
        assert bench.diary.new_lines() == ["1 marks", "1 marks", "256 events", "44 events", "until 1", "save"]


async def test_nobody_is_waited_for_with_too_much() -> None:
    async with running() as bench:
        bench.slow.busy = True
        bench.give(1, 1)
        await bench.pause()
        bench.backlog.stop_waiting()
        bench.quick.busy = True
        bench.give(1, 2)
        await bench.pause()
        assert not bench.backlog.empty, "this one has kept nobody waiting so far"
        bench.give((MANY + SMALL) // EVENT_DTYPE.itemsize + 1, 3)
        await bench.pause()
        assert bench.diary.new_lines()[-1] == "256 events" and bench.quick.asked


async def test_one_that_closes_waits_for_the_slow_one_until_it_has_to_hurry() -> None:
    async with running() as bench:
        bench.slow.busy = True
        bench.give(1, 1)
        await bench.pause()
        bench.backlog.end()
        bench.give(2000, 2)
        await bench.pause()
        assert bench.diary.new_lines() == ["1 marks", "1 events"], "there is time"
        bench.backlog.stop_waiting()
        bench.give(1, 3)
        await bench.through()
        assert bench.slow.busy


async def test_waiting_events_are_returned() -> None:
    async with running() as bench:
        bench.slow.busy = True
        bench.give(300, 1)
        await bench.pause()
        bench.give(2, 2)
        rest = bench.backlog.close()
        assert [len(block.events) for block in rest] == [44, 2]
        assert bench.backlog.empty
        bench.give(1, 3)
        assert bench.backlog.empty, "closed"
    assert bench.diary.new_lines() == ["1 marks", "256 events"]
