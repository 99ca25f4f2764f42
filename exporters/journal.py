"""The journal exporter: the crash-safe default output. `docs/segment-format.md` describes the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.export.exporter import Lost
from stepscope.runtime.export.run import refuse_another_run
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.journal.segments import SEGMENT_BYTES
from stepscope.runtime.journal.writer import Fsync, JournalWriter, WhenFull
from stepscope.runtime.options import Options
from stepscope.runtime.settings.arguments import file_argument, number_argument

ANCHOR_INTERVAL_NS = 1_000_000_000
"""Windows that end within this time of each other share a reading of the clocks."""


class JournalExporter:
    """Appends everything to a checksummed journal that can be read at any moment, also after `kill -9`.

    What an `export` that returned was given has reached the kernel. It writes on the thread of its own that every
    exporter has: a slow disk holds up this exporter and nothing else.

    Args:
        path: file to write; default: `journal` in the run's directory. A file that exists, another run's, is left
            alone: the name gets `-2`, `-3`, ... then, and `path` says which.
        max_bytes: limit for the size of all its files.
        fsync: when to wait for the disk, which only a loss of power makes worthwhile.
        segment_bytes: the journal goes on in `journal.1`, `journal.2`, ... after about so many bytes, at most an eighth of
            `max_bytes`, or after an hour. All commands read them as one. 0 = one file.
        when_full: at the limit, `stop` leaves out new events, with a marker and a count; `delete_oldest` deletes the oldest
            files, and counts their events as lost.

    Raises:
        TypeError: if the path or a limit is none.
        ValueError: for a limit below 64 KiB, an unknown `fsync` or `when_full`, or a path that is a directory.
    """

    name = "journal"
    is_journal = True

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int = 8 << 30,
        fsync: Fsync = "never",
        segment_bytes: int = SEGMENT_BYTES,
        when_full: WhenFull = "stop",
    ) -> None:
        self._default_name = path is None
        number_argument("max_bytes", max_bytes, whole=True, unit="bytes")
        number_argument("segment_bytes", segment_bytes, whole=True, unit="bytes")
        self.writer = JournalWriter(
            absolute("journal" if path is None else file_argument("path", path, "journal")),
            max_bytes=max_bytes,
            fsync=fsync,
            segment_bytes=segment_bytes,
            when_full=when_full,
        )
        self._run: Run | None = None
        self._metadata: dict[str, Any] = {}
        self._in_group = self._group_has_news = False
        self._anchor_ns = 0
        """End of the last window that was written with a reading of the clocks."""
        self._lost_reported = (0, 0, 0)

    @classmethod
    def of(cls, options: Options) -> JournalExporter:
        """The journal of a run with these options, in its directory."""
        return cls(max_bytes=options.journal_max_bytes, when_full=options.journal_when_full)

    @property
    def path(self) -> Path:
        """The first file written to; final after `open`."""
        return self.writer.path

    def path_of(self, window: int) -> Path | None:
        """The first file; the journal has every window."""
        return self.path

    @property
    def dropped_cap(self) -> int:
        """Events left out because of `max_bytes`."""
        return self.writer.dropped

    @property
    def written(self) -> int:
        """Events written so far."""
        return self.writer.written

    def take_lost(self) -> list[Lost]:
        """Events that are lost since the last call: in deleted files, in the oldest ones that gave way to new ones, and in a
        group that the system refused."""
        writer = self.writer
        found = (writer.deleted_by_others, writer.lost, writer.deleted_oldest)
        if found == self._lost_reported:
            return []
        deleted, errors, _ = self._lost_reported
        self._lost_reported = found
        lost = [Lost(found[0] - deleted, "deleted"), Lost(found[1] - errors, "error")]
        lost += [Lost(count, "cap", window) for window, count in writer.take_deleted_oldest().items()]
        return [each for each in lost if each.events > 0]

    def begin_group(self) -> None:
        """See `SupportsGroupedWrites`."""
        self.writer.begin_group()
        self._in_group, self._group_has_news = True, False

    async def end_group(self) -> None:
        """See `SupportsGroupedWrites`."""
        self._in_group = False
        self.writer.end_group()

    async def open(self, run: Run) -> None:
        refuse_another_run(self, self._run)
        if self._default_name:
            self.writer.path = run.output_dir / "journal"
        self.writer.open(run)
        self._run = run
        run.note_output(self.path, True)

    async def export(self, batch: EventBatch) -> None:
        self._write_news()
        self.writer.write_batch(batch)

    async def close_window(self, window: Window) -> None:
        self._write_news()
        due = window.end_ns - self._anchor_ns >= ANCHOR_INTERVAL_NS
        self._anchor_ns = window.end_ns if due else self._anchor_ns
        self.writer.write_window(window, ClockAnchor.read() if due else None)

    async def aclose(self) -> None:
        if self._run is None or not self.writer.is_open:
            return
        try:
            self.writer.write_metadata(dict(self._run.metadata()))
            self.writer.write_anchor(ClockAnchor.read())
            self.writer.write_ledger(self._run.ledger())
        finally:
            self.writer.close()
            self._run.note_output(self.path, False)

    def _write_news(self) -> None:
        """Writes the run's metadata if it has changed since the last time, once in a group: a crash may come before the window's
        end."""
        if self._run is None:
            raise ClosedError("the journal was not opened")
        if self._in_group and self._group_has_news:
            return
        metadata = dict(self._run.metadata())
        if metadata != self._metadata or (metadata and not self.writer.has_metadata):
            self.writer.write_metadata(metadata)
            self._metadata = metadata
        self._group_has_news = True
