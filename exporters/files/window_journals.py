"""A journal for each window, for runs that keep some of their windows only."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.exporters.files.output import delete_files
from stepscope.exporters.files.rotation import PART
from stepscope.exporters.journal import JournalExporter
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.export.exporter import Lost
from stepscope.runtime.files.private_files import refuse_link
from stepscope.runtime.flight.saved import window_name
from stepscope.runtime.session.note import WINDOWS, note_nothing
from stepscope.runtime.windows.window import FLIGHT


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
        _directory(run)
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
            path = _directory(self._run) / f"{window_name(window, None)}.journal{PART}"
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


def _directory(run: Run) -> Path:
    """Where a run has its windows.

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
