"""The step times of one stream, in bounded memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.collector.live.history import History
from stepscope.runtime.events.record import Block, Flag, Kind
from stepscope.runtime.windows.step_facts import FACTS_DTYPE, Facts, Phase

RECENT = 1024
"""Steps that are kept one by one."""
RECENT_WIDTH_NS = 500_000_000
"""Of a bucket of the last minutes."""
UNKNOWN = -1.0
"""Time of a step's own, if it is not known for how long it waited for other ranks."""

Times = NDArray[np.int64]
_STEP = np.dtype([("number", "<i8"), ("begin", "<i8"), ("ms", "<f4"), ("own_ms", "<f4")])


class StepTimes:
    """The newest steps one by one, the last four minutes and the whole run as means. Not for two threads at once."""

    def __init__(self) -> None:
        self.count = 0
        """Whole steps seen."""
        self.last: int | None = None
        """Number of the newest."""
        self.recent = History(rolling=True, width_ns=RECENT_WIDTH_NS)
        self.all = History(rolling=False)
        self._ring = np.zeros(0, _STEP)
        self._latest_begin = -(1 << 62)

    def add_events(self, events: Block, offset_ns: int, earliest_ns: int, latest_ns: int) -> None:
        """Adds the steps among the events of the source `steps`; those that were cut or have not ended do not count.

        Args:
            events: in the order of their times.
            offset_ns: from their clock to Unix time.
            earliest_ns: Unix time; what claims to be earlier is taken for this.
            latest_ns: likewise.
        """
        whole = (events["kind"] == int(Kind.SPAN)) & (events["flags"] & int(Flag.CLIPPED | Flag.OPEN) == 0)
        spans = events[whole & (events["dur"] >= 0)]
        facts: Facts = np.zeros(len(spans), FACTS_DTYPE)
        facts["begin"], facts["step"] = spans["ts"], spans["step"]
        with np.errstate(over="ignore"):
            facts["end"] = facts["begin"] + spans["dur"].astype(np.int64)
        self._add(facts, np.full(len(facts), UNKNOWN), offset_ns, earliest_ns, latest_ns)

    def add_facts(self, facts: Facts, offset_ns: int, earliest_ns: int, latest_ns: int) -> None:
        """Adds steps with their time in collectives. Arguments as for `add_events`."""
        facts = facts[facts["begin"] > self._latest_begin]  # they may have been read from the file before
        waited = facts["phases"][:, int(Phase.COMMUNICATION)]
        self._add(facts, (facts["end"] - facts["begin"] - waited) / 1e6, offset_ns, earliest_ns, latest_ns)

    def _add(self, facts: Facts, own_ms: NDArray[np.float64], offset_ns: int, earliest_ns: int, latest_ns: int) -> None:
        if not len(facts):
            return
        durations = facts["end"] - facts["begin"]
        with np.errstate(over="ignore"):
            ends = np.clip(facts["end"] + np.int64(offset_ns), earliest_ns, latest_ns)
        self.recent.add(ends, durations)
        self.all.add(ends, durations)
        self._reserve(len(facts))
        size = len(self._ring)
        at = (self.count + np.arange(len(facts))[-size:]) % size
        self._ring["number"][at], self._ring["begin"][at] = facts["step"][-size:], facts["begin"][-size:]
        self._ring["ms"][at], self._ring["own_ms"][at] = durations[-size:] / 1e6, own_ms[-size:]
        self.count += len(facts)
        self.last = int(facts["step"][-1])
        self._latest_begin = max(self._latest_begin, int(facts["begin"].max()))

    def _reserve(self, more: int) -> None:
        """Makes room for further steps, as a job of many ranks may have few steps."""
        size = len(self._ring)
        if self.count + more > size and size < RECENT:
            made = np.zeros(min(max(2 * size, self.count + more, 64), RECENT), _STEP)
            made[: self.count] = self._ring[: self.count]
            self._ring = made

    def newest(self, most: int) -> NDArray[np.void]:
        """The newest steps, `most` of them, in their order: `number`, `begin` in ns of the rank's clock, `ms` and `own_ms`."""
        count = min(self.count, most, len(self._ring))
        at = np.arange(self.count - count, self.count) % max(len(self._ring), 1)
        found: NDArray[np.void] = self._ring[at]
        return found
