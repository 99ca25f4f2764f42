"""The times in which a backend records one thread only."""

from __future__ import annotations

from collections import deque

from stepscope.runtime.events.intervals import FOREVER, Interval
from stepscope.runtime.schedule.action import ProfilerAction

MAX_RECORDINGS = 256
"""Recordings of a backend in memory. `during` is called soon after a window's end, when it closes."""


class _Recording:
    def __init__(self, start: int) -> None:
        self.start, self.end = start, FOREVER
        self.one_thread: bool | None = None
        """Whether it was of one thread only; `None` while it runs, as the backend knows."""


class RecordingIntervals:
    """The recordings of one backend. `change` is called on the backend's thread, before the backend; `during` on the loop."""

    def __init__(self, backend: object) -> None:
        """Args: a backend. If it may record one thread only, it has an attribute `one_thread`, which is true while it does."""
        self._backend = backend
        self._recordings: deque[_Recording] = deque(maxlen=MAX_RECORDINGS)

    @property
    def _one_thread(self) -> bool:
        return bool(getattr(self._backend, "one_thread", False))

    def change(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        """The action is about to change."""
        ends = before is ProfilerAction.RECORD_AND_SAVE or not after.records
        if before.records and ends and self._recordings:
            last = self._recordings[-1]
            # In this order, as `during` reads the backend first.
            last.one_thread, last.end = self._one_thread, at
        if after.records and (ends or not before.records):
            self._recordings.append(_Recording(at))

    def during(self, interval: Interval) -> bool:
        """Whether the backend recorded one thread only in this interval, or a part of it."""
        now = self._one_thread
        return any(
            now if recording.one_thread is None else recording.one_thread
            for recording in list(self._recordings)
            if recording.start < interval[1] and recording.end > interval[0]
        )
