"""The segments of all streams, and their windows: each is read once, when it is not written any more."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from stepscope.collector.files.disk import SegmentFile, is_silent
from stepscope.collector.runs.evicted import Evicted
from stepscope.collector.runs.job import job_of
from stepscope.collector.runs.recording import run_in
from stepscope.collector.runs.windows import Mark, Steps
from stepscope.exporters.stream.shipper import has_end
from stepscope.runtime.journal.format import decode_events_header
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.index import WindowRow, read_index, scan
from stepscope.runtime.journal.records import RunRecord

Isolated = Callable[[str, Callable[[], object]], object]
"""Runs a function whose failure costs one stream only."""

MAX_WINDOWS = 1000
"""Windows of a segment that are listed one by one: if more ended in it, half of them are the newest and half the slowest."""


class StoredStream(msgspec.Struct, frozen=True):
    """A stream on the disk."""

    id: str
    journal: Path
    segments: list[Segment]
    """Segments that are complete, in their order."""
    over: bool
    """Whether nothing more is expected. If not, another segment follows, which is not in `segments`."""

    @property
    def run(self) -> RunRecord | None:
        """The run record; `None` if no segment has one."""
        return next((one.run for one in self.segments if one.run is not None), None)

    @property
    def job(self) -> str:
        """Name of the job; empty if it is unknown."""
        return "" if self.run is None else job_of(self.run)

    @property
    def rank(self) -> int | None:
        """Rank of its process."""
        return None if self.run is None else self.run.rank

    @property
    def begin_ns(self) -> int:
        """Unix time at which its process began."""
        return 0 if self.run is None else min(self.run.anchor.wall_ns, self.segments[0].file.about.st_mtime_ns)

    def windows(self) -> Iterator[SegmentWindow]:
        """The windows that ended in each segment, and those that went on after it."""
        for segment in self.segments:
            yield from segment.windows


class Inventory:
    """Remembers what segments contain. Calls block on the disk."""

    def __init__(self) -> None:
        self._segments: dict[str, dict[int, Segment]] = {}

    def look(
        self, files: Mapping[str, Sequence[SegmentFile]], connected: Callable[[str], bool], isolated: Isolated
    ) -> list[StoredStream]:
        """All streams that can be read.

        Args:
            files: the segments of each stream, in their order; at least one.
            connected: whether a connection writes to a stream.
        """
        self._segments = {stream: segments for stream, segments in self._segments.items() if stream in files}
        found: list[StoredStream] = []
        for stream, its in files.items():
            isolated(stream, lambda: found.append(self._stream(stream, its, connected(stream))))  # noqa: B023
        return found

    def _stream(self, id: str, files: Sequence[SegmentFile], connected: bool) -> StoredStream:
        before, last = self._segments.get(id, {}), files[-1]
        silent = is_silent(last.about.st_mtime_ns)
        same = last.number in before and before[last.number].is_of(last)
        over = not connected and (same or silent or has_end(last.path))
        journal = last.path.with_name("journal")
        segments: list[Segment] = []
        for file in files if over else files[:-1]:
            segment = before.get(file.number)
            segments.append(segment if segment is not None and segment.is_of(file) else Segment.read(file))
        self._segments[id] = {one.file.number: one for one in segments}
        return StoredStream(id, journal, segments, over)


class SegmentWindow(msgspec.Struct, frozen=True, gc=False):
    """A window that ended in a segment, or goes on after it."""

    index: int
    end_ns: int | None = None
    """Unix time; `None` if it goes on."""
    step_ns: float = 0.0
    """Mean duration of its steps."""
    steps: Steps | None = None

    @classmethod
    def of(cls, row: WindowRow) -> SegmentWindow:
        """Describes a window that ended, with times of the rank's clock."""
        steps = (row.first_step, row.last_step) if row.steps > 0 else None
        return cls(row.window, row.end_ns, (row.end_ns - row.start_ns) / max(row.steps, 1), steps)

    @property
    def mark(self) -> Mark:
        """Identifies the window among those of the job."""
        return self.index, self.steps


class Segment(msgspec.Struct, frozen=True):
    """A segment that is not written any more. Its times are no later than its last change, as the clock of a rank may be wrong."""

    file: SegmentFile
    run: RunRecord | None
    windows: list[SegmentWindow]
    """Windows that ended in the segment, and those that continue after it."""
    first_window: int
    """The lowest number of a window, also of those that are not listed."""
    last_window: int
    """The highest number of a window."""
    last_ns: int
    """Unix time of its last event or end of a window; of its last change, if there is none."""

    @classmethod
    def read(cls, file: SegmentFile) -> Segment:
        """Reads a segment. Raises `OSError` if it cannot be read, and `FormatError` if it is no journal."""
        changed_ns = file.about.st_mtime_ns
        reader = FrameReader(file.path, follow=False, alone=True)
        try:
            run = run_in(reader)
            index = read_index(reader) or scan(reader)
        finally:
            reader.close()

        closed = [SegmentWindow.of(row) for row in index.windows()]
        open = {number: window.last_ns for number, window in index.builder.open.items()}

        def unix(at: int) -> int:
            return changed_ns if run is None else min(run.anchor.wall(at), changed_ns)

        numbers = [*(one.index for one in closed), *open]
        times = [*(one.end_ns or 0 for one in closed), *open.values()]
        if len(closed) > MAX_WINDOWS:
            newest = heapq.nlargest(MAX_WINDOWS // 2, closed, key=lambda window: window.end_ns or 0)
            slowest = heapq.nlargest(MAX_WINDOWS // 2, closed, key=lambda window: window.step_ns)
            closed = list({window.index: window for window in (*newest, *slowest)}.values())
        windows = [msgspec.structs.replace(one, end_ns=unix(one.end_ns or 0)) for one in closed]
        windows += [SegmentWindow(index) for index in heapq.nlargest(MAX_WINDOWS, open)]
        return cls(
            file=file,
            run=run,
            windows=windows,
            first_window=min(numbers, default=0),
            last_window=max(numbers, default=-1),
            last_ns=max(map(unix, times), default=changed_ns),
        )

    def is_of(self, file: SegmentFile) -> bool:
        """Whether the file is still the one that was read."""
        then, now = self.file.about, file.about
        return (then.st_ino, then.st_size, then.st_mtime_ns) == (now.st_ino, now.st_size, now.st_mtime_ns)

    def windows_among(self, among: Collection[int]) -> set[int]:
        """Filters windows: those of which the segment may have a part."""
        return {one.index for one in self.windows if one.index in among}

    def counted(self) -> Evicted:
        """Counts its content, by the headers of its frames. Raises `OSError` if it cannot be read, and `FormatError` if
        it is no journal."""
        events = 0

        def skipped(beginning: bytes) -> bool:
            nonlocal events
            found = decode_events_header(beginning)
            events += 0 if found is None else found[0].count
            return True

        reader = FrameReader(self.file.path, follow=False, alone=True)
        try:
            first, begin = reader.position
            nbytes = max(reader.files.end - begin, 0)
            while reader.next(skipped) is not None:
                pass
            return Evicted(
                segment=reader.files.at(begin).number,
                frames=reader.position[0] - first,
                nbytes=nbytes,
                events=events,
                first_window=self.first_window,
                last_window=self.last_window,
            )
        finally:
            reader.close()
