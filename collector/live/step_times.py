"""The step times of one stream, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.exporters.stream.step_summary import StepTime
from stepscope.runtime.events.record import Block, Flag, Kind

RECENT = 1024
"""Steps that are kept one by one."""
RECENT_WIDTH_NS = 500_000_000
"""Width of a bucket of the last minutes."""
UNKNOWN = -1.0
"""Stands for a step's own time, if it is not known for how long it waited for other ranks."""

FEW = 8
"""Steps that are added one by one."""
SHOWN = 64
"""The newest steps of a rank whose median is shown."""

Times = NDArray[np.int64]
_STEP = np.dtype([("number", "<i8"), ("begin", "<i8"), ("ms", "<f4"), ("own_ms", "<f4")])

BUCKETS = 512
_FEW = 4
"""Samples that are added one by one, which is faster then."""
WIDTH_NS = 250_000_000
"""Width of a bucket at first. All widths are this times a power of two, and borders are multiples of the width: histories
of several ranks can be laid over each other."""


NEVER = -(1 << 62)
"""A time before all steps, in ns."""


def is_after(step: StepTime, end: int) -> bool:
    """Whether a step follows the one that ended at this time. Times of summaries are rounded, so its middle decides."""
    return (step.begin + step.end + 1) // 2 > end


class StepTimes:
    """The newest steps one by one, the last four minutes and the whole run as means. One thread changes it; others may call `newest`,
    which may or may not have what is added meanwhile."""

    def __init__(self) -> None:
        self.count = 0
        """Whole steps seen."""
        self.last: int | None = None
        """Number of the newest step."""
        self.recent = History(rolling=True, width_ns=RECENT_WIDTH_NS)
        self.all = History(rolling=False)
        self._ring = np.zeros(0, _STEP)
        self._latest_end = NEVER
        """End of the newest step, in ns of the rank's clock."""

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

    def without_known(self, events: Block) -> Block:
        """The steps that are not known from a summary: see `is_after`."""
        new: Block = events[
            events["ts"].astype(np.int64) + (events["dur"].astype(np.int64) + 1) // 2 > self._latest_end
        ]
        return new

    def add_steps(self, steps: Sequence[StepTime], offset_ns: int, earliest_ns: int, latest_ns: int) -> None:
        """Adds steps of a summary, but for those that are known. Arguments as for `add_events`."""
        new = [step for step in steps if is_after(step, self._latest_end)]
        if len(new) > FEW:
            rows = np.array([_row(step) for step in new], _STEP)
            ends = np.array([min(max(step.end + offset_ns, earliest_ns), latest_ns) for step in new], np.int64)
            self._add(rows, ends, np.array([step.end - step.begin for step in new], np.int64))
            return
        for step in new:  # as a rank sends each second, for which arrays take longer
            self._reserve(1)
            self._ring[self.count % len(self._ring)] = _row(step)
            self.count += 1
            self.last, self._latest_end = step.number, step.end
            end = min(max(step.end + offset_ns, earliest_ns), latest_ns)
            self.recent.add_one(end, step.end - step.begin)
            self.all.add_one(end, step.end - step.begin)

    def add_own_times(self, steps: Sequence[StepTime]) -> None:
        """Adds the own times of steps that are known without them."""
        rows = self._ring[: self.count]
        numbers = np.array([step.number for step in steps], np.int64)
        order = np.argsort(numbers, kind="stable")
        at = order[np.searchsorted(numbers[order], rows["number"]).clip(max=len(steps) - 1)]
        begins = np.array([step.begin for step in steps], np.int64)
        own_ms = np.array([step.own for step in steps]) / 1e6
        # A loop may count anew. Begins of summaries are rounded.
        same = (numbers[at] == rows["number"]) & (np.abs(begins[at] - rows["begin"]) < rows["ms"] * 1e6)
        rows["own_ms"][same] = own_ms[at][same]

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
        self._latest_end = max(self._latest_end, int((steps["begin"] + durations).max()))

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


class Sums(NamedTuple):
    """The buckets of a history that hold something, at one moment."""

    width_ns: int
    at: NDArray[np.int64]
    """Their indices."""
    counts: NDArray[np.int64]
    totals: NDArray[np.float64]

    def means(self, width_ns: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Indices of the buckets of this width, a multiple of theirs, that hold something; their mean durations in ns."""
        if width_ns == self.width_ns or not len(self.at):
            return self.at, self.totals / self.counts
        index = self.at // (width_ns // self.width_ns)
        first = int(index[0])
        counts = np.bincount(index - first, self.counts)
        totals = np.bincount(index - first, self.totals)
        there: Any = np.flatnonzero(counts)
        return there + first, totals[there] / counts[there]


class History:
    """The mean duration for each stretch of time. Not for two threads at once.

    When the time since the first sample no longer fits, either two neighbouring buckets become one, again and again, or
    the oldest are let go.
    """

    def __init__(self, *, rolling: bool, width_ns: int = WIDTH_NS) -> None:
        """Args: whether the oldest are let go; how wide a bucket is at first."""
        self.width_ns = width_ns
        self.first = 0
        """Index of the first bucket: its time divided by the width."""
        self._rolling = rolling
        self._empty = True
        self._counts: NDArray[np.int64] = np.zeros(BUCKETS, np.int64)
        self._totals: NDArray[np.float64] = np.zeros(BUCKETS)

    def add(self, times: NDArray[np.int64], durations: NDArray[np.int64]) -> None:
        """Adds durations, each at a time, both in ns. A time before the first bucket counts in it, or not if it was let go."""
        if not len(times):
            return
        if len(times) <= _FEW:
            for time, duration in sorted(zip(times.tolist(), durations.tolist(), strict=True)):
                self.add_one(time, duration)
            return
        if self._empty:
            self.first, self._empty = int(times.min()) // self.width_ns, False
        latest = int(times.max())
        if self._rolling:
            self._shift(latest // self.width_ns - self.first - (BUCKETS - 1))
        while latest // self.width_ns - self.first >= BUCKETS:
            self._widen()
        at = times // self.width_ns - self.first
        if self._rolling:
            durations, at = durations[at >= 0], at[at >= 0]
        at = np.maximum(at, 0)
        np.add.at(self._counts, at, 1)
        np.add.at(self._totals, at, durations)

    def add_one(self, time: int, duration: int) -> None:
        """Adds one duration."""
        if self._empty:
            self.first, self._empty = time // self.width_ns, False
        if self._rolling:
            self._shift(time // self.width_ns - self.first - (BUCKETS - 1))
        while time // self.width_ns - self.first >= BUCKETS:
            self._widen()
        at = time // self.width_ns - self.first
        if at >= 0 or not self._rolling:
            self._counts[max(at, 0)] += 1
            self._totals[max(at, 0)] += duration

    def sums(self) -> Sums:
        """Copies the buckets that are in use."""
        used: NDArray[np.int64] = np.flatnonzero(self._counts)
        return Sums(self.width_ns, used + self.first, self._counts[used], self._totals[used])

    def _shift(self, by: int) -> None:
        if by <= 0:
            return
        for values in (self._counts, self._totals):
            newest = values[by:].copy()
            values[: len(newest)] = newest
            values[len(newest) :] = 0
        self.first += by

    def _widen(self) -> None:
        at = (np.arange(BUCKETS) + self.first) // 2 - self.first // 2
        for values in (self._counts, self._totals):
            merged = np.bincount(at, values, minlength=BUCKETS)
            values[:] = merged[:BUCKETS]
        self.first //= 2
        self.width_ns *= 2
