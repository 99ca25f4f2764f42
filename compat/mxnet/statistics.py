"""Running statistics of a run: an exporter that adds up what `dumps` shows.

Durations are added up by the runtime's aggregates. Those have no quantiles, standard deviation and mean over time of counters,
whose values may be of any sign and scale, so these are added up here.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepscope.compat.mxnet.memory import DEVICE_STORAGE
from stepscope.compat.mxnet.objects.durations import FRAME, FRAMES
from stepscope.compat.mxnet.tables import Row, Section
from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.runtime import _core
from stepscope.runtime.display.text_table import human_number, human_time
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Flag, Kind, join_blocks
from stepscope.runtime.settings.documented import Documented
from stepscope.runtime.threads import locks

EXACT = 4096
"""Number of different values that are counted exactly; with more, they are rounded to one part in 256."""
MOST_PASSES = 10_000
"""Passes of a frame that are listed; earlier ones are in its statistics only."""


class Values:
    """Count, total, mean, standard deviation, minimum and maximum (Chan et al. 1979, "Updating formulae"), and quantiles.

    Quantiles are exact up to `EXACT` different values, else off by one part in 512 at most.
    """

    __slots__ = ("_counts", "_rounds", "count", "m2", "max", "mean", "min", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.mean = 0.0
        self.m2 = 0.0
        """Sum of the squared distances from the mean."""
        self.min = math.inf
        self.max = -math.inf
        self._counts: Counter[float] = Counter()
        self._rounds = False

    def add(self, values: NDArray[np.float64]) -> None:
        """Adds finite values, of which there is at least one."""
        count, mean = len(values), float(values.mean())
        apart = mean - self.mean
        both = self.count + count
        self.m2 += float(np.square(values - mean).sum()) + apart * apart * self.count * count / both
        self.mean += apart * count / both
        self.count = both
        self.total += float(values.sum())
        self.min = min(self.min, float(values.min()))
        self.max = max(self.max, float(values.max()))
        self._counts.update((_rounded(values) if self._rounds else values).tolist())
        if len(self._counts) > EXACT and not self._rounds:
            self._rounds = True
            before, self._counts = self._counts, Counter()
            for value, rounded in zip(before, _rounded(np.array(list(before))).tolist(), strict=True):
                self._counts[rounded] += before[value]

    @property
    def std(self) -> float:
        """The standard deviation of the values themselves, not an estimate for a population."""
        return math.sqrt(self.m2 / self.count) if self.count else math.nan

    def numbers(self) -> tuple[float, ...]:
        """Total, minimum, maximum, mean, standard deviation, and the quantiles of 50, 95 and 99 percent."""
        return self.total, self.min, self.max, self.mean, self.std, *self.quantiles(0.50, 0.95, 0.99)

    def quantiles(self, *shares: float) -> tuple[float, ...]:
        """The value of the nearest rank for each share, `nan` without values."""
        if not self.count:
            return (math.nan,) * len(shares)
        values = sorted(self._counts)
        upto: Any = np.cumsum([self._counts[value] for value in values])
        ranks = [max(math.ceil(share * self.count), 1) for share in shares]
        return tuple(min(max(values[int(np.searchsorted(upto, rank))], self.min), self.max) for rank in ranks)


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    mantissa, exponent = np.frexp(values)
    rounded: NDArray[np.float64] = np.ldexp(np.round(mantissa * 512) / 512, exponent)
    return rounded


class FramePass(Documented, frozen=True, gc=False):
    """One pass of a frame."""

    number: int
    """Number from 0, in the order in which passes began."""
    start_ns: int
    """Begin, in ns of the monotonic clock."""
    duration_ns: int
    """Duration."""
    rate: float
    """Passes per second: the inverse of the time since the one before began; `nan` for the first."""

    def __str__(self) -> str:
        """A text such as `pass 5: 5.24ms, 79.93 passes per second`; the first pass has no rate."""
        rate = "" if math.isnan(self.rate) else f", {human_number(self.rate)} passes per second"
        return f"pass {self.number}: {human_time(self.duration_ns)}{rate}"


class SpanSeries:
    """The passes of one frame."""

    def __init__(self) -> None:
        self.passes: deque[tuple[int, int, int]] = deque(maxlen=MOST_PASSES)
        """(number, start, duration)."""
        self.first_start, self.last_start = 0, 0
        self.numbered = 0

    def add_passes(self, passes: list[tuple[int, int, int]]) -> None:
        """Adds passes, in the order in which they ended."""
        for one in passes:
            start = one[1]
            self.first_start = min(self.first_start, start) if self.numbered else start
            self.last_start = max(self.last_start, start)
            self.numbered += 1
        self.passes.extend(passes)

    @property
    def rate(self) -> float:
        """Passes per second from the begin of the first to that of the last; `nan` for fewer than two."""
        seconds = (self.last_start - self.first_start) / 1e9
        return (self.numbered - 1) / seconds if self.numbered > 1 and seconds > 0 else math.nan

    def listed(self) -> tuple[FramePass, ...]:
        """The passes, in order."""
        ordered = sorted(self.passes, key=lambda one: one[1])
        before = [None, *(start for _, start, _ in ordered)]
        return tuple(
            FramePass(number, start, took, math.nan if last is None or start <= last else 1e9 / (start - last))
            for (number, start, took), last in zip(ordered, before, strict=False)
        )


class CounterSeries:
    """Values of one counter, and their mean over the time for which each held."""

    def __init__(self) -> None:
        self.values = Values()
        self.last = math.nan
        self._at = 0
        self._area = 0.0
        self._seconds = 0.0

    def add(self, times: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Adds finite values and their times in ns, in any order."""
        self.values.add(values)
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
        if self.values.count > len(values):  # what came late is taken to have come at the time of the latest
            times = np.maximum(np.concatenate([[self._at], times]), self._at)
            values = np.concatenate([[self.last], values])
        seconds = np.diff(times) / 1e9
        self._area += float((values[:-1] * seconds).sum())
        self._seconds += float(seconds.sum())
        self._at, self.last = int(times[-1]), float(values[-1])

    @property
    def weighted(self) -> float:
        """The mean over the time from the first value to the last; the plain mean where no time passed."""
        return self._area / self._seconds if self._seconds > 0 else self.values.mean


Key: TypeAlias = tuple[int, int]
"""Ids of category and name."""

MAX_NAMES = 32_768
"""Names of one kind that have a row: the aggregates have room for two kinds. Events of others are counted in `left_out`."""

_ORDER = {section: at for at, section in enumerate(Section)}


class Statistics:
    """Keeps counts, sums, spread and quantiles per category and name, of any number of events. Any thread may read."""

    name = "mxnet statistics"

    def __init__(self) -> None:
        self._lock = locks.reentrant()
        self.left_out = 0
        """Events beyond `MAX_NAMES` names."""
        self._clear()

    def _clear(self) -> None:
        self._names: dict[Kind, set[Key]] = {Kind.SPAN: set(), Kind.COUNTER: set(), Kind.INSTANT: set()}
        self._table = _core.Aggregates()
        """Spans and instants."""
        self._frames: dict[Key, SpanSeries] = {}
        self._counters: dict[Key, CounterSeries] = {}

    async def open(self, run: Run) -> None:
        pass

    async def export(self, batch: EventBatch) -> None:
        self.add(batch.events, batch.args)

    async def close_window(self, window: Window) -> None:
        pass

    async def aclose(self) -> None:
        pass

    def reset(self) -> None:
        """Clears the statistics."""
        with self._lock:
            self._clear()

    def add(self, events: Block, args: bytes) -> None:
        """Adds the spans, counters and instants of a block, whose arguments are in a heap; steps are no spans of the program."""
        kinds: Any = events["kind"]
        spans = _whole(events[(kinds == Kind.SPAN) & (events["flags"] & int(Flag.NUMBERED) == 0)])
        counters = events[(kinds == Kind.COUNTER) & np.isfinite(events["value"])]
        instants = events[kinds == Kind.INSTANT]
        with self._lock:
            for key, block in self._with_room(Kind.SPAN, spans):
                self._table.update(block)
                if strings.text(key[0]).endswith(FRAMES):
                    self._frames.setdefault(key, SpanSeries()).add_passes(list(_passes(block, args)))
            for key, block in self._with_room(Kind.COUNTER, counters):
                self._counters.setdefault(key, CounterSeries()).add(block["ts"], block["value"])
            for _, block in self._with_room(Kind.INSTANT, instants):
                self._table.update(block)

    def _with_room(self, kind: Kind, events: Block) -> Iterator[tuple[Key, Block]]:
        """The events of each category and name for which there is room."""
        names = self._names[kind]
        for key, block in _by_key(events):
            if len(names) < MAX_NAMES:
                names.add(key)
            if key in names:
                yield key, block
            else:
                self.left_out += len(block)

    def passes(self, category: str, name: str) -> tuple[FramePass, ...]:
        """The passes of a frame that are kept."""
        key = strings.category(category), strings.intern(name)
        with self._lock:
            return self._frames[key].listed() if key in self._frames else ()

    def rows(self) -> list[Row]:
        """The current statistics, by category and name."""
        with self._lock:
            rates = {key: series.rate for key, series in self._frames.items()}
            found = [_counter_row(key, series) for key, series in self._counters.items()]
            spans, instants = self._table.rows(), self._table.instant_rows()
        for name, category, count, total, _, low, high, p50, p95, p99, std in spans:
            key = category, name
            times = total, low, high, total / count, std, p50, p95, p99
            found.append(Row.of(Section.TIME, _texts(key), count, *times, rate=rates.get(key, math.nan)))
        found += [Row.of(Section.MARKER, _texts((category, name)), count) for name, category, count in instants]
        return sorted(found, key=lambda row: (row.category, _ORDER[row.section], row.name))


def _passes(frames: Block, args: bytes) -> Iterator[tuple[int, int, int]]:
    """(number, start, duration) of the frames that have a number."""
    for frame in frames[(frames["flags"] & int(Flag.ARG_INLINE)) == 0]:
        number = _core.decode_arguments(args, int(frame["args_at"]), int(frame["args_len"])).get(FRAME)
        if isinstance(number, int):
            yield number, int(frame["ts"]), int(frame["dur"])


def _texts(key: Key) -> tuple[str, str]:
    return strings.text(key[0]), strings.text(key[1])


def _counter_row(key: Key, series: CounterSeries) -> Row:
    names = _texts(key)
    section = Section.MEMORY if names[0] == DEVICE_STORAGE else Section.COUNTER
    return Row.of(section, names, series.values.count, *series.values.numbers(), series.last, series.weighted)


def _whole(spans: Block) -> Block:
    """The spans, with the parts joined into which a pause has cut one: one pass, with the recorded time."""
    cut = spans["flags"] & int(Flag.CLIPPED) != 0
    if not cut.any():
        return spans
    parts = spans[cut]
    parts = parts[np.lexsort((parts["ts"], parts["id"]))]
    firsts = np.flatnonzero(np.concatenate([[True], parts["id"][1:] != parts["id"][:-1]]))
    joined = parts[firsts]
    joined["dur"] = np.add.reduceat(parts["dur"], firsts)
    return join_blocks([spans[~cut], joined])


def _by_key(events: Block) -> Iterator[tuple[Key, Block]]:
    """The events of each category and name, in the order in which they are in the block."""
    if not len(events):
        return
    keys: Any = events["category"].astype(np.int64) << 32 | events["name"]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])).tolist()
    for start, end in zip(starts, [*starts[1:], len(keys)], strict=True):
        key = int(keys[start])
        yield (key >> 32, key & 0xFFFFFFFF), events[order[start:end]]
