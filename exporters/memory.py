"""The memory exporter: keeps everything it is given, and misbehaves on demand. For tests and small tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import anyio

from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events import strings
from stepscope.runtime.events.arguments import arguments
from stepscope.runtime.events.record import Block, Kind, join_blocks
from stepscope.runtime.export.run import refuse_another_run
from stepscope.runtime.loop_threads.condition import LoopCondition
from stepscope.runtime.settings.arguments import number_argument
from stepscope.runtime.threads.native_threads import Event

Method = Literal["open", "export", "close_window", "aclose"]


class MemoryExporter:
    """Keeps batches and windows as they came.

    It can be made a bad neighbour: to raise, to be slow, to hang, to block its loop. So users and we test that
    one exporter costs nothing but its own output.

    Args:
        name: its name in ledgers.
        fail: what to raise, by method. `export` raises before it keeps the batch.
        delay: seconds that each `export` takes.
        hang_in: a method that does not return until `release()` or cancellation.
        block_in: a method that blocks the thread until `release()`, which no cancellation ends.
        max_bytes: what it may hold; further batches are counted in `dropped_cap`.

    Raises:
        TypeError: `max_bytes` is no whole number.
        ValueError: it is negative.
    """

    def __init__(
        self,
        *,
        name: str = "memory",
        fail: Mapping[Method, BaseException] | None = None,
        delay: float = 0.0,
        hang_in: Method | None = None,
        block_in: Method | None = None,
        max_bytes: int = 1 << 30,
    ) -> None:
        number_argument("max_bytes", max_bytes, whole=True, unit="bytes")
        if max_bytes < 0:
            raise ValueError(f"max_bytes must be 0 or more, got {max_bytes}")
        self.name = name
        self.run: Run | None = None
        self.batches: list[EventBatch] = []
        self.windows: list[Window] = []
        self.calls: list[str] = []
        """Names of the methods called so far."""
        self.closed = False
        self.dropped_cap = 0
        """Events left out because of `max_bytes`."""
        self._fail = dict(fail or {})
        self._delay = delay
        self._hang_in, self._block_in = hang_in, block_in
        self._change = LoopCondition()
        self._released = Event()
        self._max_bytes = max_bytes
        self._bytes = 0

    async def open(self, run: Run) -> None:
        refuse_another_run(self, self.run)
        await self._called("open")
        self.run = run

    async def export(self, batch: EventBatch) -> None:
        await self._called("export")
        if self._delay:
            await anyio.sleep(self._delay)
        if self._bytes + batch.nbytes > self._max_bytes:
            self.dropped_cap += len(batch)
            return
        self._bytes += batch.nbytes
        self.batches.append(batch)

    async def close_window(self, window: Window) -> None:
        await self._called("close_window")
        self.windows.append(window)

    async def aclose(self) -> None:
        self.closed = True
        await self._called("aclose")

    def release(self) -> None:
        """Lets calls that hang go on, and later ones through; from any thread."""
        self._released.set()
        self._change.notify_all()

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def events(self, window: int | None = None, kind: Kind | None = None) -> Block:
        """The events kept, in one block, of one window or kind if asked. `args_at` is meaningless here."""
        blocks = [batch.events for batch in self.batches if window is None or batch.window == window]
        block = join_blocks(blocks)
        return block if kind is None else block[block["kind"] == int(kind)]

    def names(self, window: int | None = None, kind: Kind | None = None) -> list[str]:
        """Names of the events kept, in the order in which they came."""
        return [strings.name_of(event) for event in self.events(window, kind)]

    def arguments(self, window: int | None = None) -> list[dict[str, object]]:
        """Arguments of the events kept, decoded, in the order in which they came."""
        return [
            arguments(batch, batch.events[index])
            for batch in self.batches
            if window is None or batch.window == window
            for index in range(len(batch))
        ]

    async def _called(self, method: Method) -> None:
        if self.closed and method in ("export", "close_window"):
            raise ClosedError(f"{method} was called after aclose")
        self.calls.append(method)
        if method == self._hang_in:
            await self._change.wait_for(self._released.is_set)
        if method == self._block_in:
            self._released.wait()
        if method in self._fail:
            raise self._fail[method]
