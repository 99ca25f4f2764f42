"""The queue between the drain loop and one profiler's pipeline. It waits for slow exporters."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import anyio
import anyio.lowlevel

from stepscope.runtime.accounting.error_log import InternalErrors
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import EVENT_DTYPE, Block, heap_bytes, own_heap
from stepscope.runtime.events.survey import Survey, survey
from stepscope.runtime.inbox.inbox import PendingDeliveries
from stepscope.runtime.loop_threads.condition import LoopCondition
from stepscope.runtime.memory_limits import MemoryLimits
from stepscope.runtime.windows.router import RECORDER

AFTER_FAULT_S = 0.1
"""Seconds until the queue continues after an internal error."""
MIN_PART_EVENTS = 256
"""Events of a part, for any options."""
MIN_JUDGED_S = 0.05
"""Seconds of waiting before an exporter can count as slow."""


class SlowConsumer(Protocol):
    """The worker of an exporter, for which the queue waits."""

    def half_full(self) -> bool: ...
    async def wait_below_half(self) -> None: ...


class DrainedBlock(NamedTuple):
    """A block of the recorder."""

    events: Block
    args: bytes
    """Heap of their arguments."""
    counts: Survey

    @classmethod
    def of(cls, events: Block, args: bytes) -> DrainedBlock:
        """Counts the events."""
        return cls(events, args, survey(events))

    @property
    def event_count(self) -> int:
        """Events without gaps."""
        return self.counts.events - self.counts.gaps


class DrainedTurn:
    """The events of one drain, or of several during another turn."""

    def __init__(self) -> None:
        self.marks: list[Block] = []
        self.blocks: deque[DrainedBlock] = deque()
        self.bytes = self.until = 0
        self.spans: Block | None = None

    def add(self, marks: Block, blocks: Sequence[DrainedBlock], until: int, spans: Block | None) -> None:
        if len(marks):
            self.marks.append(marks)
        self.bytes += sum(block.events.nbytes + len(block.args) for block in blocks)
        self.until, self.spans = until, spans
        self.blocks.extend(blocks)

    def next_part(self, max_events: int) -> DrainedBlock:
        """Removes and returns the next events and their arguments: as many as need the memory of `max_events` without any."""
        events, args, counts = self.blocks[0]
        some = events[:max_events]
        heap = counts.heap_bytes if len(some) == len(events) else heap_bytes(some) if args else 0
        fitting = len(some) * max_events * EVENT_DTYPE.itemsize // (some.nbytes + heap or 1)
        count = min(max(fitting, MIN_PART_EVENTS), len(some))
        if count == len(events) and len(args) == heap:
            return self.blocks.popleft()
        events.flags.writeable = False  # a part that changed in place would keep the memory of the whole block
        part = DrainedBlock.of(*own_heap(events[:count], args))
        rest = [DrainedBlock.of(events[count:], args)] if count < len(events) else []
        self.blocks.popleft()  # after the cut, so that a lack of memory loses nothing
        self.blocks.extendleft(rest)
        return part


class BackpressureQueue:
    """Passes drained events to a pipeline, and waits for slow exporters, so that a burst loses no events.

    There is one task per profiler, on the loop, so that slow exporters delay no other profiler. Waiting turns and deliveries of
    backends share `MemoryLimits.queue_bytes`. When they need more, or rings fill up, the queue skips slow exporters, which took half
    of the time or more, until it is empty again: their queues drop events that do not fit, and the other exporters get all events.

    Args:
        process: routes a turn, in parts of so many events. It awaits its last argument after each part, and ends when that is false.
        drop: counts events of a source that were not routed.
        deliveries: deliveries of backends, which wait for the turn of their time, and share the limit.
        workers: workers of the exporters.
        limits: limits of the profiler.
        faults: collects internal errors.
    """

    def __init__(
        self,
        process: Callable[[DrainedTurn, int, Callable[[], Awaitable[bool]]], Awaitable[None]],
        drop: Callable[[str, Block], None],
        deliveries: PendingDeliveries,
        workers: Sequence[SlowConsumer],
        limits: MemoryLimits,
        faults: InternalErrors,
    ) -> None:
        self._process, self._drop, self._deliveries = process, drop, deliveries
        self._workers, self._faults = workers, faults
        self._limit = limits.queue_bytes
        self._max_bytes = limits.drained_bytes
        """With more waiting bytes, the queue waits for no exporter."""
        self._part_events = max(self._limit // EVENT_DTYPE.itemsize // 4, MIN_PART_EVENTS)
        """Events of one part of a turn. Several parts fit the queues of exporters, so that full ones are noticed in time."""
        self._turns: deque[DrainedTurn] = deque()
        """Turns that are not completely routed. The first one is being routed."""
        self._pushed = asyncio.Event()
        self._relief: anyio.CancelScope | None = None
        self._judged_ns = 0
        """Begin of the times of waiting, in ns."""
        self._waited = [0] * len(workers)
        """Time for which the queue waited for each exporter since then, in ns."""
        self._since: dict[int, int] = {}
        """Begin of the current waiting for an exporter, by its number, in ns."""
        self._skipped: set[int] = set()
        """Numbers of the exporters for which it does not wait."""
        self._scope = anyio.CancelScope()
        self._hurried = self._closed = False

    @property
    def empty(self) -> bool:
        """Whether all turns were routed, or returned by `close`."""
        return not self._turns

    @property
    def closing(self) -> bool:
        """Whether a turn in the queue will close windows."""
        return any(turn.spans is not None for turn in self._turns)

    @property
    def full(self) -> bool:
        """Whether the waiting turns and deliveries exceed the limit."""
        return self._waiting + self._deliveries.bytes > self._limit

    @property
    def has_room(self) -> bool:
        """Whether another drain fits: the turn under way, what waits behind it and deliveries are within the limit."""
        return sum(turn.bytes for turn in self._turns) + self._deliveries.bytes <= self._limit

    @property
    def _waiting(self) -> int:
        return sum(turn.bytes for turn in islice(self._turns, 1, None))

    def push(self, marks: Block, blocks: Sequence[DrainedBlock], until: int, open_spans: Block | None = None) -> None:
        """Adds the events of a drain. Without memory for them, they are dropped and counted.

        Args:
            marks: step marks of all profilers, of any time.
            blocks: events that began by `until`, and their arguments.
            until: all events of the recorder that began by this time, in ns, are in the queue now.
            open_spans: close ready windows afterwards, with these open spans.
        """
        if self._closed:
            return
        try:
            if not self._turns:
                self._judged_ns = clock.now()
            joins = len(self._turns) > 1 and self._turns[-1].spans is None
            turn = self._turns[-1] if joins else DrainedTurn()
            turn.add(marks, blocks, until, open_spans)
            if not joins:
                self._turns.append(turn)
        except Exception as error:
            self._faults.record("push", error)
            for block in blocks:
                self._drop(RECORDER, block.events)
        self._pushed.set()
        self.mark_slow()
        if self._waiting > self._max_bytes and self._relief is not None:
            self._relief.cancel()

    def mark_slow(self, *, wanted: bool = False) -> None:
        """If the queue is full, skips slow exporters. Must be called repeatedly while nothing is pushed. If rings need its room
        (`wanted`), it counts as full without room for another drain."""
        if self.full or (wanted and not self.has_room):
            self._skip_slow(MIN_JUDGED_S)

    def _skip_slow(self, least: float) -> None:
        """Stops waiting for the exporters that took half of the time or more, if that is `least` seconds or more."""
        now = clock.now()
        elapsed = now - self._judged_ns
        if elapsed < least * 1e9:
            return
        waited = [ns + now - self._since.get(worker, now) for worker, ns in enumerate(self._waited)]
        slow = {worker for worker, ns in enumerate(waited) if ns and ns >= elapsed / 2} - self._skipped
        self._judged_ns = now
        self._waited = [0] * len(self._workers)
        self._since = dict.fromkeys(self._since, now)
        if slow:
            self._skipped |= slow
            if self._relief is not None:
                self._relief.cancel()

    async def run(self, passed: LoopCondition) -> None:
        """Routes turns until the queue is closed, and notifies `passed` after each."""
        with self._scope:
            while True:
                try:
                    if self._turns:
                        await self._pass_on(self._turns[0])
                    passed.notify_all()
                    if not self._turns:
                        self._pushed.clear()
                        await self._pushed.wait()
                except Exception as error:
                    self._faults.record("pass_on", error)
                    await anyio.sleep(AFTER_FAULT_S)
        passed.notify_all()

    async def _pass_on(self, turn: DrainedTurn) -> None:
        await self._process(turn, self._part_events, self._pace)
        if self._closed:
            return
        self._turns.popleft()
        if not self._turns and not self._hurried:
            self._skipped = set()
            self._waited = [0] * len(self._workers)

    async def _pace(self) -> bool:
        """Waits for slow exporters. Returns false once the queue is closed."""
        crowded = [
            number for number, worker in enumerate(self._workers) if number not in self._skipped and worker.half_full()
        ]
        if crowded and self._waiting <= self._max_bytes:
            with anyio.CancelScope() as self._relief:
                async with anyio.create_task_group() as group:
                    for number in crowded:
                        group.start_soon(self._wait_for, number)
            self._relief = None
        # Other tasks run here, and a deadline is noticed, even if the queue is never empty.
        await anyio.lowlevel.checkpoint()
        return not self._closed

    async def _wait_for(self, number: int) -> None:
        self._since[number] = clock.now()
        try:
            await self._workers[number].wait_below_half()
        finally:
            self._waited[number] += clock.now() - self._since.pop(number)

    def end(self) -> None:
        """The profiler closes, so these turns are the last ones. The queue waits for slow exporters until `stop_waiting`."""
        self._limit = self._max_bytes

    def stop_waiting(self) -> None:
        """Skips slow exporters from now on."""
        self._hurried = True
        self._skip_slow(0)

    def close(self) -> list[DrainedBlock]:
        """Stops routing. Returns the blocks that were not routed."""
        rest = [block for turn in self._turns for block in turn.blocks]
        for turn in self._turns:
            turn.blocks.clear()
        self._turns.clear()
        self._closed = True
        self._scope.cancel()
        return rest
