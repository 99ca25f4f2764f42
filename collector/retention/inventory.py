"""The segments of all streams, and what they contain: each is read once, when it is not written any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from stepscope.collector.files.disk_use import SegmentFile, is_silent
from stepscope.collector.retention.segment import Segment, SegmentWindow
from stepscope.collector.runs.job import job_of
from stepscope.exporters.stream.shipper import has_end
from stepscope.runtime.journal.records import RunRecord

Isolated = Callable[[str, Callable[[], object]], object]
"""Does what may fail for one stream."""


class StoredStream(msgspec.Struct, frozen=True):
    """A stream on the disk."""

    id: str
    journal: Path
    segments: list[Segment]
    """Those that are not written any more, in their order."""
    over: bool
    """Whether nothing more is expected. If not, another segment follows, which is left alone."""

    @property
    def run(self) -> RunRecord | None:
        """`None` if no segment says whose it is."""
        return next((one.run for one in self.segments if one.run is not None), None)

    @property
    def job(self) -> str:
        """Empty if it is unknown."""
        return "" if self.run is None else job_of(self.run)

    @property
    def rank(self) -> int | None:
        """Of its process."""
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
            isolated: for what is done with one stream.
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
