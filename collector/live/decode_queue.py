"""Decodes the frames of streams in slices, so that one message blocks the collector's loop for a few ms at most."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, TypeVar

from stepscope.collector.files.blocking_pool import uncancelled
from stepscope.collector.live.stream import Frame, Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.collector.files.stream_file import NewFrames

log = logging.getLogger("stepscope.collector")

T = TypeVar("T")

SLICE = 0.004
"""Seconds after which everything else on the loop has its turn."""


class DecodeQueue:
    """Has streams decode the frames that were added to them. For a stream that is behind there is a task until all of its frames
    are decoded, whatever becomes of the connection. There is one slice at a time, whatever the number of streams. Methods are
    for the loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._tasks: dict[Stream, asyncio.Task[None]] = {}

    def add(self, stream: Stream, new: NewFrames) -> None:
        """Adds frames that are written: `Stream.add_frames`. Before more are added, `drained` must have returned."""
        try:
            if new.missing:
                stream.add_missing(new.missing, new.next - len(new.frames))
            stream.add_frames(new.frames, len(new.data), new.next)
        finally:
            self._begin(stream)

    async def add_restored(self, stream: Stream, frames: Sequence[Frame], events: int, next: int) -> None:
        """Adds frames that were read from its file: `Stream.add_restored`. Returns when they are decoded."""
        stream.add_restored(frames, events, next)
        self._begin(stream)
        await self.drained(stream)

    async def drained(self, stream: Stream) -> None:
        """Returns when all frames of a stream are decoded."""
        task = self._tasks.get(stream)
        if task is not None:
            await uncancelled(task)

    def _begin(self, stream: Stream) -> None:
        if stream.behind and stream not in self._tasks:
            self._tasks[stream] = asyncio.create_task(self._decode(stream))

    async def _decode(self, stream: Stream) -> None:
        try:
            while stream.behind:
                async with self._turn:
                    try:
                        stream.decode(SLICE)
                    except Exception:  # a fault of ours in one frame must not keep the others from being counted
                        log.exception("what was written of a stream is not counted")
                    await asyncio.sleep(0)
        finally:
            del self._tasks[stream]


async def in_slices(items: Iterable[T]) -> AsyncGenerator[T]:
    """Yields items for work of much less than `SLICE` each. Anything may change between two of them."""
    end = time.perf_counter() + SLICE
    for item in items:
        yield item
        if time.perf_counter() >= end:
            await asyncio.sleep(0)
            end = time.perf_counter() + SLICE
