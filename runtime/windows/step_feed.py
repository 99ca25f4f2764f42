"""Facts of steps while the run goes on, for exporters that show them live.

About once a second the pipeline calls `look`, which hands the facts of the steps that have ended since the last call to the
receivers. They are those of `summary()`, but for spans that are still open, such as one around the whole loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from stepscope.runtime.events.record import NO_STEP, join_blocks
from stepscope.runtime.threads import locks
from stepscope.runtime.windows.open_window import OpenWindow
from stepscope.runtime.windows.step_facts import Facts, StepFactsBuilder, join_facts
from stepscope.runtime.windows.window_tables import WindowTable

INTERVAL_NS = 1_000_000_000
"""Time between two looks."""
MAX_WINDOWS = 256
"""Windows of one look; the steps of older ones are left out."""

MAX_UNFOLLOWED = 8
"""Closed windows that are kept while there is no receiver: exporters may need a moment to open."""

Receiver: TypeAlias = Callable[[Facts], object]
"""Gets new steps in the order of their times, on the thread of the pipeline's loop; if the run ended before, on the calling one."""


class _Followed(msgspec.Struct):
    """A window whose steps are handed on."""

    window: OpenWindow
    table: WindowTable
    closed: bool = False
    until: int = 0
    """Steps that ended by this time were handed on."""


class StepFeed:
    """Hands new facts of steps to receivers. All methods but `follow` and `unfollow` run on the pipeline's loop."""

    def __init__(self, *, only_closed: bool = False) -> None:
        """Args: whether only closed windows count, as those of the flight recorder get their events out of order."""
        self._lock = locks.reentrant()
        self._receivers: tuple[Receiver, ...] = ()
        self._windows: dict[int, _Followed] = {}
        """The newest windows, by their indexes."""
        self._closed: deque[int] = deque()
        """Indexes of closed windows that no receiver has got."""
        self._only_closed = only_closed
        self._looked = 0
        self._ended_at: int | None = None
        """`until` of the last look."""
        self._rest: Facts | None = None
        """The facts of the last look, once they are computed."""

    def follow(self, receiver: Receiver) -> None:
        """Calls it about once a second, on the loop's thread, with the facts of steps that have ended since: possibly none. If the
        run has ended, calls it at once, on this thread, with the last facts. Any thread may call."""
        with self._lock:
            self._receivers = (*self._receivers, receiver)
            if self._ended_at is not None:
                if self._rest is None:
                    self._rest = self._new_facts(self._ended_at)
                receiver(self._rest)

    def unfollow(self, receiver: Receiver) -> None:
        """Ends that. Any thread may call."""
        with self._lock:
            self._receivers = tuple(one for one in self._receivers if one != receiver)

    @property
    def followed(self) -> bool:
        """Whether there is a receiver."""
        return bool(self._receivers)

    def open(self, window: OpenWindow) -> None:
        """A window opens."""
        if window.table is not None:
            self._windows[window.index] = _Followed(window, window.table)
        if len(self._windows) > MAX_WINDOWS:
            del self._windows[next(iter(self._windows))]

    def close(self, window: OpenWindow) -> None:
        """A window is closed: all of its steps are known."""
        if window.index in self._windows:
            self._windows[window.index].closed = True
            self._closed.append(window.index)
        while not self._receivers and len(self._closed) > MAX_UNFOLLOWED:
            self._windows.pop(self._closed.popleft(), None)

    def discard(self, window: OpenWindow) -> None:
        """A window is closed, and has no events."""
        self._windows.pop(window.index, None)

    def look(self, until: int, now: int, *, last: bool = False) -> None:
        """Hands on the steps that have ended, if a second has passed since the last time, or the run ends (`last`). All
        sources have delivered every event that began by `until`, in ns."""
        with self._lock:
            if last:
                self._ended_at = until
            if not self._receivers or (now - self._looked < INTERVAL_NS and not last):
                return
            self._looked = now
            new = self._new_facts(until)
            if last:
                self._rest = new
            for receive in self._receivers:
                receive(new)

    def _new_facts(self, until: int) -> Facts:
        """The facts of steps that were not handed on yet. Forgets closed windows."""
        ready = [one for one in self._windows.values() if one.closed or not self._only_closed]
        small = [one for one in ready if one.table.collected is not None]
        large = [one for one in ready if one.table.collected is None]
        facts = join_facts([*_of_small(small), *(_of_large(one) for one in large)])
        facts = facts[facts["step"] != NO_STEP]
        facts = facts[np.argsort(facts["begin"], kind="stable")]
        new = join_facts([_new_steps(one, facts, until) for one in ready])
        self._windows = {index: one for index, one in self._windows.items() if not one.closed}
        self._closed.clear()
        return new


def _of_small(windows: Sequence[_Followed]) -> list[Facts]:
    """The facts of small windows, whose events are not counted yet: computed together, as each call takes its time."""
    if not windows:
        return []
    builder = StepFactsBuilder(late=True)
    builder.update(join_blocks([events for one in windows if (events := one.table.own_collected()) is not None]))
    # Windows that have ended are followed by the time between two windows, also if they are not closed yet.
    facts = builder.finish(*(one.window.steps_end for one in windows if one.window.end is not None))
    starts = np.array([one.window.start for one in windows])
    indexes = np.array([one.window.index for one in windows])
    if len(facts):
        facts["window"] = indexes[np.maximum(np.searchsorted(starts, facts["begin"], side="right") - 1, 0)]
    return [facts]


def _of_large(followed: _Followed) -> Facts:
    facts = followed.table.preview()
    facts["window"] = followed.window.index
    return facts


def _new_steps(followed: _Followed, facts: Facts, until: int) -> Facts:
    """The steps of a window that were not handed on yet."""
    mine = facts["window"] == followed.window.index
    if followed.table.optimizer:
        mine &= facts["step"] != 0  # see step_statistics.OPTIMIZER
    mine &= facts["end"] > followed.until
    if not followed.closed:
        mine &= facts["end"] <= until
    new: Facts = facts[mine]
    if len(new):
        followed.until = int(new["end"].max())
    return new
