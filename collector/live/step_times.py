"""The step times of one stream, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.collector.live.history import History
from stepscope.exporters.stream.step_summary import StepTime
from stepscope.runtime.events.record import Block, Flag, Kind

RECENT = 1024
"""Steps that are kept one by one."""
RECENT_WIDTH_NS = 500_000_000
"""Of a bucket of the last minutes."""
UNKNOWN = -1.0
"""Time of a step's own, if it is not known for how long it waited for other ranks."""

FEW = 8
"""Steps that are added one by one."""
SHOWN = 64
"""The newest steps of a rank whose median is shown."""

Times = NDArray[np.int64]
_STEP = np.dtype([("number", "<i8"), ("begin", "<i8"), ("ms", "<f4"), ("own_ms", "<f4")])


class StepTimes:
    """The newest steps one by one, the last four minutes and the whole run as means. One thread changes it; others may call `newest`,
    which may or may not have what is added meanwhile."""

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
        begins, durations = spans["ts"].astype(np.int64), spans["dur"].astype(np.int64)
        with np.errstate(over="ignore"):
            ends = np.clip(begins + durations + np.int64(offset_ns), earliest_ns, latest_ns)
        steps: NDArray[np.void] = np.zeros(len(spans), _STEP)
        steps["number"], steps["begin"] = spans["step"], begins
        steps["ms"], steps["own_ms"] = durations / 1e6, UNKNOWN
        self._add(steps, ends, durations)

    def add_steps(self, steps: Sequence[StepTime], offset_ns: int, earliest_ns: int, latest_ns: int) -> None:
        """Adds steps of a summary, but for those that were read from the file before. Arguments as for `add_events`."""
        new = [step for step in steps if step.begin > self._latest_begin]
        if len(new) > FEW:
            rows = np.array([_row(step) for step in new], _STEP)
            ends = np.array([min(max(step.end + offset_ns, earliest_ns), latest_ns) for step in new], np.int64)
            self._add(rows, ends, np.array([step.end - step.begin for step in new], np.int64))
            return
        for step in new:  # as a rank sends each second, for which arrays take longer
            self._reserve(1)
            self._ring[self.count % len(self._ring)] = _row(step)
            self.count += 1
            self.last, self._latest_begin = step.number, step.begin
            end = min(max(step.end + offset_ns, earliest_ns), latest_ns)
            self.recent.add_one(end, step.end - step.begin)
            self.all.add_one(end, step.end - step.begin)

    def _add(self, steps: NDArray[np.void], ends: Times, durations: Times) -> None:
        if not len(steps):
            return
        self.recent.add(ends, durations)
        self.all.add(ends, durations)
        self._reserve(len(steps))
        size = len(self._ring)
        at = self.count % size
        if at + len(steps) <= size:
            self._ring[at : at + len(steps)] = steps
        else:
            self._ring[(self.count + np.arange(len(steps))[-size:]) % size] = steps[-size:]
        self.count += len(steps)
        self.last = int(steps["number"][-1])
        self._latest_begin = max(self._latest_begin, int(steps["begin"].max()))

    def _reserve(self, more: int) -> None:
        """Makes room for further steps, as a job of many ranks may have few steps."""
        size = len(self._ring)
        if self.count + more > size and size < RECENT:
            made = np.zeros(min(max(2 * size, self.count + more, 64), RECENT), _STEP)
            made[: self.count] = self._ring[: self.count]
            self._ring = made

    def newest(self, most: int) -> NDArray[np.void]:
        """The newest steps, `most` of them, in their order: `number`, `begin` in ns of the rank's clock, `ms` and `own_ms`."""
        size = len(self._ring)
        count = min(self.count, most, size)
        end = self.count % size if self.count > size else self.count
        if count <= end:
            return self._ring[end - count : end].copy()
        return np.concatenate((self._ring[end - count :], self._ring[:end]))


def median(times: NDArray[np.float32] | NDArray[np.float64]) -> float:
    """The median of one number or more; for short arrays several times as fast as numpy's."""
    ordered = np.sort(times)
    return float(ordered[(len(times) - 1) // 2] + ordered[len(times) // 2]) / 2


def communicates(steps: NDArray[np.void]) -> bool:
    """Whether steps, as `newest` returns them, are known to wait for other ranks. A share below 1/512 is rounding."""
    with_own_time = steps[steps["own_ms"] >= 0]
    return bool((with_own_time["own_ms"] < with_own_time["ms"] * (1 - 1 / 512)).any())


def _row(step: StepTime) -> tuple[int, int, float, float]:
    return step.number, step.begin, (step.end - step.begin) / 1e6, step.own / 1e6
