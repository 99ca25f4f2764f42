"""The tables of windows, from which `summary()` is made."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import _core
from stepscope.runtime.events import tracks
from stepscope.runtime.events.record import Block, join_blocks
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.threads import locks
from stepscope.runtime.windows.step_facts import Facts, StepFactsBuilder, join_facts
from stepscope.runtime.windows.step_statistics import StepTotals

MERGED_TOGETHER = 256
"""Closed windows that are added to the total together; earlier if the total is read."""
COUNTED_LATER_BYTES = 64 << 10
"""A window with more bytes of events is counted as they arrive. Events of smaller windows wait in memory."""
MAX_TABLES = 256
"""Number of windows whose table stays in memory."""

MAX_TABLE_BYTES = 32 << 20
"""Memory of these tables; the newest stays in any case. A table of 500 names can take a megabyte."""


_changing = locks.reentrant()
"""Held for a moment, while sums of steps change that another thread may read, and while they are copied."""


class _OtherProcesses:
    """Finds the tracks of other processes, such as a DataLoader's workers. Devices are no processes."""

    def __init__(self, pid: int) -> None:
        """Args: the id of this process."""
        self._pid = pid
        self._known: NDArray[np.bool_] = np.zeros(1, np.bool_)
        self._any = False

    def among(self, events: Block) -> NDArray[np.bool_] | None:
        """Mask of the events of other processes; `None` if there are none."""
        with _changing:
            for track in tracks.since(len(self._known)):
                is_other = track.kind in _PROCESSES and track.pid != self._pid
                self._known = np.append(self._known, is_other)
                self._any |= is_other
        if not self._any:
            return None
        found: NDArray[np.bool_] = self._known[np.minimum(events["track"], len(self._known) - 1)]
        return found if found.any() else None


_other_processes = cache(_OtherProcesses)
"""One object for the process, so that its tracks are read once."""
_PROCESSES = (TrackKind.PROCESS, TrackKind.THREAD, TrackKind.TASK)


class WindowTable:
    """The table of one or many windows: spans by name, those of other processes separately, and statistics of steps.

    A small window only collects its events, and makes nothing else. `count_together` counts the events of many such windows at once.

    Args:
        optimizer: as for `StepTotals`.
    """

    def __init__(self, *, optimizer: bool = False) -> None:
        self.optimizer = optimizer
        self.ns = 0
        """Length of the windows."""
        self.open = 0
        """Number of these windows that are not closed."""
        self.apart = 0
        """Operators that backends have delivered: the self time of the spans around them includes theirs."""
        self.begin = 0
        """When the window began, in ns, once it is finished."""
        self.steps_end: int | None = None
        """When its last step ended, in ns, once it is finished; `None` = no steps."""
        self.collected: list[Block] | None = []
        """The events of a small window, which are not counted yet; `None` = all are counted."""
        self._collected_bytes = 0
        self._others = _other_processes(os.getpid())

    @cached_property
    def spans(self) -> _core.Aggregates:
        """Spans of this process, with counters and instants."""
        return _core.Aggregates()

    @cached_property
    def elsewhere(self) -> _core.Aggregates:
        """The same of joined processes."""
        return _core.Aggregates()

    @cached_property
    def steps(self) -> StepTotals:
        return StepTotals(optimizer=self.optimizer)

    @cached_property
    def _builder(self) -> StepFactsBuilder:
        return StepFactsBuilder(late=True)

    def make_sums(self) -> None:
        """Makes the sums now, before two threads may read them: each would make its own."""
        _ = self.spans, self.elsewhere, self.steps

    def update(self, events: Block) -> None:
        """Adds events of the window. They must not change afterwards."""
        if self.collected is None:
            self.count(events)
        elif self._collected_bytes + events.nbytes <= COUNTED_LATER_BYTES:
            self.collected.append(events)
            self._collected_bytes += events.nbytes
        else:
            with _changing:
                events = join_blocks([*self.collected, events])
                self.collected = None
                self.make_sums()
                self.count(events)

    def count(self, events: Block) -> None:
        """Adds events to the spans by name, and those of this process to the steps."""
        others = self._others.among(events)
        if others is not None:
            self.elsewhere.update(events[others])
            events = events[~others]
        self.spans.update(events)
        self._builder.update(events)

    def finish_until(self, until: int) -> None:
        """Computes the facts of steps that ended by `until`, in ns. All events that began before it were added."""
        if self.collected is None and self._builder.finish_until(until):
            facts = self._builder.pop_facts()
            with _changing:
                self.steps.add(facts)

    def own_collected(self) -> Block | None:
        """The events of this process in a small window, which are not counted yet; `None` = all are counted."""
        if self.collected is None:
            return None
        events = join_blocks(self.collected)
        others = self._others.among(events)
        return events if others is None else events[~others]

    def preview(self) -> Facts:
        """The facts of the last steps of a window whose events are counted, for live views; of a step that has just ended as far as
        its events have come. Changes nothing."""
        ends = () if self.steps_end is None else (self.steps_end,)
        return join_facts((self.steps.last, self._builder.preview(*ends)))

    def finish(self, start: int, end: int, steps_end: int | None) -> None:
        """Ends the window, after all its events were added.

        Args:
            start: when it began, in ns.
            end: when it ended.
            steps_end: when its last step ended; `None` = no steps.
        """
        self.begin, self.ns, self.steps_end = start, end - start, steps_end
        if self.collected is None:
            first = self._builder.first_begin
            facts = self._builder.finish(*(() if steps_end is None else (steps_end,)))
            with _changing:
                self.steps.add(facts)
                self.add_margins(self, first)

    def finish_together(self, windows: Sequence[WindowTable]) -> None:
        """Counts the steps of finished windows, in the order of their times. Their events were counted in this table."""
        facts = self._builder.finish(*(one.steps_end for one in windows if one.steps_end is not None))
        self.steps.add(facts)
        positions: list[int] = np.searchsorted(facts["begin"], [window.begin for window in windows]).tolist()
        for window, position in zip(windows, positions, strict=True):
            self.ns += window.ns
            first = int(facts["begin"][position]) if position < len(facts) else window.begin + window.ns
            self.add_margins(window, first if first < window.begin + window.ns else None)

    def counted(self) -> WindowTable:
        """This table; for a small window, a new one in which its events are counted."""
        return self if self.collected is None else count_together([self])

    def add_margins(self, window: WindowTable, first: int | None) -> None:
        """Adds the time of a window before its first step, which began at `first`, and after its last one."""
        if first is not None and window.steps_end is not None:
            self.steps.startup_ns += max(first - window.begin, 0)
            self.steps.shutdown_ns += max(window.begin + window.ns - window.steps_end, 0)

    def merge(self, *later: WindowTable) -> None:
        """Adds finished and counted windows, in the order of their times. A reader on another thread sees the steps either before
        or after the merge."""
        for table in later:
            self.spans.merge(table.spans)
            self.elsewhere.merge(table.elsewhere)
            self.ns += table.ns
            self.apart += table.apart
        self.steps = self.steps.merged(*(table.steps for table in later))

    def nbytes(self) -> int:
        """Its memory in bytes, once it is finished."""
        if self.collected is not None:
            return self._collected_bytes
        return self.spans.nbytes() + self.elsewhere.nbytes() + self.steps.nbytes()


def count_together(windows: Sequence[WindowTable]) -> WindowTable:
    """One table of small finished windows, in the order of their times. None of them changes."""
    made = WindowTable(optimizer=any(one.optimizer for one in windows))
    made.collected = None
    made.count(join_blocks(events for one in windows for events in one.collected or ()))
    made.finish_together(windows)
    made.apart = sum(one.apart for one in windows)
    return made


class WindowTables:
    """The tables of the last windows, and the total of all. Memory is bounded."""

    def __init__(self, max_bytes: int = MAX_TABLE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._tables: dict[int, WindowTable] = {}
        self._open: dict[int, WindowTable] = {}
        """The tables of open windows, by the `id` of each."""
        self._total = WindowTable()
        self._total.make_sums()
        self._closed: list[WindowTable] = []
        """Closed windows that are not in the total yet: adding many together costs little more than one."""
        self.nbytes = 0
        """Memory of the tables."""

    def begin(self, table: WindowTable) -> None:
        with _changing:
            self._open[id(table)] = table

    def discard(self, table: WindowTable) -> None:
        """Removes the table of an open window, which counts nowhere."""
        with _changing:
            self._open.pop(id(table), None)

    def close(self, window: int, table: WindowTable) -> None:
        """Adds the table of a closed window, and drops the oldest tables beyond the limits."""
        with _changing:
            self.discard(table)
            self._closed.append(table)
            if len(self._closed) >= MERGED_TOGETHER or table.nbytes() > COUNTED_LATER_BYTES:
                self._merge_closed()
        self._tables[window] = table
        self.nbytes += table.nbytes()
        while len(self._tables) > MAX_TABLES or (self.nbytes > self._max_bytes and len(self._tables) > 1):
            self.nbytes -= self._tables.pop(next(iter(self._tables))).nbytes()

    def so_far(self) -> WindowTable:
        """The table of all windows; of open ones, with the events so far. Any thread may call."""
        with _changing:
            self._merge_closed()
            if not self._open:
                return self._total
            found = WindowTable()
            found.merge(self._total, *self._open.values())
            for table in self._open.values():
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
        """The table of a window; `None` if it was dropped."""
        table = self._tables.get(window)
        return None if table is None else table.counted()
