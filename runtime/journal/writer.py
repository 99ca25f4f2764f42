"""Writes a journal. When a call returns, the kernel has its frames, so that they survive a killed process."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

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
    is_missing,
    make_directories,
)
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import records as records
from stepscope.runtime.journal.append_file import AppendFile
from stepscope.runtime.journal.index import MAX_INDEX_BYTES, IndexBuilder
from stepscope.runtime.journal.segments import SEGMENT_AGE_S, Segment
from stepscope.runtime.loop_threads.condition import LoopCondition
from stepscope.runtime.threads.native_threads import Lock
from stepscope.runtime.windows.window import Window

Fsync = Literal["never", "window", "always"]
"""Chooses when to wait for the disk: only synced frames survive a loss of power; all frames survive a killed process."""

WhenFull = Literal["stop", "delete_oldest"]
"""Chooses at the size limit: leave out new events, or delete the oldest segments."""

log = logging.getLogger("stepscope")

MIN_BYTES = 1 << 16
GROUP_BYTES = 64 << 10
"""A group of small writes is written when it has so many bytes."""
_END_BYTES = 256
FACTS_WAITING = 64
"""Records of facts of steps that wait for the next events; of more the oldest are left out, and counted."""


class ClosedSegment(msgspec.Struct, frozen=True):
    """A segment that is not written any more."""

    path: Path
    size: int
    end: int
    """Position at which the next segment begins."""
    events: Counter[int]
    """Number of events, by window."""


class JournalWriter:
    """One journal. Any thread may call; calls are serialized.

    A write that fails raises `OutputError` and does not change the file; after `close`, writing raises `ClosedError`. Near
    `max_bytes`, events are dropped, and counted in a marker; the remaining space is reserved for ends of windows and of the file.

    Args:
        path: path of the file. If it exists, such as the journal of another run, the new file gets `-2`, `-3`, ... before the
            suffix. Links are not followed.
        max_bytes: size limit, at least 64 KiB.
        fsync: when to wait for the disk.
        segment_bytes: continue in a new file after about so many bytes, or an hour; 0 = one file.
        when_full: leave out new events at the limit, or delete the oldest segments.

    Raises:
        ValueError: for a limit that is too small, or an unknown `fsync` or `when_full`.
    """

    dropped = 0
    """Events dropped because of the size limit."""
    written = 0
    """Events written."""
    arguments_cut = 0
    """Events written without their arguments, as these were malformed or larger than a frame."""
    lost = 0
    """Events that were counted as written in a group, and that the system refused."""
    deleted_oldest = 0
    """Events of the oldest segments, which this deleted because of the size limit, or because they were sent."""
    deleted_unsent = 0
    """Deleted events that not all followers had sent."""
    end = 0
    """Position up to which the kernel has the frames."""
    failed = False
    """Whether the file could not be created."""
    deleted_by_others = 0
    """Events of files that were deleted, by others, while this was open. Further ones are refused then."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 8 << 30,
        fsync: Fsync = "never",
        segment_bytes: int = 0,
        when_full: WhenFull = "stop",
    ) -> None:
        if when_full not in ("stop", "delete_oldest"):
            raise ValueError(f"when_full must be 'stop' or 'delete_oldest', got {when_full!r}")
        if when_full == "delete_oldest" and not segment_bytes:
            raise ValueError("when_full='delete_oldest' deletes segments; segment_bytes must not be 0")
        if max_bytes < MIN_BYTES:
            raise ValueError(f"max_bytes must be at least {MIN_BYTES}, got {max_bytes}")
        if fsync not in ("never", "window", "always"):
            raise ValueError(f"fsync must be 'never', 'window' or 'always', got {fsync!r}")
        self.path = path
        self._max_bytes = max_bytes
        self._reserve = min(1 << 20, max_bytes // 8)
        self._fsync = fsync
        self._deletes_oldest = when_full == "delete_oldest"
        self._segment_bytes = min(segment_bytes, max_bytes // 8)
        self._segment_end = 0
        """Position at which the next segment begins."""
        self._closed: list[ClosedSegment] = []
        """Closed segments that are still there."""
        self._segment_events: Counter[int] = Counter()
        """Number of events in the last segment, by window."""
        self._sent: dict[object, int] = {}
        """Position up to which each follower has sent the journal."""
        self._oldest_bytes = 0
        self._oldest_events: Counter[int] = Counter()
        self._missing = False
        """Whether the file that is written was deleted."""
        self._full = False
        self._lock = Lock()
        self._file: AppendFile | None = None
        self._sync = fmt.new_sync_word()
        self._number = 0
        self._pending: list[fmt.Bytes] = []
        self._pending_frames = self._pending_bytes = 0
        self._complete = (0, 0, 0)
        """Pieces, bytes and frames of these that are complete, and wait for the end of the group."""
        self._unwritten: Counter[int] = Counter()
        """Events among them, by window."""
        self._earlier = False
        """Whether frames of earlier calls are among those that are written now."""
        self._grouping = False
        self._open_windows: set[int] = set()
        self._windows = 0
        self._skipped_records = 0
        self._facts: deque[object] = deque(maxlen=FACTS_WAITING)
        """Facts of steps that were not written yet."""
        self.facts_left_out = 0
        """Records of facts of steps that were not written."""
        self._marked = 0
        self._run: bytes = b""
        self._metadata: bytes = b""
        self._index: IndexBuilder | None = None
        self.changed = LoopCondition()
        """Notified after each write, and when the file is opened or closed."""

    @property
    def sync_word(self) -> bytes:
        """The sync word of the file's frames."""
        return self._sync

    @property
    def has_metadata(self) -> bool:
        """Whether it has the metadata that were given last; those of a group that the system refused must be given again."""
        return bool(self._metadata)

    @property
    def is_open(self) -> bool:
        """Whether frames can be appended."""
        return self._file is not None

    def open(self, run: Run) -> None:
        """Creates the file and missing directories, readable by this user only."""
        with self._lock:
            try:
                self._open(run)
            except BaseException:
                self.failed = True
                self._close_file()
                raise
            finally:
                self.changed.notify_all()

    def _open(self, run: Run) -> None:
        try:
            make_directories(self.path.parent)
        except OSError as error:
            raise OutputError(
                error.errno, f"cannot create the file: {error.strerror or error}", str(self.path)
            ) from error
        self._file = AppendFile(self.path)
        self.path = self._file.path
        header = fmt.encode_file_header(self._sync)
        self._pending.append(header)
        self._pending_bytes = len(header)
        self._run = records.encode_record(records.run_record(run, time.time_ns()))
        self._frame(fmt.FrameType.RUN, self._run)
        self._commit(self._fsync != "never")
        self._segment_end = self._segment_bytes
        self._index = IndexBuilder()

    def append_to(
        self,
        segment: Segment,
        sync: bytes,
        end: tuple[int, int],
        *,
        events: int,
        windows: int,
        index: IndexBuilder | None,
    ) -> None:
        """Opens the journal of a killed process, cuts it after its last complete frame, and marks the begin of recovery.

        Args:
            segment: its last file.
            sync: sync word of its frames.
            end: number and position of the next frame. The header of the file is rewritten.
            events, windows: numbers of events and closed windows before it.
            index: continues the index of these frames.
        """
        with self._lock:
            self._index = index
            self._number, size = end
            self._file = AppendFile(self.path, segment, size)
            self._file.write_header(sync)
            self._sync = sync
            self.written, self._windows = events, windows
        self.mark_recovered()

    def mark_recovered(self) -> None:
        """Appends a mark: recovery wrote the following frames."""
        with self._lock:
            if self._index is not None:
                self._index.recovered = self._end
            self._record(fmt.FrameType.RECOVERED, records.RecoveredRecord(time.time_ns()))

    def write_batch(self, batch: EventBatch) -> None:
        """Appends a batch. After an error, frames of the batch that were written remain."""
        if not len(batch):
            return
        pieces = [batch]
        with self._lock:
            self._open_file()
            self._write_facts()
            while pieces:
                piece = pieces.pop()
                if not self._is_full() and self._write_piece(piece):
                    continue
                if not self._full and piece.events.nbytes > fmt.CHUNK_BYTES:
                    half = len(piece) // 2
                    pieces += [
                        msgspec.structs.replace(piece, events=events)
                        for events in (piece.events[half:], piece.events[:half])
                    ]
                    continue
                self._full = not self._deletes_oldest
                self.dropped += len(piece)
                self._mark_cap()
            if not self._full:
                self._begin_index_or_segment()

    def _write_piece(self, batch: EventBatch) -> bool:
        """Appends events in one write. Returns false, and writes nothing, if there is not enough space."""
        opened = batch.window not in self._open_windows
        begin, size = self._end, len(batch)
        counts = survey(batch.events)
        if opened:
            self._control(fmt.FrameType.WINDOW_OPENED, records.WindowOpened(batch.window, counts.first_ns))
        cut = self._frames(fmt.FrameType.EVENTS, batch)
        if not self._fits(self._reserve):
            self._discard()
            return False
        self._commit(self._fsync == "always")
        if self._index is not None:
            self._index.add_batch(batch, counts, begin, self._end)
        self._open_windows.add(batch.window)
        self.written += size
        self._segment_events[batch.window] = self._segment_events.get(batch.window, 0) + size
        if self._pending:
            self._unwritten[batch.window] += size
        self.arguments_cut += cut
        return True

    def _frames(self, kind: fmt.FrameType, batch: EventBatch) -> int:
        """Adds frames with events. Returns how many of these are written without their arguments."""
        frames, count, cut = _core.encode_frames(
            np.ascontiguousarray(batch.events),
            bytes(batch.args),
            self._sync,
            int(kind),
            (self._number + self._pending_frames) & 0xFFFFFFFF,
            batch.window,
            fmt.source_bytes(batch.source),
        )
        self._pending.append(frames)
        self._pending_bytes += len(frames)
        self._pending_frames += count
        return cut

    def write_window(self, window: Window, anchor: ClockAnchor | None = None) -> None:
        """Appends the end of a window, and a reading of the clocks, if any, in the same write."""
        with self._lock:
            self._check_deleted(WINDOW_CHECK_INTERVAL_S)
            self._mark_cap(exactly=True)
            record = records.window_record(window)
            if anchor is not None:
                self._control(fmt.FrameType.CLOCK, anchor)
            begin = self._end
            if not self._record(fmt.FrameType.WINDOW_CLOSED, record, self._fsync != "never"):
                self._skipped_records += anchor is not None
                note = f"{record.step_count} steps and the metadata did not fit the journal"
                less = msgspec.structs.replace(
                    record, steps=b"", metadata={}, diagnostics=[*record.diagnostics[:10], note]
                )
                if not self._record(fmt.FrameType.WINDOW_CLOSED, less, self._fsync != "never"):
                    self._skipped_records += 1
                    self._index = None
            if self._index is not None:
                self._index.close_window(window, begin, self._end)
            self._open_windows.discard(window.index)
            self._windows += 1
            self._begin_index_or_segment()

    def write_metadata(self, values: Mapping[str, Any]) -> None:
        """Appends the metadata of the run if they have changed."""
        with self._lock:
            self._open_file()
            record = records.MetadataRecord(plain(dict(values)))
            encoded = records.encode_record(record)
            if encoded != self._metadata and (values or self._metadata):
                if self._index is not None:
                    self._index.metadata = self._end
                self._skipped_records += not self._record(fmt.FrameType.METADATA, record)
                self._metadata = encoded

    def write_anchor(self, anchor: ClockAnchor) -> None:
        with self._lock:
            self._open_file()
            self._skipped_records += not self._record(fmt.FrameType.CLOCK, anchor)

    def write_ledger(self, ledger: Ledger) -> None:
        with self._lock:
            if self._index is not None:
                self._index.ledger = self._end
            self._skipped_records += not self._record(fmt.FrameType.LEDGER, ledger)

    def write_sync(self, sync: records.ClockSync) -> None:
        with self._lock:
            self._open_file()
            # The reserve of a full journal is for the ends of windows.
            if (
                self._has_room(self._reserve)
                and self._record(fmt.FrameType.CLOCK_SYNC, sync)
                and self._index is not None
            ):
                self._index.add_sync(sync)

    def add_facts(self, facts: object) -> None:
        """Appends facts of steps, as an exporter sends them, before the next events or at the end. Waits for nothing."""
        self.facts_left_out += len(self._facts) == FACTS_WAITING
        self._facts.append(facts)

    def _write_facts(self) -> None:
        while self._facts:
            facts = self._facts.popleft()
            if not (self._has_room(self._reserve) and self._record(fmt.FrameType.STEP_FACTS, facts)):
                self.facts_left_out += 1

    def close(self) -> None:
        """Appends the end record and closes the file, even if that cannot be written. Idempotent."""
        with self._lock:
            if self._file is None:
                return
            self._grouping = False
            try:
                self._write_facts()
                end = records.EndRecord(
                    self.written - self.lost - self.deleted_oldest,
                    self._windows,
                    self.dropped,
                    self.arguments_cut,
                    self._skipped_records + self.facts_left_out,
                    self._write_index(_END_BYTES),
                )
                self._control(fmt.FrameType.END, end)
                self._commit(self._fsync != "never")
                self._check_deleted(0.0)
            finally:
                self._close_file()

    def follow(self, follower: object) -> None:
        """Keeps segments that this follower has not sent: at the size limit, only segments that all followers have sent are deleted.

        Events may be written again after others were dropped, because space can become free.
        """
        self._sent[follower] = 0

    def advance(self, follower: object, position: int, *, delete: bool = False) -> None:
        """Notes up to which position a follower has sent the journal. With `delete`, segments that all have sent are deleted now."""
        self._sent[follower] = position
        if delete and self._closed and self._closed[0].end <= position:
            with self._lock:
                while self._closed and self._closed[0].end <= self._sent_end() and self._delete_oldest():
                    pass

    def limit_segments(self, segment_bytes: int) -> None:
        """Continues in new segments after at most so many bytes from now on, at least `MIN_BYTES`. A journal in one file stays so."""
        with self._lock:
            if self._segment_bytes and self._file is not None:
                self._segment_bytes = min(self._segment_bytes, max(segment_bytes, MIN_BYTES))
                self._segment_end = min(self._segment_end, self._file.segment.begin + self._segment_bytes)

    def take_deleted_oldest(self) -> Counter[int]:
        """Number of events in oldest segments that were deleted since the last call, by window."""
        with self._lock:
            deleted, self._oldest_events = self._oldest_events, Counter()
            return deleted

    def begin_group(self) -> None:
        """The next calls may keep frames in memory until `end_group`, so that they need one write together."""
        with self._lock:
            self._grouping = True

    def end_group(self) -> None:
        """Writes the frames in memory. If that fails, `lost` counts their events."""
        with self._lock:
            self._grouping = False
            if self._pending:
                self._earlier = True
                self._write_pending(False)
            if self._file is not None:
                self._begin_index_or_segment()

    def abandon(self) -> None:
        """Closes the file without an end record. Idempotent."""
        with self._lock:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self.changed.notify_all()

    def _record(self, kind: fmt.FrameType, record: object, sync: bool = False) -> bool:
        """Writes one control frame. Returns false if it does not fit."""
        payload = records.encode_record(record)
        if len(payload) > fmt.MAX_PAYLOAD:
            return False
        self._frame(kind, payload)
        if not self._fits(_END_BYTES):
            self._discard()
            return False
        self._commit(sync or self._fsync == "always")
        return True

    def _begin_index_or_segment(self) -> None:
        """Writes an index if one is due, and continues in a new file when the last one is large or old; in a group, at its end."""
        if self._grouping:
            return
        end = self._end
        if self._index is not None and self._index.is_due(end):
            self._write_index(self._reserve)
            end = self._end
        file = self._file
        if self._segment_bytes and file is not None:
            if end >= self._segment_end or time.monotonic() - file.segment_began_s >= SEGMENT_AGE_S:
                self._begin_segment(file)

    def _write_index(self, reserve: int) -> int:
        """Appends an index, unless there would not be this space left. Returns the position of the last one; 0 = there is none."""
        index = self._index
        if index is None or self._skipped_records:
            return 0
        outlines = self._end
        for batch in index.outlines():
            self._frames(fmt.FrameType.OUTLINE, batch)
        position = self._end
        payload = records.encode_record(index.record(outlines))
        if len(payload) <= MAX_INDEX_BYTES:
            self._frame(fmt.FrameType.INDEX, payload)
        if len(payload) > MAX_INDEX_BYTES or not self._fits(reserve):
            self._discard()
            self._index = None
            return 0
        self._commit(self._fsync == "always")
        index.begin_next(position)
        return position

    def _begin_segment(self, file: AppendFile) -> None:
        self._write_index(self._reserve)
        last, end = file.segment, file.size
        payloads = [(fmt.FrameType.RUN, self._run), (fmt.FrameType.METADATA, self._metadata)]
        frames = [(kind, payload) for kind, payload in payloads if payload]
        encoded = [
            fmt.encode_frame(self._sync, kind, self._number + at, [payload])
            for at, (kind, payload) in enumerate(frames)
        ]
        try:
            file.begin_segment(self._sync, [piece for frame in encoded for piece in frame], self._fsync != "never")
        except OutputError as error:
            log.warning("the journal goes on in a file larger than %s bytes: %s", self._segment_bytes, error)
            file.segment_began_s = time.monotonic()
            self._segment_end = end + self._segment_bytes
            return
        self._number += len(frames)
        self.end = file.size
        self._segment_end = end + self._segment_bytes
        if self._index is not None and len(frames) > 1:
            self._index.metadata = end + sum(map(len, encoded[0]))
        self._closed.append(ClosedSegment(last.path, end - last.begin, end, self._segment_events))
        self._segment_events = Counter()
        self._fits(self._reserve + self._segment_bytes)

    def _fits(self, reserve: int) -> bool:
        """Whether the pending frames, and then so many bytes, fit. Deletes the oldest segments for it, if they were sent or that is
        wanted."""
        while not (fits := self._has_room(reserve)) and self._closed:
            if not (self._deletes_oldest or self._closed[0].end <= self._sent_end()) or not self._delete_oldest():
                break
        return fits

    def _sent_end(self) -> int:
        """Position up to which all followers have sent the journal; 0 if there are none."""
        return min(self._sent.values(), default=0)

    def _delete_oldest(self) -> bool:
        """Deletes the oldest segment. Its events count as lost unless they were sent. Returns false if the system refuses."""
        oldest = self._closed[0]
        try:
            oldest.path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a segment of the journal cannot be deleted: %s", error)
            return False
        del self._closed[0]
        self.deleted_oldest += oldest.events.total()
        self._oldest_bytes += oldest.size
        if oldest.end > self._sent_end():
            self._oldest_events += oldest.events
            self.deleted_unsent += oldest.events.total()
        return True

    def _mark_cap(self, exactly: bool = False) -> None:
        """Appends the number of dropped events: at the limit, each time it has doubled, and exactly with each window."""
        if self._index is not None:
            self._index.dropped |= bool(self.dropped)
        outdated = self.dropped > (self._marked if exactly else self._marked * 2)
        if outdated and self._record(fmt.FrameType.CAP, records.CapRecord(self._max_bytes, self.dropped)):
            self._marked = self.dropped

    def _control(self, kind: fmt.FrameType, record: object) -> None:
        self._frame(kind, records.encode_record(record))

    def _frame(self, kind: fmt.FrameType, payload: bytes) -> None:
        frame = fmt.encode_frame(self._sync, kind, self._number + self._pending_frames, [payload])
        self._pending += frame
        self._pending_bytes += sum(map(len, frame))
        self._pending_frames += 1

    def _is_full(self) -> bool:
        """Whether events are dropped. Without followers a journal stays full, as one with holes would look complete."""
        if self._full and self._sent and self._fits(2 * self._reserve):
            self._full = False
        return self._full

    @property
    def _end(self) -> int:
        """Position of the next frame."""
        return self._open_file().size + self._pending_bytes

    def _has_room(self, reserve: int) -> bool:
        size = self._open_file().size + self._pending_bytes
        return size - self._oldest_bytes <= self._max_bytes - reserve

    def _discard(self) -> None:
        """Discards the frames that are not complete."""
        pieces, self._pending_bytes, self._pending_frames = self._complete
        del self._pending[pieces:]

    def _open_file(self) -> AppendFile:
        if self._file is None:
            raise ClosedError(f"the journal {self.path} is not open")
        return self._file

    def _check_deleted(self, within_s: float) -> None:
        """Raises `OutputError` if the file was deleted. No further frames are written to it."""
        self._missing = self._missing or self._open_file().deleted(within_s)
        if self._missing:
            there = sum(closed.events.total() for closed in self._closed if not is_missing(closed.path))
            self.deleted_by_others = self.written - self.lost - self.deleted_oldest - there
            raise deleted_error(self.path, self.deleted_by_others)

    def _commit(self, sync: bool) -> None:
        """Writes all pending frames, or none. Within a group, they may wait."""
        self._earlier = self._complete[0] > 0
        self._complete = len(self._pending), self._pending_bytes, self._pending_frames
        if not self._grouping or sync or self._pending_bytes > GROUP_BYTES:
            self._write_pending(sync)

    def _write_pending(self, sync: bool) -> None:
        try:
            self._check_deleted(0.0 if sync else CHECK_INTERVAL_S)
            file = self._open_file()
            file.write(self._pending, sync)
            self._number += self._pending_frames
            self.end = file.size
            self.changed.notify_all()
        except BaseException:
            if self._earlier:
                # Frames of earlier calls are missing: their facts are written again, and positions do not hold.
                self.lost += self._unwritten.total()
                self._segment_events -= self._unwritten
                self._open_windows.clear()
                self._metadata = b""
                self._index = None
            raise
        finally:
            self._unwritten.clear()
            self._complete = (0, 0, 0)
            self._discard()
