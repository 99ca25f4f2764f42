"""The journal exporters: the crash-safe default output, for a run or for each window. `docs/segment-format.md` describes the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.exporters.files.output import PART, delete_files
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.export.exporter import Lost
from stepscope.runtime.export.run import refuse_another_run
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.files.private_files import refuse_link
from stepscope.runtime.flight.saved import window_name
from stepscope.runtime.journal.segments import SEGMENT_BYTES
from stepscope.runtime.journal.writer import Fsync, JournalWriter, WhenFull
from stepscope.runtime.options import Options
from stepscope.runtime.session.note import WINDOWS, note_nothing
from stepscope.runtime.settings.arguments import file_argument, number_argument
from stepscope.runtime.windows.window import FLIGHT

ANCHOR_INTERVAL_NS = 1_000_000_000
"""Windows that end within this time of each other share a reading of the clocks."""


class JournalExporter:
    """Appends everything to a checksummed journal that can be read at any moment, also after `kill -9`.

    When `export` returns, its events have reached the kernel. It writes on the thread of its own that every
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


class WindowJournalsExporter:
    """Writes each window to `windows/<index>-step<n>-<reason>.journal` in the run's directory.

    A file grows under its index and gets its name when it is complete; `stepscope recover` names what a killed
    process left, which can be converted. A window that is discarded loses its file, and nothing else is touched.

    Args:
        max_bytes: size at which events are left out of a file, with a marker and a count.

    Raises:
        ValueError: for a limit below 64 KiB.
    """

    name = "journal"
    is_journal = True

    def __init__(self, *, max_bytes: int = 1 << 30) -> None:
        JournalExporter(max_bytes=max_bytes)  # refuses what a later one would refuse
        self._max_bytes = max_bytes
        self._run: Run | None = None
        self._open: dict[int, JournalExporter] = {}
        self._complete: dict[int, Path] = {}
        self._dropped = self._closed_events = 0
        self._lost: list[Lost] = []

    @property
    def written(self) -> int:
        """Events written so far, into all files."""
        return self._closed_events + sum(journal.written for journal in self._open.values())

    def take_lost(self) -> list[Lost]:
        """Events that were written and are lost since the last call, as their file was deleted."""
        for window in self._open:
            self._take_lost(window)
        lost, self._lost = self._lost, []
        return lost

    @property
    def dropped_cap(self) -> int:
        """Events left out because of `max_bytes`."""
        return self._dropped + sum(journal.dropped_cap for journal in self._open.values())

    def path_of(self, window: int) -> Path | None:
        """The file of a window that is complete; `None` if it was discarded, or never written."""
        return self._complete.get(window)

    async def open(self, run: Run) -> None:
        """Makes nothing yet: a run in which nothing fires leaves nothing.

        Raises:
            OutputError: if `windows` is a symbolic link.
        """
        _windows_directory(run)
        self._run = run

    async def export(self, batch: EventBatch) -> None:
        """Appends a batch to the journal of its window.

        Raises:
            OutputError: if the system refused, or `windows` is a symbolic link; the file keeps what was written whole.
            ClosedError: before `open` or after `aclose`.
        """
        await (await self._journal(batch.window)).export(batch)

    async def close_window(self, window: Window) -> None:
        """Completes the window's journal and gives it its name."""
        journal = await self._journal(window.index)
        try:
            await journal.close_window(window)
        finally:
            await self._finish(window.index, window_name(window.index, window.metadata.get(FLIGHT)))

    async def discard_window(self, window: int) -> None:
        """Deletes the window's file.

        Raises:
            OutputError: if the system refuses.
        """
        path = self._complete.pop(window, None)
        delete_files([] if path is None else [path])

    async def aclose(self) -> None:
        """Completes what is open.

        Raises:
            OutputError: the first one, after all journals were tried.
        """
        errors: list[OutputError] = []
        for index in list(self._open):
            try:
                await self._finish(index, window_name(index, None))
            except OutputError as error:
                errors.append(error)
        self._run = None
        if errors:
            raise errors[0]

    async def _journal(self, window: int) -> JournalExporter:
        if self._run is None:
            raise ClosedError("the journals were not opened")
        if window not in self._open:
            path = _windows_directory(self._run) / f"{window_name(window, None)}.journal{PART}"
            journal = JournalExporter(path, max_bytes=self._max_bytes, segment_bytes=0)
            # The note has the file as long as it bears this name, which is longer than the journal is open.
            self._run.note_output(path, True)
            try:
                await journal.open(msgspec.structs.replace(self._run, note_output=note_nothing))
            except BaseException:
                self._run.note_output(path, False)
                raise
            if journal.path != path:
                self._run.note_output(journal.path, True)
                self._run.note_output(path, False)
            self._open[window] = journal
        return self._open[window]

    async def _finish(self, window: int, name: str) -> None:
        assert self._run is not None
        journal = self._open[window]
        try:
            # If its end cannot be written, what was can be read, and is given no name that says it is whole.
            await journal.aclose()
            self._complete[window] = _rename(journal.path, name)
        finally:
            self._run.note_output(journal.path, False)
            self._forget(window)

    def _take_lost(self, window: int) -> None:
        self._lost += (msgspec.structs.replace(lost, window=window) for lost in self._open[window].take_lost())

    def _forget(self, window: int) -> None:
        self._take_lost(window)
        journal = self._open.pop(window)
        self._dropped += journal.dropped_cap
        self._closed_events += journal.written


def _windows_directory(run: Run) -> Path:
    """Directory of a run's windows.

    Raises:
        OutputError: if that is a symbolic link.
    """
    directory = run.output_dir / WINDOWS
    try:
        refuse_link(directory)
    except OSError as error:
        raise OutputError(error.errno, f"cannot save windows: {error.strerror}") from error
    return directory


def _rename(path: Path, name: str) -> Path:
    """Gives a file its name in one step; one of that name, an earlier run's, is left alone."""
    for number in range(1, 1000):
        target = path.with_name(f"{name}-{number}.journal" if number > 1 else f"{name}.journal")
        try:
            os.link(path, target, follow_symlinks=False)
        except FileExistsError:
            continue
        except OSError:  # a file system without links
            if target.exists():
                continue
            path.rename(target)
            return target
        path.unlink()
        return target
    return path
