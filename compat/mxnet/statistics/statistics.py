"""Running statistics of a run: an exporter that keeps the tables of `dumps`."""

from __future__ import annotations

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

MAX_NAMES = 65_536
"""Names of one kind that are kept apart; events of further ones are counted in `left_out`."""


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
        self._spans: dict[Key, SpanSeries] = {}
        self._counters: dict[Key, CounterSeries] = {}
        self._markers: dict[Key, int] = {}

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
            for key, block in _by_key(spans):
                series = self._of(self._spans, SpanSeries, key, len(block))
                if series is not None:
                    series.durations.add(np.maximum(block["dur"], 0).astype(np.float64))
                    if strings.text(key[0]).endswith(FRAMES):
                        series.add_passes(list(_passes(block, args)))
            for key, block in _by_key(counters):
                counter = self._of(self._counters, CounterSeries, key, len(block))
                if counter is not None:
                    counter.add(block["ts"], block["value"])
            for key, block in _by_key(instants):
                if key in self._markers or len(self._markers) < MAX_NAMES:
                    self._markers[key] = self._markers.get(key, 0) + len(block)
                else:
                    self.left_out += len(block)

    def _of(self, known: dict[Key, Any], make: Any, key: Key, count: int) -> Any:
        if key not in known:
            if len(known) >= MAX_NAMES:
                self.left_out += count
                return None
            known[key] = make()
        return known[key]

    def passes(self, category: str, name: str) -> tuple[FramePass, ...]:
        """The passes of a frame that are kept."""
        key = strings.category(category), strings.intern(name)
        with self._lock:
            return self._spans[key].listed() if key in self._spans else ()

    def rows(self) -> list[Row]:
        """The statistics as they are now, by category and name."""
        with self._lock:
            found = [
                *(
                    Row.of(Section.TIME, *_texts(key), series.durations, rate=series.rate)
                    for key, series in self._spans.items()
                ),
                *(
                    Row.of(_section(key), *_texts(key), series.values, last=series.last, weighted=series.weighted)
                    for key, series in self._counters.items()
                ),
                *(
                    Row(section=Section.MARKER, category=category, name=name, count=count)
                    for (category, name), count in ((_texts(key), count) for key, count in self._markers.items())
                ),
            ]
        return sorted(found, key=lambda row: (row.category, _ORDER[row.section], row.name))


def _passes(frames: Block, args: bytes) -> Iterator[tuple[int, int, int]]:
    """(number, start, duration) of the frames that have a number."""
    for frame in frames[(frames["flags"] & int(Flag.ARG_INLINE)) == 0]:
        number = _core.decode_arguments(args, int(frame["args_at"]), int(frame["args_len"])).get(FRAME)
        if isinstance(number, int):
            yield number, int(frame["ts"]), int(frame["dur"])


def _texts(key: Key) -> tuple[str, str]:
    return strings.text(key[0]), strings.text(key[1])


def _section(key: Key) -> Section:
    return Section.MEMORY if strings.text(key[0]) == DEVICE_STORAGE else Section.COUNTER


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
