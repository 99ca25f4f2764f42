"""Kineto's events as blocks of ours, and its pairs of process and thread, or device and stream, as tracks."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.backends.torch.kineto.file import KinetoEvent, arguments
from stepscope.runtime import _core
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.clock import ClockMapping
from stepscope.runtime.events.record import EVENT_DTYPE, NO_STEP, Block, Kind
from stepscope.runtime.events.tracks import TrackKind


class KinetoTracks:
    """Remembers the tracks of one backend, so that a thread or stream has one row over all windows.

    Some versions of kineto describe rows after their events: an event has the place of its row until a file was read.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int | str, int | str], int] = {}
        self._made: list[int] = []
        self._names: dict[tuple[int | str, int | str], str] = {}
        self._labels: dict[int | str, str] = {}
        self._programs: dict[int | str, str] = {}
        self._next = 1
        self._threads: dict[tuple[int, int], int] = {}
        self._processes: dict[int, int] = {}

    def describe(self, event: KinetoEvent) -> None:
        """Reads a metadata event."""
        if event.name == "thread_name":
            self._names[event.pid, event.tid] = str(arguments(event).get("name", "")).strip()
        elif event.name == "process_name":
            self._programs[event.pid] = str(arguments(event).get("name", ""))
        elif event.name == "process_labels":
            self._labels[event.pid] = str(arguments(event).get("labels", ""))

    def of(self, pid: int | str, tid: int | str) -> int:
        """The place of this pair's track in `rows`."""
        return self._places.setdefault((pid, tid), len(self._places))

    def rows(self) -> NDArray[np.uint32]:
        """Tracks by their place, now that all was described; the same ones at each call."""
        for pid, tid in list(self._places)[len(self._made) :]:
            self._made.append(self._make(pid, tid))
        return np.array(self._made, np.uint32)

    def of_device(self, rows: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Whether each track is a stream of a device."""
        return np.isin(rows, [row for row in np.unique(rows).tolist() if _is_stream(row)])

    def _make(self, pid: int | str, tid: int | str) -> int:
        """The recorder's own track if it is a thread that it knows. `tid` may be a text for rows that are no threads; they get a row by that name."""
        name = self._names.get((pid, tid), "")
        number = tid if isinstance(tid, int) else 0
        if isinstance(pid, str):
            return tracks.new(TrackKind.THREAD, 0, number, name or str(tid))
        if pid != os.getpid() and self._labels.get(pid, "").startswith("GPU"):
            return tracks.new(TrackKind.STREAM, pid, number, name or f"stream {tid}", self._process(pid))
        self._learn()
        thread = self._threads.get((pid, number)) if isinstance(tid, int) else None
        return thread or tracks.new(TrackKind.THREAD, pid, number, name or f"thread {tid}", self._process(pid))

    def _process(self, pid: int) -> int:
        self._learn()
        if pid not in self._processes:
            self._processes[pid] = tracks.new(TrackKind.PROCESS, pid, 0, self._process_name(pid))
        return self._processes[pid]

    def _process_name(self, pid: int | str) -> str:
        label = self._labels.get(pid, "CPU")
        name = self._programs.get(pid) if label == "CPU" else label
        return name or f"process {pid}"

    def _learn(self) -> None:
        for track in tracks.living(self._next):
            self._next = track.id + 1
            if track.pid != os.getpid():
                continue  # another backend's device
            if track.kind is TrackKind.THREAD:
                self._threads[track.pid, track.tid] = track.id
            elif track.kind is TrackKind.PROCESS:
                self._processes[track.pid] = track.id


class SavedTracks(KinetoTracks):
    """Rows of a trace that was read."""

    def __init__(self) -> None:
        super().__init__()
        self._parents: dict[int | str, int] = {}

    def is_device(self, pid: int | str) -> bool:
        """True if this is no process, but a device."""
        return self._labels.get(pid, "").startswith("GPU")

    @property
    def process(self) -> int:
        """Number of the process that was recorded; 0 if nothing says it."""
        return next((pid for pid, label in self._labels.items() if label == "CPU" and isinstance(pid, int)), 0)

    def _make(self, pid: int | str, tid: int | str) -> int:
        process, thread = (number if isinstance(number, int) and abs(number) < 1 << 63 else 0 for number in (pid, tid))
        device = self.is_device(pid)
        if pid not in self._parents:
            self._parents[pid] = tracks.read(TrackKind.PROCESS, process, 0, self._process_name(pid))
        name = self._names.get((pid, tid)) or f"{'stream' if device else 'thread'} {tid}"
        kind = TrackKind.STREAM if device else TrackKind.THREAD
        return tracks.read(kind, process, thread, name, self._parents[pid])


def _is_stream(row: int) -> bool:
    track = tracks.get(row)
    return track is not None and track.kind is TrackKind.STREAM


_FLOWS = {"s": Kind.FLOW_START, "t": Kind.FLOW_STEP, "f": Kind.FLOW_END}
_STEPS = ("user_annotation", "gpu_user_annotation")

_span_ids = count(1 << 62)
_traces = count(1)

_SPAN = struct.Struct("<qqqQQIIIIiHBB")
_VALUE = struct.Struct("<qqdQQIIIIiHBB")
"""The record of an event (`EVENT_DTYPE`), whose third field is a span's self time or else a value."""
assert _SPAN.size == _VALUE.size == EVENT_DTYPE.itemsize


class KinetoConverter:
    """Converts the events of one trace, in slices."""

    def __init__(
        self,
        tracks: KinetoTracks,
        base_ns: int,
        clock: ClockMapping,
        flops: Mapping[int, int],
        left_out: frozenset[tuple[int, str]] = frozenset(),
    ) -> None:
        """
        Args:
            tracks: where events are drawn; kept from one trace to the next.
            base_ns: what the events' times count from, in ns of kineto's clock.
            clock: maps kineto's clock to ours.
            flops: floating-point operations by `External id`, for operators that have them.
            left_out: threads, by the system's numbers, and categories of events that are left out of theirs.
        """
        self._tracks = tracks
        self._base_ns = base_ns
        self._clock = clock
        self._flops = flops
        self._left_out = left_out
        self._trace = next(_traces) << 32
        self.unknown = 0
        """Events of a kind that is not known."""

    def convert(self, events: list[KinetoEvent]) -> tuple[Block, bytes]:
        """Returns the events as a block with its heap of arguments. Tracks are places in `tracks.rows()` until all was read; parents
        and self times are missing still."""
        records, heap = bytearray(), bytearray()
        for event in events:
            if event.ph == "M":
                self._tracks.describe(event)
            elif not isinstance(event.pid, str) and event.cat != "Trace":  # those are kineto's notes on itself
                self._convert(event, records, heap)
        block: Any = np.frombuffer(records, EVENT_DTYPE)
        theirs: Any = block["ts"] + (self._base_ns - self._clock.theirs_ns)
        block["ts"] = self._clock.ours_ns + theirs + np.rint(theirs * (self._clock.rate - 1.0)).astype(np.int64)
        return block, bytes(heap)

    def _convert(self, event: KinetoEvent, records: bytearray, heap: bytearray) -> None:
        kind, value, number = Kind.SPAN, 0.0, 0
        args = arguments(event)
        if event.ph == "X":
            if event.name.startswith("ProfilerStep#") and event.cat in _STEPS:
                return  # our own steps are marked by the runtime
            if self._left_out and (event.tid, event.cat) in self._left_out:
                return
            number = next(_span_ids)
            if self._flops and (flops := self._flops.get(args.get("External id", 0))):
                args["FLOPs"] = flops
        elif event.ph in _FLOWS:
            kind, number = _FLOWS[event.ph], self._trace | int(event.id)
        elif event.ph == "i":
            kind = Kind.INSTANT
            if event.name == "[memory]":
                kind, value, number = Kind.MEMORY, args.get("Total Allocated", 0), args.get("Addr", 0)
        elif event.ph == "C":
            self._counters(event, args, records)
            return
        else:
            self.unknown += 1
            return
        encoded = _core.encode_arguments(args) if args else b""
        self._record(records, event, kind, event.name, value, number, len(heap), len(encoded))
        heap += encoded

    def _counters(self, event: KinetoEvent, args: dict[str, Any], records: bytearray) -> None:
        for series, value in args.items():
            if isinstance(value, int | float):
                name = f"{event.name} {series}" if len(args) > 1 else event.name
                self._record(records, event, Kind.COUNTER, name, value, 0, 0, 0)

    def _record(
        self,
        records: bytearray,
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
        track, name_id = self._tracks.of(event.pid, event.tid), strings.intern(name)
        category = strings.category(event.cat)
        if kind is Kind.SPAN:
            records += _SPAN.pack(ts, dur, dur, number, 0, at, length, name_id, track, NO_STEP, category, Kind.SPAN, 0)
        else:
            records += _VALUE.pack(ts, dur, value, number, 0, at, length, name_id, track, NO_STEP, category, kind, 0)


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

    Each span points at the one before it. A span that does not enclose it is passed over, to the one that it points at: all that
    lie between end earlier still, so none of them encloses it either. The distances double each round.
    """
    up = np.arange(-1, len(end) - 1)
    up[track[up] != track] = -1
    pending = np.flatnonzero(up >= 0)
    while len(pending):
        candidate = up[pending]
        short = end[candidate] < end[pending]
        pending = pending[short]
        up[pending] = up[candidate[short]]
        pending = pending[up[pending] >= 0]
    return up
