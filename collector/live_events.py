"""Live events: the state of all ranks once a second, to everybody who listens (server-sent events)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec

from stepscope.collector.live import Live
from stepscope.collector.views import RankView, Snapshot

INTERVAL = 1.0
"""Seconds between two snapshots."""
MOST_LISTENERS = 256
"""At once."""


class _Listener:
    """What one connection is to be told next: the changes since the last, or, if it did not take those, everything."""

    def __init__(self) -> None:
        self.changes: bytes | None = None
        self.behind = True
        self.news = asyncio.Event()


class LiveEvents:
    """Looks once a second while anybody listens. A slow listener costs nobody anything: it is told the latest state only."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._listeners: set[_Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._latest: Snapshot | None = None
        self._stopped = False

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._listeners)

    @property
    def full(self) -> bool:
        """Whether nobody else can listen."""
        return len(self._listeners) >= MOST_LISTENERS

    async def listen(self) -> AsyncGenerator[bytes]:
        """Server-sent events: `snapshot`, full at first and with the ranks that have changed then; `end` when the collector stops."""
        listener = _Listener()
        self._listeners.add(listener)
        try:
            if self._task is None and not self._stopped:
                self._task = asyncio.create_task(self._tell(), name="stepscope live events")
            listener.news.set()
            while not self._stopped:
                await listener.news.wait()
                listener.news.clear()
                if self._stopped:
                    break
                if listener.behind:
                    self._latest = self._latest or self._live.snapshot()
                    data = _event(self._latest)
                else:
                    assert listener.changes is not None
                    data = listener.changes
                listener.behind, listener.changes = False, None
                yield data
            yield b"event: end\ndata: {}\n\n"
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = self._latest = None

    async def stop(self) -> None:
        """Ends every stream of events."""
        self._stopped = True
        for listener in self._listeners:
            listener.news.set()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            before, self._latest = self._latest, self._live.snapshot()
            if before is None or before.number == self._latest.number:
                continue
            data = _event(changes(before, self._latest))
            for listener in self._listeners:
                # One that has not taken the changes before cannot use these.
                listener.behind = listener.behind or listener.changes is not None
                listener.changes = None if listener.behind else data
                listener.news.set()


def changes(before: Snapshot, after: Snapshot) -> Snapshot:
    """What of a snapshot differs from the one before."""
    known: dict[str, RankView] = {view.id: view for view in before.ranks}
    now = {view.id for view in after.ranks}
    return msgspec.structs.replace(
        after,
        full=False,
        ranks=[view for view in after.ranks if known.get(view.id) != view],
        gone=[id for id in known if id not in now],
    )


def _event(snapshot: Snapshot) -> bytes:
    return b"event: snapshot\nid: %d\ndata: %b\n\n" % (snapshot.number, msgspec.json.encode(snapshot))
