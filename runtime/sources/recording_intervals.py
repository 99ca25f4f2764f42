"""The times in which a backend records what one thread does, and nothing of others."""

from __future__ import annotations

from collections import deque

from stepscope.runtime.events.intervals import FOREVER, Interval
from stepscope.runtime.schedule.action import ProfilerAction

REMEMBERED = 256
"""Recordings of a backend that are remembered; windows are asked about when they close, soon after their end."""


class _Recording:
    def __init__(self, start: int) -> None:
        self.start, self.end = start, FOREVER
        self.alone: bool | None = None
        """Whether it was of one thread; `None` while it goes on: the backend knows."""


class RecordingIntervals:
    """Of one backend. It is told of changes on the backend's thread, before the backend is, and asked on the loop."""

    def __init__(self, backend: object) -> None:
        """Args: a backend; one that may record one thread only has an attribute `one_thread`, true while it does."""
        self._backend = backend
        self._recordings: deque[_Recording] = deque(maxlen=REMEMBERED)

    @property
    def _alone(self) -> bool:
        return bool(getattr(self._backend, "one_thread", False))

    def change(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        """The backend is going to be told of this change."""
        ends = before is ProfilerAction.RECORD_AND_SAVE or not after.records
        if before.records and ends and self._recordings:
            last = self._recordings[-1]
            # In this order: `during` looks at the backend first.
            last.alone, last.end = self._alone, at
        if after.records and (ends or not before.records):
            self._recordings.append(_Recording(at))

    def during(self, interval: Interval) -> bool:
        """Whether the backend recorded one thread only in this time, or a part of it."""
        now = self._alone
        return any(
            now if recording.alone is None else recording.alone
            for recording in list(self._recordings)
            if recording.start < interval[1] and recording.end > interval[0]
        )
