"""Contents of a segment, from its index, or without one from the headers of its frames."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepscope.collector.runs.evicted import MAX_COUNT, Evicted
from stepscope.collector.runs.places import Mark, Steps
from stepscope.collector.runs.windows import StreamWindows, closed_record
from stepscope.runtime.journal.format import FrameType, decode_events_header
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.index import ROW, WindowRow, index_records
from stepscope.runtime.journal.records import RunRecord, decode_record

MAX_WINDOWS = 1000
"""Windows of a segment that are told apart. If there are more: those with most events; and of those that ended in it one half
are the newest and one half the slowest."""


class SegmentWindow(msgspec.Struct, frozen=True, gc=False):
    """A window that ended in a segment, or goes on after it."""

    index: int
    end_ns: int | None = None
    """Unix time; `None` if it goes on."""
    step_ns: float = 0.0
    """Mean duration of its steps."""
    steps: Steps | None = None

    @property
    def mark(self) -> Mark:
        """Identifies the window among those of the job."""
        return self.index, self.steps


class SegmentContents(msgspec.Struct, frozen=True):
    """Contents of a segment. Its times are no later than its last change, as the clock of a rank may be wrong."""

    run: RunRecord | None
    counts: Evicted
    """The line that is written to the file `evicted` when it is evicted."""
    closed: list[SegmentWindow]
    open: list[SegmentWindow]
    """Those that go on after it."""
    last_ns: int
    """Unix time of its last event or end of a window; of its last change, if there is none."""

    @classmethod
    def of(cls, path: Path, size: int, changed_ns: int, earlier: Sequence[Evicted]) -> SegmentContents:
        """Reads a segment that is not written any more.

        Args:
            path: of the segment.
            size: bytes of the file.
            changed_ns: Unix time of its last change.
            earlier: what the earlier segments of the stream contain or contained. An index counts all events of a window.

        Raises:
            OSError: if it cannot be read.
            FormatError: if it is no journal.
        """
        reader = FrameReader(path, follow=False)
        try:
            return _Reading(reader, size, changed_ns).contents(earlier)
        finally:
            reader.close()


class _Reading:
    """One reading of a segment."""

    def __init__(self, reader: FrameReader, size: int, changed_ns: int) -> None:
        """Args: a reader of this segment, or of all from this one on; see `SegmentContents.of`."""
        self._reader, self._changed_ns = reader, changed_ns
        self._segment = reader.files.at(reader.files.begin)
        self._begin = self._segment.begin
        self._end = max(self._begin + size - self._segment.header_bytes, self._begin)
        self._run: RunRecord | None = None
        self._events = Counter[int]()
        self._open = set[int]()
        self._closed: list[SegmentWindow] = []
        self._last: list[int] = []
        """Latest time so far, if any."""

    def contents(self, earlier: Sequence[Evicted]) -> SegmentContents:
        reader, first = self._reader, self._reader.position[0]
        frame = reader.peek()
        self._run = decode_record(frame[0], frame[2]) if frame is not None and frame[0] == FrameType.RUN else None
        found = self._read_index(earlier)
        next, windows, dropped = self._scan() if found is None else found
        # Of windows that go on in the next segment it must be known how many events are here.
        events = heapq.nlargest(MAX_WINDOWS, self._events.items(), key=lambda item: (item[0] in self._open, item[1]))
        counts = Evicted(
            segment=self._segment.number,
            first=first,
            frames=(next - first) & 0xFFFFFFFF,
            nbytes=self._end - self._begin,
            events=dict(events),
            others=min(self._events.total() - sum(count for _, count in events), MAX_COUNT),
            windows=windows,
            dropped=min(dropped, MAX_COUNT),
        )
        closed = self._closed
        if len(closed) > MAX_WINDOWS:
            newest = heapq.nlargest(MAX_WINDOWS // 2, closed, key=lambda window: window.end_ns or 0)
            slowest = heapq.nlargest(MAX_WINDOWS // 2, closed, key=lambda window: window.step_ns)
            closed = list({window.index: window for window in (*newest, *slowest)}.values())
        open = [SegmentWindow(window) for window in heapq.nlargest(MAX_WINDOWS, self._open)]
        return SegmentContents(self._run, counts, closed, open, max(self._last, default=self._changed_ns))

    def _read_index(self, earlier: Sequence[Evicted]) -> tuple[int, int, int] | None:
        """Adds what the index says; returns the number of the frame after the last one, how many windows were closed, and how many
        events they lost. `None` if there is no index of the whole segment."""
        found = [(at, index) for at, index in index_records(self._reader) if at < self._end]
        last = self._reader.frame_at(found[-1][0]) if found else None
        if last is not None and last[2] < self._end:
            last = self._reader.frame_at(last[2])
            last = None if last is None or last[0][0] != FrameType.END else last
        if self._run is None or last is None or last[2] != self._end:
            return None
        windows = dropped = 0
        for _, index in found:
            for values in ROW.iter_unpack(index.rows[: len(index.rows) // ROW.size * ROW.size]):
                row = WindowRow(*values)
                self._count(row.window, row.events, row.end_ns, earlier if row.begin < self._begin else ())
                steps = (row.first_step, row.last_step) if row.steps > 0 else None
                self._close(row.window, row.start_ns, row.end_ns, row.steps, steps)
                windows += 1
                dropped += max(row.dropped, 0)
        for one in found[-1][1].open:
            self._open.add(one.window)
            before = earlier if one.begin < self._begin else ()
            self._count(one.window, sum(one.events.values()), one.last_ns, before)
        return last[1] + 1, windows, dropped

    def _scan(self) -> tuple[int, int, int]:
        """The same by the headers of all frames; of events nothing else is read."""
        windows = StreamWindows()

        def skipped(beginning: bytes) -> bool:
            found = decode_events_header(beginning)
            if found is not None:
                self._open.add(found[0].window)
                self._count(found[0].window, found[0].count, found[0].last_ns)
            return True

        while self._reader.position[1] < self._end and (frame := self._reader.next(skipped)) is not None:
            kind, _, payload = frame
            if kind == FrameType.RUN and self._run is None:
                self._run = decode_record(kind, payload)
            elif kind == FrameType.WINDOW_CLOSED:
                try:
                    windows.closed(payload)
                    record = closed_record(payload)
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    continue  # the readers of the stream count it as damage
                self._open.discard(record.index)
                self._close(record.index, record.start_ns, record.end_ns, len(record.numbers), record.range)
        return self._reader.position[0], windows.count, windows.dropped.total()

    def _count(self, window: int, events: int, last_ns: int, earlier: Sequence[Evicted] = ()) -> None:
        here = events - sum(one.events.get(window, 0) for one in earlier)
        if here > 0:
            self._events[window] += min(here, MAX_COUNT)
            self._time(last_ns)

    def _close(self, index: int, start_ns: int, end_ns: int, count: int, steps: Steps | None) -> None:
        self._closed.append(SegmentWindow(index, self._time(end_ns), (end_ns - start_ns) / max(count, 1), steps))

    def _time(self, time_ns: int) -> int:
        """Unix time of a time of the rank's clock."""
        unix = self._changed_ns if self._run is None else min(self._run.anchor.wall(time_ns), self._changed_ns)
        self._last = [max([unix, *self._last])]
        return unix
