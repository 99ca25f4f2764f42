"""The events of one window that wait for their step to be complete."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.exporters.otlp.memory import Memory
from stepscope.exporters.otlp.options import OtlpOptions
from stepscope.exporters.otlp.wanted import is_step
from stepscope.runtime.events.record import Block, EventBatch, Kind, empty_block, join_blocks

FOREVER = (1 << 63) - 1


class Rows:
    """Events of several batches, as one block with the heap and source of each."""

    def __init__(self, batches: list[EventBatch]) -> None:
        self.events: Block = join_blocks(batch.events for batch in batches) if batches else empty_block()
        self.heaps = [batch.args for batch in batches]
        self.sources = [batch.source for batch in batches]
        self.batch: NDArray[np.int64] = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
        """Index of each event's heap and source."""


class HeldWindow:
    """Holds events until all of their step are there, so that each finds its parent.

    When a step has ended its span comes, followed by the rest of what was recorded meanwhile. So a step is complete
    when the span of a later one comes. What comes later still is given with the next steps.
    """

    def __init__(self, index: int, options: OtlpOptions) -> None:
        self.index = index
        self._most = options.hold_events
        self._longest = round(options.hold_seconds * 1e9)
        self._held: list[EventBatch] = []
        self._orphans: list[EventBatch] = []
        self._count = 0
        self._oldest = FOREVER
        self._newest = 0
        self._complete = self._announced = -1
        self.roots: Memory[int, bool] = Memory()
        """Steps whose span was sent."""
        self.rootless: dict[int, tuple[int, int]] = {}
        """From when to when, in ns, there are spans of steps whose own span was not sent yet."""
        self.loose_marks = 0
        """Step marks that the window's span stands for, as that of their step is not sent."""
        self.first, self.last = FOREVER, 0
        """From when to when, in ns, there are events."""
        self.ends: dict[int, int] = {}
        """When each step ended, in ns; of the latest steps."""

    def add(self, batch: EventBatch) -> Rows | None:
        """Takes a batch; gives what is complete now, or has waited long enough."""
        events = batch.events
        if not len(events):
            return None
        self._held.append(batch)
        self._count += len(events)
        self._oldest = min(self._oldest, int(events["ts"].min()))
        self._newest = max(self._newest, int(events["ts"].max()))
        self.first, self.last = min(self.first, self._oldest), max(self.last, self._newest)
        steps = events[(events["kind"] == int(Kind.SPAN)) & is_step(events)]
        if len(steps):
            self.ends.update(zip(steps["step"].tolist(), (steps["ts"] + steps["dur"]).tolist(), strict=True))
            while len(self.ends) > 4096:
                del self.ends[next(iter(self.ends))]
            before, self._complete = self._complete, self._announced
            self._announced = max(self._announced, int(steps["step"].max()))
            if self._complete > before:
                return self._take(self._complete)
        if self._count > self._most or self._newest - self._oldest > self._longest:
            return self.rest()
        return None

    def rest(self) -> Rows:
        """Gives all that is held."""
        rows = Rows(self._orphans + self._held)
        self._orphans = []
        self._keep([])
        return rows

    def give_back(self, rows: Rows, orphans: NDArray[np.bool_]) -> None:
        """Holds some of what was given again, as their parents have not ended yet; they are given the next time."""
        numbers: set[int] = set(rows.batch[orphans].tolist())
        for number in sorted(numbers):
            part = rows.events[orphans & (rows.batch == number)]
            self._orphans.append(EventBatch(rows.sources[number], self.index, part, rows.heaps[number]))

    def sent_step(self, step: int) -> None:
        """The span of a step is sent."""
        self.roots.put(step, True)
        self.rootless.pop(step, None)

    def sent_in_step(self, step: int, begin: int, end: int) -> None:
        """A span in the trace of a step is sent, perhaps before that of the step itself."""
        if step >= 0 and step not in self.roots:
            first, last = self.rootless.get(step, (begin, end))
            self.rootless[step] = min(first, begin), max(last, end)

    def _take(self, last: int) -> Rows:
        taken: list[EventBatch] = []
        kept: list[EventBatch] = []
        for batch in self._held:
            early = batch.events["step"] <= last
            if early.all():
                taken.append(batch)
            elif early.any():
                taken.append(EventBatch(batch.source, batch.window, batch.events[early], batch.args))
                kept.append(EventBatch(batch.source, batch.window, batch.events[~early], batch.args))
            else:
                kept.append(batch)
        self._keep(kept)
        orphans, self._orphans = self._orphans, []
        return Rows(orphans + taken)

    def _keep(self, batches: list[EventBatch]) -> None:
        self._held = batches
        self._count = sum(map(len, batches))
        self._oldest = min((int(batch.events["ts"].min()) for batch in batches), default=FOREVER)

    def homes(self, events: Block) -> NDArray[np.int32]:
        """The step in whose trace each event is; -1: that of the run, as it is in no step or another lies within it."""
        homes: Any = np.maximum(events["step"], -1)
        if self.ends:
            numbers = np.array(sorted(self.ends), np.int64)
            ends = np.array([self.ends[number] for number in numbers.tolist()], np.int64)
            following = np.searchsorted(numbers, events["step"], side="right")
            contains = following < len(numbers)
            contains[contains] = (events["ts"] + np.maximum(events["dur"], 0))[contains] >= ends[following[contains]]
            spans = (events["kind"] == int(Kind.SPAN)) & ~is_step(events)
            homes = np.where(contains & spans, -1, homes)
        return homes  # type: ignore[no-any-return]
