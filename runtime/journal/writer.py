"""Writes a journal: a call that returns has handed its frames to the kernel, so that a killed process keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.json_values import plain
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.events.survey import survey
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.private_files import (
    CHECK_INTERVAL_S,
    WINDOW_CHECK_INTERVAL_S,
    deleted_error,
    make_directories,
)
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import records as records
from stepscope.runtime.journal.append_file import AppendFile
from stepscope.runtime.journal.index import IndexBuilder
from stepscope.runtime.journal.tables import Tables
from stepscope.runtime.threads.native_threads import Lock
from stepscope.runtime.windows.window import Window

Fsync = Literal["never", "window", "always"]
"""When the disk is waited for: a machine that loses power keeps what was synced, a killed process keeps everything."""

MIN_BYTES = 1 << 16
_END_BYTES = 256


class Target(Protocol):
    """What a journal is written to: `AppendFile`, or what behaves like it."""

    path: Path

    @property
    def size(self) -> int: ...

    def write(self, pieces: list[fmt.Bytes], sync: bool) -> None: ...

    def deleted(self, within_s: float) -> bool: ...

    def close(self) -> None: ...


def _create_file(path: Path) -> AppendFile:
    try:
        make_directories(path.parent)
    except OSError as error:
        raise OutputError(error.errno, f"cannot create the file: {error.strerror or error}", str(path)) from error
    return AppendFile(path)


class JournalWriter:
    """One journal file. Calls may come from any thread, one at a time is carried out.

    A write that fails leaves the file as it was before. Close to `max_bytes` events are left out, and counted in a
    marker; the rest of the space is kept for windows and the end.

    Args:
        path: where to write. If something of that name exists, another run's journal for one, `-2`, `-3`, ... is
            put before the suffix; links are never followed.
        max_bytes: size limit, at least 64 KiB.
        fsync: when to wait for the disk.
        compression: how to compress event frames, where that makes them smaller.
        max_frame: bytes of a frame's payload at most, if what is written to takes less than readers do.
        create: makes what the pieces are appended to, of the path; frames are never divided among two writes.
        holes: whether events may follow those that were left out, because room can come back.

    Raises:
        ValueError: for a limit that is too small or an unknown `fsync`.
    """

    dropped = 0
    """Events left out because of the size limit."""
    written = 0
    """Events written."""
    arguments_cut = 0
    """Events written without their arguments, which were malformed or larger than a frame."""
    deleted = False
    """Whether the file was deleted while it was open: the events written to it are lost."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 8 << 30,
        fsync: Fsync = "never",
        compression: fmt.Compression = "",
        max_frame: int = fmt.MAX_PAYLOAD,
        create: Callable[[Path], Target] = _create_file,
        holes: bool = False,
    ) -> None:
        if max_bytes < MIN_BYTES:
            raise ValueError(f"max_bytes must be at least {MIN_BYTES}, got {max_bytes}")
        if fsync not in ("never", "window", "always"):
            raise ValueError(f"fsync must be 'never', 'window' or 'always', got {fsync!r}")
        self.path = path
        self._max_bytes = max_bytes
        self._reserve = min(1 << 20, max_bytes // 8)
        self._fsync = fsync
        self._compression: fmt.Compression = compression
        self._max_frame = max_frame
        self._create = create
        self._holes = holes
        self._full = False
        self._lock = Lock()
        self._file: Target | None = None
        self._sync = fmt.new_sync_word()
        self._number = 0
        self._pending: list[fmt.Bytes] = []
        self._pending_frames = 0
        self._tables = Tables(max_frame)
        self._open_windows: set[int] = set()
        self._windows = 0
        self._records_left_out = 0
        self._marked = 0
        self._metadata: bytes = b""
        self._index: IndexBuilder | None = None

    @property
    def sync_word(self) -> bytes:
        """The mark at the beginning of the file's frames."""
        return self._sync

    @property
    def is_open(self) -> bool:
        """Whether frames can be appended."""
        return self._file is not None

    def open(self, run: Run) -> None:
        """Creates the file, and directories that are missing, readable by this user only.

        Raises:
            OutputError: if that is not possible.
        """
        with self._lock:
            self._file = self._create(self.path)
            self.path = self._file.path
            self._pending.append(fmt.encode_file_header(self._sync))
            self._control(fmt.FrameType.RUN, records.run_record(run, time.time_ns()))
            self._commit(self._fsync != "never")
            if self._compression == "columns":  # frames that can be read alone
                self._index = IndexBuilder()

    def append_to(self, sync: bytes, number: int, size: int, *, events: int, windows: int) -> None:
        """Opens a journal whose process died, cuts it where its whole frames end, and marks that recovery appends the rest.

        Args:
            sync: the mark of its frames.
            number: of the next frame.
            size: bytes of the frames that stay, with the file's header, which is written anew.
            events: how many they have.
            windows: how many of these were closed.

        Raises:
            OutputError: if that is not possible.
        """
        with self._lock:
            self._file = AppendFile(self.path, keep=size)
            self._file.write_header(fmt.encode_file_header(sync))
            self._sync, self._number = sync, number
            self.written, self._windows = events, windows
        self.mark_recovered()

    def mark_recovered(self) -> None:
        """Marks that recovery appends the frames from here on.

        Raises:
            OutputError: if the file cannot be written.
        """
        with self._lock:
            self._record(fmt.FrameType.RECOVERED, records.RecoveredRecord(time.time_ns()))

    def write_batch(self, batch: EventBatch) -> None:
        """Appends a batch, and what it needs of strings and tracks.

        Raises:
            OutputError: if the file cannot be written. Frames of the batch that were written stay.
            ClosedError: after `close`.
        """
        if not len(batch):
            return
        with self._lock:
            self._open_file()
            if self._is_full():
                self.dropped += len(batch)
                self._mark_cap()
                return
            if self._compression == "columns" and self._write_columns(batch):
                return
            said = False
            for count, flags, parts, cut in fmt.encode_events(batch, self._compression, most=self._max_frame):
                if not said and self._compression != "columns":  # those frames have names and tracks of their own
                    for kind, rows in self._tables.before(batch):
                        self._control(kind, rows)
                opened = batch.window not in self._open_windows
                if opened:
                    first = fmt.EVENTS_HEADER.unpack_from(parts[0])[0]
                    self._control(fmt.FrameType.WINDOW_OPENED, records.WindowOpened(batch.window, first))
                self._frame(fmt.FrameType.EVENTS, parts, flags)
                if self._full or not self._has_room(self._reserve):
                    self._full = True
                    self._discard()
                    self.dropped += count
                    self._mark_cap()
                    continue
                self._note_events(batch.window, count)
                self._commit(self._fsync == "always")
                self._tables.settle()
                said = True
                self._open_windows.add(batch.window)
                self.written += count
                self.arguments_cut += cut

    def _write_columns(self, batch: EventBatch) -> bool:
        """Appends a batch in one write; false, and nothing is written, if there is no room for all of it."""
        opened = batch.window not in self._open_windows
        events = np.ascontiguousarray(batch.events)
        if opened:
            self._control(fmt.FrameType.WINDOW_OPENED, records.WindowOpened(batch.window, survey(events).first_ns))
        number = (self._number + self._pending_frames) & 0xFFFFFFFF
        frames, count, cut = _core.encode_frames(
            events, bytes(batch.args), self._sync, number, batch.window, fmt.source_bytes(batch.source)
        )
        self._pending.append(frames)
        self._pending_frames += count
        if not self._has_room(self._reserve):
            self._discard()
            return False
        self._note_events(batch.window, len(batch))
        self._commit(self._fsync == "always")
        self._open_windows.add(batch.window)
        self.written += len(batch)
        self.arguments_cut += cut
        return True

    def write_window(self, window: Window, anchor: ClockAnchor | None = None) -> None:
        """Appends the end of a window, and a reading of the clocks in the same write.

        Raises:
            OutputError: if the file cannot be written.
            ClosedError: after `close`.
        """
        with self._lock:
            self._check_deleted(WINDOW_CHECK_INTERVAL_S)
            self._mark_cap(exactly=True)
            record = records.window_record(window)
            anchored = 0
            if anchor is not None:
                self._control(fmt.FrameType.CLOCK, anchor)
                anchored = sum(map(len, self._pending))
            begin = self._open_file().size + anchored
            if not self._record(fmt.FrameType.WINDOW_CLOSED, record, self._fsync != "never"):
                self._records_left_out += anchor is not None
                note = f"{record.step_count} steps and the metadata did not fit the journal"
                less = msgspec.structs.replace(
                    record, steps=b"", metadata={}, diagnostics=[*record.diagnostics[:10], note]
                )
                if not self._record(fmt.FrameType.WINDOW_CLOSED, less, self._fsync != "never"):
                    self._records_left_out += 1
                    self._index = None
            if self._index is not None:
                self._index.close_window(record, begin, self._open_file().size)
            self._open_windows.discard(window.index)
            self._windows += 1

    def write_metadata(self, values: Mapping[str, Any]) -> None:
        """Appends the run's metadata if it is not what it was.

        Raises:
            OutputError: if the file cannot be written.
            ClosedError: after `close`.
        """
        with self._lock:
            self._open_file()
            record = records.MetadataRecord(plain(dict(values)))
            encoded = records.encode_record(record)
            if encoded != self._metadata and (values or self._metadata):
                if self._index is not None:
                    self._index.metadata = self._open_file().size
                self._records_left_out += not self._record(fmt.FrameType.METADATA, record)
                self._metadata = encoded

    def write_anchor(self, anchor: ClockAnchor) -> None:
        """Appends a reading of the clocks.

        Raises:
            OutputError: if the file cannot be written.
            ClosedError: after `close`.
        """
        with self._lock:
            self._open_file()
            self._records_left_out += not self._record(fmt.FrameType.CLOCK, anchor)

    def write_ledger(self, ledger: Ledger) -> None:
        """Appends the accounts of the whole run.

        Raises:
            OutputError: if the file cannot be written.
            ClosedError: after `close`.
        """
        with self._lock:
            if self._index is not None:
                self._index.ledger = self._open_file().size
            self._records_left_out += not self._record(fmt.FrameType.LEDGER, ledger)

    def write_sync(self, sync: records.ClockSync) -> None:
        """Appends a comparison with a collector's clock.

        Raises:
            OutputError: if the file cannot be written.
            ClosedError: after `close`.
        """
        with self._lock:
            self._open_file()
            self._records_left_out += not self._record(fmt.FrameType.CLOCK_SYNC, sync)

    def restate(self, run: Run) -> None:
        """Appends the run again, and lets tables and metadata be written again: what came before was lost.

        Raises:
            OutputError: if the file cannot be written.
            ClosedError: after `close`.
        """
        with self._lock:
            self._open_file()
            self._records_left_out += not self._record(fmt.FrameType.RUN, records.run_record(run, time.time_ns()))
            self._tables.forget()
            self._metadata = b""

    def restated(self, run: Run, before: int) -> list[bytes]:
        """Frames that say again what all frames so far are read with: the run, the tables and the metadata.

        They are not appended, but for who has lost all frames up to one that was written, and puts them there.

        Args:
            run: whose journal it is.
            before: number of that frame; theirs are the ones before it, as many as they are.
        """
        with self._lock:
            found: list[tuple[fmt.FrameType, object]] = [
                (fmt.FrameType.RUN, records.run_record(run, time.time_ns())),
                *self._tables.all(),
            ]
            payloads = [(kind, records.encode_record(record)) for kind, record in found]
            if self._metadata:
                payloads.append((fmt.FrameType.METADATA, self._metadata))
            payloads = [(kind, payload) for kind, payload in payloads if len(payload) <= self._max_frame]
            first = before - len(payloads)
            return [
                b"".join(fmt.encode_frame(self._sync, kind, first + at, [payload]))
                for at, (kind, payload) in enumerate(payloads)
            ]

    def write_cap(self, record: records.CapRecord) -> None:
        """Appends the size marker of a journal that is being copied.

        Raises:
            OutputError: if the file cannot be written.
            ClosedError: after `close`.
        """
        with self._lock:
            self._open_file()
            self._records_left_out += not self._record(fmt.FrameType.CAP, record)

    def close(self) -> None:
        """Appends the end mark and closes the file. Idempotent.

        Raises:
            OutputError: if the end mark cannot be written; the file is closed all the same.
        """
        with self._lock:
            if self._file is None:
                return
            try:
                end = records.EndRecord(
                    self.written,
                    self._windows,
                    self.dropped,
                    self.arguments_cut,
                    self._records_left_out,
                    self._write_index(),
                )
                self._control(fmt.FrameType.END, end)
                self._commit(self._fsync != "never")
                self._check_deleted(0.0)
            finally:
                self._file.close()
                self._file = None

    def abandon(self) -> None:
        """Closes the file without an end mark. Idempotent."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _record(self, kind: fmt.FrameType, record: object, sync: bool = False) -> bool:
        """Writes one control frame; false if it does not fit."""
        payload = records.encode_record(record)
        if len(payload) > self._max_frame:
            return False
        self._frame(kind, [payload])
        if not self._has_room(_END_BYTES):
            self._discard()
            return False
        self._commit(sync or self._fsync == "always")
        return True

    def _note_events(self, window: int, count: int) -> None:
        if self._index is not None:
            self._index.add_events(window, self._open_file().size, count)

    def _write_index(self) -> int:
        """Appends the index. Returns where it begins; 0 if there is none."""
        index = None if self._index is None or self._records_left_out else self._index.record()
        begin = self._open_file().size
        return begin if index is not None and self._record(fmt.FrameType.INDEX, index) else 0

    def _mark_cap(self, exactly: bool = False) -> None:
        """Says how much is missing: when the limit is met, whenever it has doubled, and exactly with each window."""
        outdated = self.dropped > (self._marked if exactly else self._marked * 2)
        if outdated and self._record(fmt.FrameType.CAP, records.CapRecord(self._max_bytes, self.dropped)):
            self._marked = self.dropped

    def _control(self, kind: fmt.FrameType, record: object) -> None:
        self._frame(kind, [records.encode_record(record)])

    def _frame(self, kind: fmt.FrameType, parts: list[fmt.Bytes], flags: int = 0) -> None:
        self._pending += fmt.encode_frame(self._sync, kind, self._number + self._pending_frames, parts, flags)
        self._pending_frames += 1

    def _is_full(self) -> bool:
        """Whether events are left out. A file stays full: a journal with holes would look complete."""
        if self._full and self._holes and self._has_room(2 * self._reserve):
            self._full = False
        return self._full

    def _has_room(self, reserve: int) -> bool:
        return self._open_file().size + sum(len(part) for part in self._pending) <= self._max_bytes - reserve

    def _discard(self) -> None:
        self._pending.clear()
        self._pending_frames = 0

    def _open_file(self) -> Target:
        if self._file is None:
            raise ClosedError(f"the journal {self.path} is not open")
        return self._file

    def _check_deleted(self, within_s: float) -> None:
        """Raises `OutputError` if the file was deleted; nothing is written to it from then on."""
        self.deleted = self.deleted or self._open_file().deleted(within_s)
        if self.deleted:
            raise deleted_error(self.path, self.written)

    def _commit(self, sync: bool) -> None:
        """Writes what is pending, all or nothing."""
        try:
            self._check_deleted(0.0 if sync else CHECK_INTERVAL_S)
            self._open_file().write(self._pending, sync)
            self._number += self._pending_frames
        finally:
            self._discard()
