"""The queue between the drain loop and one profiler's pipeline: it waits for exporters that are behind."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Protocol

import anyio
import anyio.lowlevel

from stepscope.runtime.accounting.error_log import InternalErrors
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import EVENT_DTYPE, Block, split_block
from stepscope.runtime.loop_threads.condition import LoopCondition
from stepscope.runtime.options import Options
from stepscope.runtime.sources.pending_deliveries import PendingDeliveries
from stepscope.runtime.windows.router import RECORDER

AFTER_FAULT = 0.1
"""Seconds until the queue goes on after an internal error."""
MOST = 256 << 20
"""Bytes that a queue may hold at least, whatever the options: one drain may bring as much."""
JUDGED = 0.05
"""Seconds of waiting before an exporter can count as slow."""


class SlowConsumer(Protocol):
    """The worker of an exporter, as far as it is waited for."""

    def half_full(self) -> bool: ...
    async def wait_below_half(self) -> None: ...


class DrainedTurn:
    """The events of one drain, or of several while another turn was under way."""

    def __init__(self, until: int) -> None:
        self.marks: list[Block] = []
        self.blocks: deque[tuple[Block, bytes]] = deque()
        self.bytes = 0
        self.until = until
        self.spans: Block | None = None

    def add(self, marks: Block, blocks: Sequence[tuple[Block, bytes]], until: int, spans: Block | None) -> None:
        if len(marks):
            self.marks.append(marks)
        self.bytes += sum(events.nbytes + len(args) for events, args in blocks)
        self.until, self.spans = until, spans
        self.blocks.extend(blocks)

    def next_part(self, most: int) -> tuple[Block, bytes]:
        """Takes the next events out, and their arguments: at most so many."""
        events, args = self.blocks[0]
        first, *others = [(events, args)] if len(events) <= most else split_block(events, args, most)
        self.blocks.popleft()  # not before it was split: without memory for that nothing is lost
        self.blocks.extendleft(reversed(others))
        return first


class BackpressureQueue:
    """Passes drained events on to a pipeline, and waits for slow exporters, so that a burst passes without a drop.

    One task per profiler, on the loop: slow exporters of one profiler delay no other. Turns behind the one under way and
    deliveries of backends share `Options.queue_bytes`. When they need more, the queue stops waiting for exporters that took half of
    the time or more, until it is empty again: the queues of these drop what does not fit, and the other exporters get everything.

    Args:
        process: routes a turn. It awaits its second argument after each part, and ends when that is false.
        drop: counts events of a source that were not routed.
        deliveries: of backends; they wait for the turn of their time, and share the room.
        workers: of the exporters that are waited for.
        options: of the profiler.
        faults: collects faults of ours.
    """

    def __init__(
        self,
        process: Callable[[DrainedTurn, Callable[[], Awaitable[bool]]], Awaitable[None]],
        drop: Callable[[str, Block], None],
        deliveries: PendingDeliveries,
        workers: Sequence[SlowConsumer],
        options: Options,
        faults: InternalErrors,
    ) -> None:
        self._process, self._drop, self._deliveries = process, drop, deliveries
        self._takers, self._faults = workers, faults
        self._limit = options.queue_bytes
        self._most = max(2 * options.queue_bytes, options.ring_bytes, MOST)
        """Bytes beyond which the queue waits for no exporter."""
        self.part_events = max(self._limit // EVENT_DTYPE.itemsize // 4, 256)
        """Events of one part of a turn: they fit the queue, so that it is noticed in time that it is full."""
        self._turns: deque[DrainedTurn] = deque()
        """Those that were pushed and not routed whole; the first is under way."""
        self._given = asyncio.Event()
        self._relief: anyio.CancelScope | None = None
        self._judged = 0
        """Since when the times of waiting count, in ns."""
        self._waited = [0] * len(workers)
        """ns for which the queue waited for each exporter since then."""
        self._since: dict[int, int] = {}
        """Since when it waits for an exporter, by its number."""
        self._late: set[int] = set()
        """Numbers of the exporters that it does not wait for."""
        self._scope = anyio.CancelScope()
        self._hurried = self._closed = False

    @property
    def empty(self) -> bool:
        """Whether everything was routed, or taken back by `close`."""
        return not self._turns

    @property
    def closing(self) -> bool:
        """Whether a turn in the queue is going to close windows."""
        return any(turn.spans is not None for turn in self._turns)

    @property
    def full(self) -> bool:
        """Whether as much waits behind the turn under way as the options allow."""
        return self._waiting + self._deliveries.bytes > self._limit

    @property
    def _waiting(self) -> int:
        return sum(turn.bytes for turn in islice(self._turns, 1, None))

    def push(
        self, marks: Block, blocks: Sequence[tuple[Block, bytes]], until: int, open_spans: Block | None = None
    ) -> None:
        """Adds what a drain brought; without memory for it the events are dropped and counted.

        Args:
            marks: step marks, of all profilers, up to any time.
            blocks: events that began by `until`, and their arguments.
            until: everything of the recorder that began by this time, in ns, is in the queue now.
            open_spans: windows that are ready are closed after this, with these spans.
        """
        if self._closed:
            return
        try:
            self._add(marks, blocks, until, open_spans)
        except Exception as error:
            self._faults.record("give", error)
            for events, _ in blocks:
                self._drop(RECORDER, events)
        self._given.set()
        self.mark_slow()
        if self._waiting > self._most and self._relief is not None:
            self._relief.cancel()

    def _add(self, marks: Block, blocks: Sequence[tuple[Block, bytes]], until: int, open_spans: Block | None) -> None:
        if not self._turns:
            self._judged = clock.now()
        last = self._turns[-1] if len(self._turns) > 1 else None
        if last is not None and last.spans is None:
            last.add(marks, blocks, until, open_spans)
            return
        last = DrainedTurn(until)
        last.add(marks, blocks, until, open_spans)
        self._turns.append(last)

    def mark_slow(self) -> None:
        """Finds the slow exporters, if the queue is full. To be called now and then while nothing is pushed."""
        if self.full:
            self._pass_over(JUDGED)

    def _pass_over(self, least: float) -> None:
        """Stops waiting for the exporters that took half of the time or more.

        Args:
            least: seconds of waiting that it takes to judge.
        """
        now = clock.now()
        took = now - self._judged
        if took < least * 1e9:
            return
        waited = [ns + now - self._since.get(taker, now) for taker, ns in enumerate(self._waited)]
        slow = {taker for taker, ns in enumerate(waited) if ns and ns >= took / 2} - self._late
        self._judged = now
        self._waited = [0] * len(self._takers)
        self._since = dict.fromkeys(self._since, now)
        if slow:
            self._late |= slow
            if self._relief is not None:
                self._relief.cancel()

    async def run(self, passed: LoopCondition) -> None:
        """Routes turns until the queue is closed.

        Args:
            passed: is notified after each turn.
        """
        with self._scope:
            while True:
                try:
                    if self._turns:
                        await self._pass_on(self._turns[0])
                    passed.notify_all()
                    if not self._turns:
                        self._given.clear()
                        await self._given.wait()
                except Exception as error:
                    self._faults.record("pass_on", error)
                    await anyio.sleep(AFTER_FAULT)
        passed.notify_all()

    async def _pass_on(self, turn: DrainedTurn) -> None:
        await self._process(turn, self._pace)
        if self._closed:
            return
        self._turns.popleft()
        if not self._turns and not self._hurried:
            self._late = set()
            self._waited = [0] * len(self._takers)

    async def _pace(self) -> bool:
        """Waits for exporters that are behind; false once the queue is closed."""
        await self._relieve()
        # A full queue neither keeps others from the loop nor a deadline from being noticed.
        await anyio.lowlevel.checkpoint()
        return not self._closed

    async def _relieve(self) -> None:
        crowded = [
            number for number, taker in enumerate(self._takers) if number not in self._late and taker.half_full()
        ]
        if crowded and self._waiting <= self._most:
            with anyio.CancelScope() as self._relief:
                async with anyio.create_task_group() as beside:
                    for number in crowded:
                        beside.start_soon(self._wait_for, number)
            self._relief = None

    async def _wait_for(self, number: int) -> None:
        self._since[number] = clock.now()
        try:
            await self._takers[number].wait_below_half()
        finally:
            self._waited[number] += clock.now() - self._since.pop(number)

    def end(self) -> None:
        """The profiler closes: these turns are the last, so the queue waits for slow exporters until `stop_waiting`."""
        self._limit = self._most

    def stop_waiting(self) -> None:
        """Waits for no slow exporter any more."""
        self._hurried = True
        self._pass_over(0)

    def close(self) -> list[tuple[Block, bytes]]:
        """Routes nothing any more.

        Returns:
            The blocks that were not routed.
        """
        rest = [block for turn in self._turns for block in turn.blocks]
        for turn in self._turns:
            turn.blocks.clear()
        self._turns.clear()
        self._closed = True
        self._scope.cancel()
        return rest
