"""The tables of windows: what `summary()` shows, kept while the events stream by."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events import tracks
from stepscope.runtime.events.record import Block, join_blocks
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.threads import locks
from stepscope.runtime.windows.aggregates import Aggregates
from stepscope.runtime.windows.step_facts import StepFactsBuilder
from stepscope.runtime.windows.step_statistics import StepTotals

MERGED_TOGETHER = 64
"""Windows that are added to the total at once, if nobody asks before."""
COUNTED_LATER_BYTES = 64 << 10
"""A window with more bytes of events is counted while they stream by: those that wait must take little memory."""
KEPT_TABLES = 256
"""Windows whose table is kept."""

KEPT_BYTES = 32 << 20
"""What they may take together; the newest is kept in any case. One of 500 names can take a megabyte."""


_changing = locks.reentrant()
"""Held for moments: while sums of steps change that another thread may read, and while they are copied."""


class _OtherProcesses:
    """Which tracks are of processes other than this one, such as a DataLoader's workers. Devices are no processes."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._known: NDArray[np.bool_] = np.zeros(1, np.bool_)
        self._any = False

    def among(self, events: Block) -> NDArray[np.bool_] | None:
        """Which events are theirs; `None` if none is."""
        with _changing:
            for track in tracks.since(len(self._known)):
                theirs = track.kind in _PROCESSES and track.pid != self.pid
                self._known = np.append(self._known, theirs)
                self._any |= theirs
        if not self._any:
            return None
        found: NDArray[np.bool_] = self._known[np.minimum(events["track"], len(self._known) - 1)]
        return found if found.any() else None


_others: _OtherProcesses | None = None


def _other_processes() -> _OtherProcesses:
    """The process's, which goes through its tracks once."""
    global _others
    if _others is None or _others.pid != os.getpid():
        _others = _OtherProcesses()
    return _others


_PROCESSES = (TrackKind.PROCESS, TrackKind.THREAD, TrackKind.TASK)


class WindowTable:
    """What a window, or many, hold: spans by name, those of other processes apart, and statistics of steps.

    A small window only collects its events: `count_together` counts those of many windows at the cost of one.

    Args:
        optimizer: as for `StepTotals`.
    """

    def __init__(self, *, optimizer: bool = False) -> None:
        self.spans = Aggregates()
        """Of this process, with counters and instants."""
        self.elsewhere = Aggregates()
        """The same of processes that joined it."""
        self.steps = StepTotals(optimizer=optimizer)
        self.ns = 0
        """Length of the windows."""
        self.open = 0
        """Windows of them that have not been closed."""
        self.begin = 0
        """When the window began, in ns, once it is finished."""
        self.steps_end: int | None = None
        """When its last step ended, in ns, once it is finished; `None`: it has no steps."""
        self.collected: list[Block] | None = []
        """The events of a small window, none of which was counted; `None`: all were counted."""
        self._collected_bytes = 0
        self._others = _other_processes()
        self._builder = StepFactsBuilder(late=True)

    def update(self, events: Block) -> None:
        """Takes events that lie in the window. They must not change afterwards."""
        if self.collected is None:
            self.count(events)
        elif self._collected_bytes + events.nbytes <= COUNTED_LATER_BYTES:
            self.collected.append(events)
            self._collected_bytes += events.nbytes
        else:
            with _changing:
                events = join_blocks([*self.collected, events])
                self.collected = None
                self.count(events)

    def count(self, events: Block) -> None:
        """Adds events to the spans by name, and those of this process to the steps."""
        others = self._others.among(events)
        if others is not None:
            self.elsewhere.update(events[others])
            events = events[~others]
        self.spans.update(events)
        self._builder.update(events)

    def settle(self, until: int) -> None:
        """Makes the facts of steps that ended by `until`, in ns: all events that began before it were taken."""
        if self.collected is None and self._builder.settle(until):
            facts = self._builder.take()
            with _changing:
                self.steps.add(facts)

    def finish(self, start: int, end: int, steps_end: int | None) -> None:
        """Ends the window: all its events were taken.

        Args:
            start: when it began, in ns.
            end: when it ended.
            steps_end: when its last step ended, `None` if it has none.
        """
        self.begin, self.ns, self.steps_end = start, end - start, steps_end
        if self.collected is None:
            first = self._builder.begun
            facts = self._builder.finish(*(() if steps_end is None else (steps_end,)))
            with _changing:
                self.steps.add(facts)
                self.add_margins(self, first)

    def finish_together(self, windows: Sequence[WindowTable]) -> None:
        """Counts the steps of windows that are finished, in the order of their times, and whose events were counted here."""
        facts = self._builder.finish(*(one.steps_end for one in windows if one.steps_end is not None))
        self.steps.add(facts)
        for window in windows:
            self.ns += window.ns
            position = int(np.searchsorted(facts["begin"], window.begin))
            first = int(facts["begin"][position]) if position < len(facts) else window.begin + window.ns
            self.add_margins(window, first if first < window.begin + window.ns else None)

    def counted(self) -> WindowTable:
        """This table, or a new one in which the events of this small window are counted."""
        return self if self.collected is None else count_together([self])

    def add_margins(self, window: WindowTable, first: int | None) -> None:
        """Adds the time of a window before its first step, which began at `first`, and after its last one."""
        if first is not None and window.steps_end is not None:
            self.steps.startup_ns += max(first - window.begin, 0)
            self.steps.shutdown_ns += max(window.begin + window.ns - window.steps_end, 0)

    def merge(self, *later: WindowTable) -> None:
        """Adds windows that are finished and counted, in the order of their times. Who reads meanwhile, in another thread, sees
        the one or the other."""
        for table in later:
            self.spans.merge(table.spans)
            self.elsewhere.merge(table.elsewhere)
            self.ns += table.ns
        self.steps = self.steps.merged(*(table.steps for table in later))

    def nbytes(self) -> int:
        """Memory that it takes once it is finished."""
        if self.collected is not None:
            return self._collected_bytes
        return self.spans.nbytes() + self.elsewhere.nbytes() + self.steps.nbytes()


def count_together(windows: Sequence[WindowTable]) -> WindowTable:
    """One table of small windows that are finished, in the order of their times; none changes."""
    made = WindowTable(optimizer=any(one.steps.optimizer for one in windows))
    made.collected = None
    made.count(join_blocks(events for one in windows for events in one.collected or ()))
    made.finish_together(windows)
    return made


class WindowTables:
    """Bounded, so that a run of a million windows needs no more memory than one of a hundred."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most = most_bytes
        self._tables: dict[int, WindowTable] = {}
        self._open: list[WindowTable] = []
        self._total = WindowTable()
        self._closed: list[WindowTable] = []
        """Closed windows that have yet to be added to the total: many at once cost little more than one."""
        self.nbytes = 0
        """What they take."""

    def begin(self, table: WindowTable) -> None:
        """A window was opened."""
        with _changing:
            self._open.append(table)

    def leave(self, table: WindowTable) -> None:
        """It ends, and nobody is to hear of it."""
        with _changing:
            self._open = [each for each in self._open if each is not table]

    def keep(self, window: int, table: WindowTable) -> None:
        """Takes the table of a window that was closed, and lets go of the oldest ones if need be."""
        with _changing:
            self.leave(table)
            self._closed.append(table)
            if len(self._closed) >= MERGED_TOGETHER or table.nbytes() > COUNTED_LATER_BYTES:
                self._merge_closed()
        self._tables[window] = table
        self.nbytes += table.nbytes()
        while len(self._tables) > KEPT_TABLES or (self.nbytes > self._most and len(self._tables) > 1):
            self.nbytes -= self._tables.pop(next(iter(self._tables))).nbytes()

    def so_far(self) -> WindowTable:
        """All windows; of those that are open, what was sorted. For any thread."""
        with _changing:
            self._merge_closed()
            if not self._open:
                return self._total
            found = WindowTable()
            found.merge(self._total, *self._open)
            for table in self._open:
                for events in table.collected or ():
                    found.count(events)
            found.open = len(self._open)
        return found

    def _merge_closed(self) -> None:
        closed, self._closed = self._closed, []
        for small, group in itertools.groupby(closed, lambda table: table.collected is not None):
            tables = list(group)
            self._total.merge(*([count_together(tables)] if small else tables))

    def get(self, window: int) -> WindowTable | None:
        """The table of a window; `None` if it was let go."""
        table = self._tables.get(window)
        return None if table is None else table.counted()
