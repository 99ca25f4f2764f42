"""Reads the frames of streams in slices, so that one message blocks the collector's loop for a few ms at most."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from stepscope.collector.files.uncancelled import uncancelled
from stepscope.collector.live.stream import Frame, Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.collector.files.stream_file import NewFrames

log = logging.getLogger("stepscope.collector")

SLICE = 0.004
"""Seconds after which everything else on the loop has its turn; one slice, whatever the number of streams."""


class Noting:
    """Has streams look into what they took. A stream that is not behind costs nothing; for one that is there is a task until
    it has caught up, whatever becomes of who brought the frames. Methods are for the loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._tasks: dict[Stream, asyncio.Task[None]] = {}

    def took(self, stream: Stream, new: NewFrames) -> None:
        """Frames of a stream are written: `Stream.took`. Who brings more must wait for `caught_up` first."""
        try:
            if new.missing:
                stream.missed(new.missing, new.next - len(new.frames))
            stream.took(new.frames, len(new.data), new.next)
        finally:
            self._begin(stream)

    async def restored(self, stream: Stream, frames: Sequence[Frame], events: int, next: int) -> None:
        """Frames were read from its file: `Stream.restored`. Returns when it has looked into them."""
        stream.restored(frames, events, next)
        self._begin(stream)
        await self.caught_up(stream)

    async def caught_up(self, stream: Stream) -> None:
        """Returns when a stream has looked into all that it took; at once if it has."""
        task = self._tasks.get(stream)
        if task is not None:
            await uncancelled(task)

    def _begin(self, stream: Stream) -> None:
        if stream.behind and stream not in self._tasks:
            self._tasks[stream] = asyncio.create_task(self._catch_up(stream))

    async def _catch_up(self, stream: Stream) -> None:
        try:
            while stream.behind:
                async with self._turn:
                    try:
                        stream.note(SLICE)
                    except Exception:  # a fault of ours in one frame must not keep the others from being counted
                        log.exception("what was written of a stream is not counted")
                    await asyncio.sleep(0)
        finally:
            del self._tasks[stream]
