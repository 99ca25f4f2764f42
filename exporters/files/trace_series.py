"""Trace files of any format: one for the run or one for each window, and further ones where they grow too large."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import msgspec

from stepscope.exporters.files.output import check_directory, delete_files, fill, numbered
from stepscope.exporters.files.trace_file import TraceFile, about_run, about_window
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.events.record import Block, EventBatch
from stepscope.runtime.export.exporter import Lost
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.session.note import TraceNote
from stepscope.runtime.settings.arguments import file_argument, number_argument, switch_argument
from stepscope.runtime.windows.window import Window

OnFull: TypeAlias = Literal["rotate", "stop"]
"""Behaviour at the size limit: the next file is begun, or events are dropped and counted."""

CANCEL_TIMEOUT_S = 0.5
"""Seconds that a cancelled `aclose` still takes to complete what it can."""

SMALLEST = 65_536
"""Smallest size limit in bytes: room for the head, the end and some events."""


Create: TypeAlias = Callable[[Path, TraceNote], Awaitable[TraceFile]]
"""Creates a file and writes its head; the note says how it is written anew."""


class TraceSeries:
    """A trace and the files that follow it when it grows too large."""

    def __init__(self, path: Path, create: Create, note: TraceNote, limit: int | None, on_full: OnFull) -> None:
        self.dropped = 0
        """Events that the size limit kept out."""
        self._path = path
        self._create = create
        self._note = note
        self._limit = limit
        self._on_full = on_full
        self._number = 0
        self.file: TraceFile | None = None
        """The one that is written now."""
        self._refused: OutputError | None = None
        """Why its file is not to be created: another process had it open. Later that may be complete, and would be lost."""
        self._complete_events = 0
        self._stopped = False

    @property
    def written(self) -> int:
        """Events in its files so far."""
        return self._complete_events + (0 if self.file is None else self.file.written)

    async def begin(self) -> TraceFile:
        """The file that is written now.

        Raises:
            OutputError: if it cannot be created.
        """
        if self._refused is not None:
            raise self._refused
        if self.file is None:
            note = msgspec.structs.replace(self._note, number=self._number)
            try:
                self.file = await self._create(numbered(self._path, self._number), note)
            except OutputError as error:
                self._refused = error if error.errno == errno.EBUSY else None
                raise
        return self.file

    async def add(self, events: Block, args: bytes, window: int) -> None:
        """Writes events, to further files if need be, or counts them as dropped.

        Raises:
            OutputError: if the system refused.
        """
        while len(events) and not self._stopped:
            file = await self.begin()
            events = events[file.add(events, args, window) :]
            if not len(events):
                return
            if self._on_full == "stop":
                self._stopped = True
                file.mark("stopped: the file is full", int(events["ts"][0]), {"limit": self._limit})
            else:
                await self._next()
        self.dropped += len(events)

    async def mark(self, name: str, at: int, args: Mapping[str, Any]) -> None:
        """Writes an instant event about the process; where no further file follows a full one, only as long as there is some room."""
        file = await self.begin()
        file.write_pending()
        if file.over and file.full and self._on_full == "rotate":
            await self._next()
            file = await self.begin()
        if not (file.over and self._on_full == "stop"):
            file.mark(name, at, args)

    @property
    def paths(self) -> list[Path]:
        """The files written so far, in their order."""
        return [numbered(self._path, number) for number in range(self._number + 1)]

    async def finish(self, args: Mapping[str, Any], at: int | None = None) -> None:
        """Writes the end of the last file, as far as there is room for it; `at` as for `TraceFile.finish`.

        Raises:
            OutputError: if the system refused something of it.
        """
        file = await self.begin()
        refusal: OutputError | None = None
        try:
            file.write_pending()
        except OutputError as error:
            refusal = error
            file.abandon_unfinished()
        await file.finish({**args, "dropped by size limit": self.dropped}, at)
        if refusal is not None:
            raise refusal

    async def _next(self) -> None:
        assert self.file is not None
        self.file.write_pending()
        await self.file.finish({"continued in": numbered(self._path, self._number + 1).name})
        self._complete_events += self.file.written
        self.file = None
        self._number += 1


_ENDINGS = {"chrome": ".json", "perfetto": ".pftrace"}


class TraceExporter(ABC):
    """The base of exporters of trace files; see those for their arguments. Counts the events in them (`Counting`)."""

    def __init__(
        self, kind: str, path: str | os.PathLike[str], gzip: bool | None, max_bytes: int | None, on_full: OnFull
    ) -> None:
        text = file_argument("path", path, f"trace{_ENDINGS[kind]}")
        if on_full not in ("rotate", "stop"):
            raise ValueError(f"on_full must be 'rotate' or 'stop', got {on_full!r}")
        if max_bytes is not None:
            number_argument("max_bytes", max_bytes, whole=True, unit="bytes")
            if max_bytes < SMALLEST:
                raise ValueError(f"max_bytes must be at least {SMALLEST}, got {max_bytes}")
        switch_argument("gzip", gzip)
        self.name = f"{kind}:{text}"
        self._format = kind
        self._path = absolute(path)
        self._by_window = "{window}" in text
        self._gzip = self._path.name.endswith(".gz") if gzip is None else gzip
        self._limit = max_bytes
        self._on_full: OnFull = on_full
        self._run: Run | None = None
        self._open: dict[int, TraceSeries] = {}
        """Open files by window, if every window has its own; else one under the key 0."""
        self._complete_files: dict[int, list[Path]] = {}
        """Complete files by window."""
        self._closed_events = self._closed_dropped = 0
        self._lost: list[Lost] = []

    @property
    def dropped_cap(self) -> int:
        """Events that `max_bytes` kept out so far."""
        return self._closed_dropped + sum(series.dropped for series in self._open.values())

    @property
    def written(self) -> int:
        """Events written so far, into all files."""
        return self._closed_events + sum(series.written for series in self._open.values())

    def take_lost(self) -> list[Lost]:
        """Events that were written and are lost since the last call."""
        for key in self._open:
            self._take_lost(key)
        lost, self._lost = self._lost, []
        return lost

    def _take_lost(self, key: int) -> None:
        file = self._open[key].file
        self._lost += () if file is None else file.take_lost(key if self._by_window else None)

    async def open(self, run: Run) -> None:
        """Begins the file; sees that it can be written, if every window has its own.

        Raises:
            OutputError: if it cannot.
        """
        if self._by_window:
            check_directory(self._path_of(run, 0).parent)
        else:
            series = self._begin(run, None)
            await series.begin()
            self._open[0] = series
        self._run = run

    async def export(self, batch: EventBatch) -> None:
        """Appends a batch.

        Raises:
            OutputError: if the system refused; the file keeps what was written whole.
            ClosedError: before `open` or after `aclose`.
        """
        await self._series(batch.window).add(batch.events, batch.args, batch.window)

    async def close_window(self, window: Window) -> None:
        """Writes what there is to say of the window, and completes its file if it has its own."""
        series = self._series(window.index)
        if self._by_window:
            await self._complete(window.index, about_window(window), window.end_ns)
        else:
            await series.mark(f"window {window.index}", window.end_ns, about_window(window))

    async def discard_window(self, window: int) -> None:
        """Deletes the files of a window, if every window has its own; from a file of all windows none is taken out.

        Raises:
            OutputError: if the system refused.
        """
        delete_files(self._complete_files.pop(window, ()))

    async def aclose(self) -> None:
        """Completes what is open. A cancelled call still completes what it can within half a second.

        Raises:
            OutputError: the first one, after all files were tried.
        """
        if self._run is None:
            return
        about = about_run(self._run)
        try:
            await self._complete_all(about)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(CANCEL_TIMEOUT_S, shield=True):
                await self._complete_all(about)
            raise
        finally:
            self._run = None

    async def _complete_all(self, about: Mapping[str, Any]) -> None:
        errors: list[OutputError] = []
        for key in list(self._open):
            try:
                await self._complete(key, about)
            except OutputError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def begin_group(self) -> None:
        """See `SupportsGroupedWrites`."""
        for file in (series.file for series in self._open.values()):
            if file is not None and file.groups:
                file.output.begin_group()

    async def end_group(self) -> None:
        """See `SupportsGroupedWrites`."""
        refused: OutputError | None = None
        for file in (series.file for series in self._open.values()):
            try:
                if file is not None:
                    file.output.end_group()
            except OutputError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def _path_of(self, run: Run, window: int | None) -> Path:
        """Path of the trace; that of the window if every window has its own."""
        return fill(self._path, run, window)

    def _series(self, window: int) -> TraceSeries:
        if self._run is None:
            raise ClosedError(f"{self.name} is not open")
        key = window if self._by_window else 0
        if key not in self._open:
            self._open[key] = self._begin(self._run, window if self._by_window else None)
        return self._open[key]

    def _begin(self, run: Run, window: int | None) -> TraceSeries:
        path = self._path_of(run, window)
        note = TraceNote(first=str(path), format=self._format, arguments=self._arguments(), window=window)
        return TraceSeries(path, lambda path, note: self._create(path, run, note), note, self._limit, self._on_full)

    def _arguments(self) -> dict[str, str | int | bool | None]:
        """The arguments that it was made with, but for the path."""
        return {"gzip": self._gzip, "max_bytes": self._limit, "on_full": self._on_full}

    @abstractmethod
    async def _create(self, path: Path, run: Run, note: TraceNote) -> TraceFile:
        """Creates a file and writes its head; the note says how it is written anew.

        Raises:
            OutputError: if it cannot be written.
        """

    async def _complete(self, key: int, args: Mapping[str, Any], at: int | None = None) -> None:
        """Writes the end of the files under a key; goes on where a cancelled call was. `at` as for `TraceFile.finish`."""
        series = self._open[key]
        await series.finish(args, at)
        self._take_lost(key)
        self._closed_dropped += series.dropped
        self._closed_events += series.written
        if self._by_window:
            self._complete_files[key] = series.paths
        del self._open[key]
