"""Kineto's events as blocks of ours."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.backends.kineto_file import KinetoEvent
from stepscope.backends.kineto_tracks import KinetoTracks
from stepscope.runtime import _core, strings
from stepscope.runtime.clock import ClockMapping
from stepscope.runtime.events import Block, Kind, empty_block

MARKER = "stepscope.clock"
"""Name of the operators that are there to compare clocks."""

_FLOWS = {"s": Kind.FLOW_START, "t": Kind.FLOW_STEP, "f": Kind.FLOW_END}
_LEFT_OUT = ("Trace",)
_STEPS = ("user_annotation", "gpu_user_annotation")

_span_ids = count(1 << 62)
_traces = count(1)

_Row = tuple[int, int, float, int, int, int, int, int, int, int]
_ROW = np.dtype(
    {
        "names": ["ts", "dur", "value", "id", "args_at", "args_len", "name", "track", "category", "kind"],
        "formats": ["<i8", "<i8", "<f8", "<u8", "<u4", "<u4", "<u4", "<u4", "<u2", "u1"],
    }
)


class KinetoConverter:
    """Converts the events of one trace, in slices."""

    def __init__(self, tracks: KinetoTracks, base_ns: int, clock: ClockMapping, flops: Mapping[int, int]) -> None:
        """
        Args:
            tracks: where events are drawn; kept from one trace to the next.
            base_ns: what the events' times count from, in ns of kineto's clock.
            clock: maps kineto's clock to ours.
            flops: floating-point operations by `External id`, for operators that have them.
        """
        self._tracks = tracks
        self._base_ns = base_ns
        self._clock = clock
        self._flops = flops
        self._trace = next(_traces) << 32
        self.markers: list[int] = []
        """When, by our clock, the operators named `MARKER` began."""
        self.unknown = 0
        """Events of a kind that is not known."""

    def convert(self, events: list[KinetoEvent]) -> tuple[Block, bytes]:
        """Returns the events as a block with its heap of arguments; parents and self times are missing still."""
        rows: list[_Row] = []
        heap = bytearray()
        for event in events:
            self._convert(event, rows, heap)
        return self._block(rows), bytes(heap)

    def _convert(self, event: KinetoEvent, rows: list[_Row], heap: bytearray) -> None:
        kind, value, number, args = Kind.SPAN, 0.0, 0, event.args
        name = event.name
        if event.ph == "M":
            self._tracks.describe(event)
            return
        if isinstance(event.pid, str) or event.cat in _LEFT_OUT:
            return
        if event.ph == "X":
            if name == MARKER:
                self.markers.append(self._clock.to_ours(self._base_ns + round(event.ts * 1000)))
                return
            if name.startswith("ProfilerStep#") and event.cat in _STEPS:
                return  # our own steps are marked by the runtime
            number = next(_span_ids)
            if self._flops and (flops := self._flops.get(args.get("External id", 0))):
                args = {**args, "FLOPs": flops}
        elif event.ph in _FLOWS:
            kind, number = _FLOWS[event.ph], self._trace | int(event.id)
        elif event.ph == "i":
            kind = Kind.INSTANT
            if name == "[memory]":
                kind, value = Kind.MEMORY, float(args.get("Total Allocated", 0))
        elif event.ph == "C":
            self._counters(event, rows)
            return
        else:
            self.unknown += 1
            return
        encoded = _core.encode_arguments(args) if args else b""
        self._row(rows, event, kind, name, value, number, len(heap), len(encoded))
        heap += encoded

    def _counters(self, event: KinetoEvent, rows: list[_Row]) -> None:
        for series, value in event.args.items():
            if isinstance(value, int | float):
                name = f"{event.name} {series}" if len(event.args) > 1 else event.name
                self._row(rows, event, Kind.COUNTER, name, float(value), 0, 0, 0)

    def _row(
        self,
        rows: list[_Row],
        event: KinetoEvent,
        kind: Kind,
        name: str,
        value: float,
        number: int,
        at: int,
        length: int,
    ) -> None:
        # µs with three decimals, below 2^43: the nearest double is less than half a ns off, so rounding is exact.
        ts, dur = round(event.ts * 1000), round(event.dur * 1000)
        track = self._tracks.of(event.pid, event.tid)
        rows.append(
            (ts, dur, value, number, at, length, strings.intern(name), track, strings.category(event.cat), int(kind))
        )

    def _block(self, rows: list[_Row]) -> Block:
        block = empty_block(len(rows))
        source: Any = np.array(rows, _ROW)
        for field in _ROW.names or ():
            block[field] = source[field]
        spans = block["kind"] == Kind.SPAN
        theirs: Any = block["ts"] + (self._base_ns - self._clock.theirs_ns)
        block["ts"] = self._clock.ours_ns + theirs + np.rint(theirs * (self._clock.rate - 1.0)).astype(np.int64)
        block["self_dur"][spans] = block["dur"][spans]
        return block


def nest(events: Block) -> None:
    """Fills parents and self times of spans in place: a span's parent is the innermost of its track that encloses it."""
    spans = np.flatnonzero(events["kind"] == Kind.SPAN)
    ts, dur, track = (events[field][spans] for field in ("ts", "dur", "track"))
    order = np.lexsort((-dur, ts, track))
    spans, track = spans[order], track[order]
    dur = dur[order]
    end = ts[order] + dur
    parents = _parents(end, track)
    children = parents >= 0
    events["parent"][spans[children]] = events["id"][spans[parents[children]]]
    inside = np.zeros(len(spans), np.int64)
    np.add.at(inside, parents[children], dur[children])
    events["self_dur"][spans] = np.maximum(dur - inside, 0)


def _parents(end: NDArray[np.int64], track: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Index of each span's parent, -1 for none, for spans sorted by track, begin and falling length.

    Each span points at the one before it. Who does not enclose it is passed over, to whom that one points: all that
    lie between end earlier still, so none of them encloses it either. The distances double each round.
    """
    up = np.arange(-1, len(end) - 1)
    up[track[up] != track] = -1
    unsettled = np.flatnonzero(up >= 0)
    while len(unsettled):
        candidate = up[unsettled]
        short = end[candidate] < end[unsettled]
        unsettled = unsettled[short]
        up[unsettled] = up[candidate[short]]
        unsettled = unsettled[up[unsettled] >= 0]
    return up
