"""Parquet files, for DuckDB, Polars, pandas and whatever else reads columns."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import Counter
from importlib import import_module
from typing import Any, BinaryIO
from weakref import WeakSet

import msgspec
import numpy as np

from stepscope.exporters.files.output import open_for_writing, output_error, part
from stepscope.exporters.files.parquet_rows import (
    COLUMNS,
    COMPRESSION,
    DICTIONARIES,
    DIFFERENCES,
    STATISTICS,
    ParquetRows,
    WindowRow,
)
from stepscope.exporters.files.trace_file import about_run, about_window, dumps
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.files.private_files import make_directories
from stepscope.runtime.lifecycle.shutdown_hooks import after_exit
from stepscope.runtime.session.note import TraceNote
from stepscope.runtime.settings.arguments import file_argument
from stepscope.runtime.threads.native_threads import Lock
from stepscope.runtime.windows.window import Window

ROW_GROUP = 1 << 17
"""Rows that are held back to be written together."""
MOST_BYTES = 32 << 20
"""More is not held back, however few rows it is."""
MOST_PIECES = 1024
"""Windows, batches, or tables that are held back one by one before they become one piece."""
WRITE_BYTES = 1 << 16
"""Pages are a few KB each: so much is put together for one call of the system."""

EXIT_TIMEOUT_S = 5.0
"""How long the interpreter's exit waits for calls of pyarrow that have not returned by the deadline of closing."""

_open: WeakSet[ParquetExporter] = WeakSet()
"""Exporters whose file is begun and not completed."""


class ParquetExporter:
    """Writes one row for each event, by columns; names and other repeated texts are dictionaries.

    Columns: `rank`, `host`, `window`, `step`, `ts` (ns of Unix time), `dur` and `self_dur` (ns), `value` (of counters and
    memory events), `kind`, `category`, `name`, `process`, `thread`, `pid`, `tid`, `id`, `parent`, `cut`, `open`, `error`,
    `args` (JSON), `source`, `error_ns` (what `ts` may be off the collector's clock; null: unknown, or not merged). Values that do
    not apply are null. The field metadata of each column say what it means, under the key `description`.

    A window is a row of the kind `window`, whose `args` have its steps, ledger, diagnostics and metadata. The run's metadata
    and ledger, and the number of windows, are in the file's metadata, under the key `stepscope`. Memory does not depend on
    the size of the trace, nor on the number of windows.

    The file grows under the name with `.part` behind it: a Parquet file can be read when it is complete, and not before. If
    it cannot be completed, as on a full disk, nothing of it can be read: what was written is deleted, and all of its events
    count as dropped.

    Args:
        path: file to write; one that is there is replaced. Missing directories are made.

    Raises:
        TypeError: if the path is none.
        ValueError: if it is a directory.
        ImportError: if pyarrow is not installed.
    """

    whole_or_nothing = True
    """An incomplete file cannot be read at all."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = f"parquet:{file_argument('path', path, 'trace.parquet')}"
        self._path = absolute(path)
        try:
            self._arrow: Any = import_module("pyarrow")
            self._parquet: Any = import_module("pyarrow.parquet")
        except ImportError as error:
            raise ImportError("Parquet files need a package: pip install 'stepscope[parquet]'") from error
        self._rows = ParquetRows(self._arrow)
        self._lock = Lock()
        self._run: Run | None = None
        self._member: Run | None = None
        self._file: Any = None
        self._writer: Any = None
        self._batches: list[EventBatch] = []
        """Batches of one member, source and window, in their order: a table costs as much as thousands of its rows."""
        self._waiting: list[Any] = []
        """Tables of what came before these."""
        self._count = 0
        """Rows of both."""
        self._bytes = 0
        self._window_rows: list[WindowRow] = []
        self._windows: Counter[str] = Counter()
        self._failure: OutputError | None = None

    async def open(self, run: Run) -> None:
        """Begins the file.

        Raises:
            OutputError: if it cannot be written.
        """
        note = TraceNote(first=str(self._path), format="parquet")
        run.note_output(part(self._path), True, note)
        with self._lock:
            try:
                make_directories(self._path.parent)
                file = open(part(self._path), "wb", WRITE_BYTES, opener=open_for_writing)  # noqa: ASYNC230 - on the exporter's own thread
                self._file = _File(file)
            except OSError as error:
                raise output_error(error, self._path, "create the file") from error
            _open.add(self)
            self._writer = self._parquet.ParquetWriter(
                self._file,
                self._rows.schema,
                compression={name: COMPRESSION.get(name, "lz4") for name in COLUMNS},
                use_dictionary=[name for name in COLUMNS if name in DICTIONARIES],
                column_encoding=dict.fromkeys(DIFFERENCES, "DELTA_BINARY_PACKED"),
                write_statistics=list(STATISTICS),
                write_batch_size=ROW_GROUP // 2,
            )
        # At its first conversion pyarrow imports pandas, where that is installed: not while the program ends.
        self._arrow.array(np.empty(0))
        self._run = self._member = run

    async def begin_member(self, run: Run) -> None:
        """The batches that follow are of this run, until it is called again: a trace of several ranks is written."""
        self._opened()
        with self._lock:
            self._make_table()
        self._member = run

    async def export(self, batch: EventBatch) -> None:
        """Takes a batch; writes when there are enough rows.

        Raises:
            OutputError: if the system refused, then or earlier.
            ClosedError: before `open` or after `aclose`.
        """
        self._opened()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            for first in range(0, len(batch), ROW_GROUP):
                if _exiting:
                    return
                self._queue_batch(
                    msgspec.structs.replace(batch, events=batch.events[first : first + ROW_GROUP])
                    if len(batch) > ROW_GROUP
                    else batch
                )

    async def close_window(self, window: Window) -> None:
        """Takes what there is to say of the window as a row.

        Raises:
            OutputError: if the system refused.
            ClosedError: before `open` or after `aclose`.
        """
        self._opened()
        with self._lock:
            if self._failure is not None:
                return
            self._windows["complete" if window.complete else "incomplete"] += 1
            row = WindowRow(window.index, window.start_ns, window.end_ns, dumps(about_window(window)))
            self._window_rows.append(row)
            self._bytes += len(row.about)
            if len(self._window_rows) >= MOST_PIECES or self._bytes >= MOST_BYTES:
                self._write_windows()

    async def aclose(self) -> None:
        """Completes the file.

        Raises:
            OutputError: if it could not be written; it is deleted then.
        """
        try:
            self._finish()
        finally:
            self._run = None

    def end_calls(self, timeout: float) -> None:
        """Waits until no thread is inside of pyarrow for this file, `timeout` seconds at most. No call begins afterwards: the file
        is not completed. For the interpreter's exit."""
        self._lock.acquire(timeout=timeout)  # never released

    def _opened(self) -> Run:
        if self._run is None or self._member is None:
            raise ClosedError(f"{self.name} is not open")
        return self._member

    def _write_windows(self) -> None:
        if self._window_rows and self._run is not None:
            rows, self._window_rows = self._window_rows, []
            self._bytes -= sum(len(one.about) for one in rows)
            self._queue(self._rows.windows(rows, self._run))

    def _queue_batch(self, batch: EventBatch) -> None:
        first = self._batches[0] if self._batches else batch
        if (first.source, first.window) != (batch.source, batch.window) or len(self._batches) >= MOST_PIECES:
            self._make_table()
        self._batches.append(batch)
        self._count += len(batch)
        self._bytes += batch.nbytes
        self._write_if_large()

    def _make_table(self) -> None:
        """Makes rows of the batches that wait."""
        if self._batches and self._member is not None:
            batches, self._batches = self._batches, []
            self._count -= sum(map(len, batches))
            self._bytes -= sum(batch.nbytes for batch in batches)
            try:
                table = self._rows.table(batches, self._member)
            except Exception as error:
                raise self._fail(error, "make rows of events") from error
            self._add_table(table)

    def _queue(self, table: Any) -> None:
        self._make_table()
        self._add_table(table)
        self._write_if_large()

    def _add_table(self, table: Any) -> None:
        self._waiting.append(table)
        self._count += len(table)
        self._bytes += table.nbytes
        if len(self._waiting) >= MOST_PIECES:
            # A table of a few rows takes kilobytes.
            self._waiting = [self._joined().combine_chunks()]
            self._bytes = self._waiting[0].nbytes + sum(len(one.about) for one in self._window_rows)

    def _write_if_large(self) -> None:
        if self._count >= ROW_GROUP or self._bytes >= MOST_BYTES:
            self._write()

    def _joined(self) -> Any:
        return self._arrow.concat_tables(self._waiting).unify_dictionaries()

    def _write(self) -> None:
        self._make_table()
        if not self._waiting:
            return
        try:
            table = self._joined()
            self._waiting, self._count = [], 0
            self._bytes = sum(len(one.about) for one in self._window_rows)
            self._writer.write_table(table, row_group_size=2 * ROW_GROUP)
        except Exception as error:
            raise self._fail(error, "write") from error

    def _fail(self, error: Exception, doing: str) -> OutputError:
        """The file cannot be whole any more: events of earlier calls, which count as exported, are not in it."""
        if isinstance(error, OSError):
            self._failure = output_error(error, self._path, doing)
        else:
            self._failure = OutputError(errno.EIO, f"cannot {doing}: {error}", str(self._path))
        return self._failure

    def _finish(self) -> None:
        with self._lock:
            run, file = self._run, self._file
            if run is None or file is None:
                return
            whole = False
            try:
                if self._failure is not None:
                    raise self._failure
                self._write_windows()
                self._write()
                about = {**about_run(run), "run_id": run.id, "windows": self._windows}
                self._writer.add_key_value_metadata({"stepscope": dumps(about)})
                self._writer.close()
                file.close()
                os.replace(part(self._path), self._path)
                run.note_output(part(self._path), False)
                whole = True
            except OutputError:
                raise
            except OSError as error:
                raise output_error(error, self._path, "complete the file") from error
            finally:
                self._batches, self._waiting, self._file = [], [], None
                _open.discard(self)
                with contextlib.suppress(OSError):  # what it could not write yet: there is an error for that already
                    file.close()
                if not whole:
                    with contextlib.suppress(OSError):
                        part(self._path).unlink()


class _File:
    """A binary file as pyarrow calls it. Once the interpreter exits it takes nothing more, so that pyarrow soon returns."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.flush = file.flush
        self.tell = file.tell
        self.close = file.close

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: bytes) -> int:
        if _exiting:
            raise OSError(errno.ESHUTDOWN, "the interpreter exits")
        if self._file.closed:  # an incomplete file was deleted: pyarrow completes it when its writer is freed
            return len(data)
        return self._file.write(data)


_exiting = False


def _end_calls() -> None:
    """Lets no thread be inside of pyarrow when the interpreter stops them: the process would abort or crash in pyarrow's C++
    code, where CPython ends a thread that wants its lock, and where the library's own data are destroyed under it."""
    global _exiting
    _exiting = True
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for exporter in list(_open):
        exporter.end_calls(max(deadline - time.monotonic(), 0.0))


after_exit.add(_end_calls)
# A forked child never releases locks of the parent's threads.
os.register_at_fork(after_in_child=_open.clear)
