"""Live events: the state of the ranks once a second, to everybody who listens (server-sent events)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

import msgspec

from stepscope.collector.live.live import FRESH, Live
from stepscope.collector.live.views import Snapshot

INTERVAL = 1.0
"""Seconds between two snapshots."""
MOST_LISTENERS = 256
"""Clients that may listen at the same time."""


class _View(NamedTuple):
    """Selects the events of a listener: those of one job or of all, with or without facts of other jobs."""

    job: str | None
    alone: bool


class _Listener:
    """The next event of one connection: the changes since the last event, or, if it did not take that, the whole state."""

    def __init__(self, view: _View) -> None:
        self.view = view
        self.changes: bytes | None = None
        self.behind = True
        self.over = False
        """True if it gets no more events, and may connect again."""
        self.news = asyncio.Event()


class LiveEvents:
    """Makes an event each second while a connection listens. A slow listener skips events, and gets the latest state.

    All listeners of the same job, or of all jobs, get the same bytes.
    """

    def __init__(self, live: Live, failed: Callable[[BaseException], object] = lambda _: None) -> None:
        """Args: the live state; called with the error if events end until the next listener connects."""
        self._live, self._failed = live, failed
        self._listeners: set[_Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._latest: dict[_View, Snapshot] = {}
        """The latest snapshot of each view."""
        self._stopped = False

    @property
    def full(self) -> bool:
        """True if no further connection can listen."""
        return len(self._listeners) >= MOST_LISTENERS

    async def listen(self, job: str | None = None, *, alone: bool = False) -> AsyncGenerator[bytes]:
        """Server-sent events: `snapshot`, full at first and with what has changed then; `end` when the collector stops.

        Args:
            job: sends the ranks of this job only, whether or not it is there yet.
            alone: does not list other jobs.
        """
        view = _View(job, alone)
        listener = _Listener(view)
        self._listeners.add(listener)
        try:
            if self._task is None and not self._stopped:
                self._task = asyncio.create_task(self._send_changes(), name="stepscope live events")
                self._task.add_done_callback(self._ended)
            listener.news.set()
            while not self._stopped:
                await listener.news.wait()
                listener.news.clear()
                if self._stopped or listener.over:
                    break
                if listener.behind:
                    if view not in self._latest:
                        snapshot = await self._snapshot(view)
                        self._latest.setdefault(view, snapshot)
                    data = _event(self._latest[view])
                elif listener.changes is not None:
                    data = listener.changes
                else:
                    continue  # the snapshot that it had last is the latest one
                listener.behind, listener.changes = False, None
                yield data
            yield b"event: end\ndata: {}\n\n"
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None
                self._latest = {}

    async def stop(self) -> None:
        """Ends every stream of events."""
        self._stopped = True
        for listener in self._listeners:
            listener.news.set()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _snapshot(self, view: _View, age: float = FRESH) -> Snapshot:
        found = await self._live.snapshot(view.job, age=age)
        if not view.alone:
            return found
        return msgspec.structs.replace(found, jobs=[job for job in found.jobs or () if job.id == view.job])

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Ends the listeners, which would wait for ever. They connect again by themselves."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._task, self._latest = None, {}
        for listener in self._listeners:
            listener.over = True
            listener.news.set()
        self._failed(error)

    async def _send_changes(self) -> None:
        due = time.monotonic()
        while True:
            # By the clock, so that looking does not make the seconds longer; without haste after a long break.
            due = max(due + INTERVAL, time.monotonic() + INTERVAL / 4)
            await asyncio.sleep(due - time.monotonic())
            latest: dict[_View, Snapshot] = {}
            for view in {listener.view for listener in self._listeners}:
                latest[view] = await self._snapshot(view, math.inf if latest else 0.0)  # all get the same moment
            before, self._latest = self._latest, latest
            events = {view: _event(changes(before[view], now)) for view, now in self._latest.items() if view in before}
            for listener in self._listeners:
                # A listener that has not read the changes before cannot use these.
                listener.behind = listener.behind or listener.changes is not None or listener.view not in events
                listener.changes = None if listener.behind else events[listener.view]
                listener.news.set()


def changes(before: Snapshot, after: Snapshot) -> Snapshot:
    """The differences of a snapshot from the one before."""
    removed = {view.id: view for view in before.ranks}
    ranks = [view for view in after.ranks if removed.pop(view.id, None) != view]
    return msgspec.structs.replace(
        after,
        full=False,
        jobs=None if before.jobs == after.jobs else after.jobs,
        ranks=ranks,
        gone=list(removed),
    )


def _event(snapshot: Snapshot) -> bytes:
    return b"event: snapshot\nid: %d\ndata: %b\n\n" % (snapshot.number, msgspec.json.encode(snapshot))
