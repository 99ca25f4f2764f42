"""Running statistics of a run: an exporter that has the runtime's aggregates add up what `dumps` shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from stepscope.compat.mxnet.memory.counters import DEVICE_STORAGE
from stepscope.compat.mxnet.objects.durations import FRAME, FRAMES
from stepscope.compat.mxnet.statistics.series import CounterSeries, FramePass, SpanSeries
from stepscope.compat.mxnet.statistics.tables import Row, Section
from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Flag, Kind, join_blocks
from stepscope.runtime.threads import locks

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
        """Begins anew."""
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
        """The statistics as they are now, by category and name."""
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
    """The spans, with the parts of one that a pause has cut put together: one pass, as long as it was recorded."""
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
