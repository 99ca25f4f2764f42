"""The index of a journal: the position of each window's frames, and the columns of `stepscope windows`."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from stepscope.runtime.journal.format import FrameType
from stepscope.runtime.journal.frames import FrameReader
from stepscope.runtime.journal.records import EndRecord, IndexRecord, WindowRecord, decode_record

MAX_INDEXED = 1 << 19
"""A journal with more windows has no index: it would not fit a frame."""

ROW = struct.Struct("<12q?7x")
"""A closed window, the fields of `WindowRow`."""


class WindowRow(msgspec.Struct, frozen=True):
    """A row of the index, for one window."""

    window: int
    begin: int
    """Position where its frames begin."""
    end: int
    """Position where its frames end."""
    closed: int
    """Position of the frame that closes it."""
    events: int
    dropped: int
    start_ns: int
    end_ns: int
    wall_start_ns: int
    steps: int
    first_step: int
    last_step: int
    complete: bool


class JournalIndex:
    """The index of a journal that was closed normally."""

    def __init__(self, record: IndexRecord) -> None:
        self.metadata = record.metadata
        self.ledger = record.ledger
        self._rows = record.rows[: len(record.rows) // ROW.size * ROW.size]

    def windows(self) -> Iterator[WindowRow]:
        """All windows, in the order in which they were closed."""
        for values in ROW.iter_unpack(self._rows):
            yield WindowRow(*values)

    def find(self, window: int) -> WindowRow | None:
        """One window; `None` if the journal has no such window."""
        numbers = np.frombuffer(self._rows, "<i8")[:: ROW.size // 8]
        found = np.flatnonzero(numbers == window)
        if not len(found):
            return None
        values = ROW.unpack_from(self._rows, int(found[-1]) * ROW.size)
        return WindowRow(*values)


def read_index(frames: FrameReader) -> JournalIndex | None:
    """The index of a journal; `None` if it was not closed normally, or has none. Does not move the reader."""
    last = frames.last()
    end = None if last is None or last[0] != FrameType.END else decode_record(last[0], last[2])
    record = record_at(frames, end.index, FrameType.INDEX) if isinstance(end, EndRecord) else None
    return JournalIndex(record) if isinstance(record, IndexRecord) else None


def record_at(frames: FrameReader, at: int, kind: FrameType) -> Any:
    """The record of a frame at a position; `None` if there is no such frame of this type."""
    found = frames.frame_at(at) if at > 0 else None
    return None if found is None or found[0][0] != kind else decode_record(kind, found[0][2])


class IndexBuilder:
    """Builds the index while a journal is written, with 104 bytes per window."""

    def __init__(self) -> None:
        self.metadata = 0
        """Position of the last frame with the run's metadata."""
        self.ledger = 0
        """Position of the frame with the accounts of the run."""
        self._rows = bytearray()
        self._open: dict[int, tuple[int, int]] = {}
        """For each open window, the position of its first frame, and the number of its events so far."""

    def add_events(self, window: int, begin: int, events: int) -> None:
        """Adds frames of a window, which begin at a position."""
        first, before = self._open.get(window, (begin, 0))
        self._open[window] = first, before + events

    def close_window(self, record: WindowRecord, begin: int, end: int) -> None:
        """Adds the end of a window, whose frame has the positions `begin` to `end`."""
        first, events = self._open.pop(record.index, (begin, 0))
        dropped = sum(sum(source.dropped.values()) for source in record.ledger.sources.values())
        steps = np.frombuffer(record.steps, "<i8", record.step_count * 3)
        first_step, last_step = (int(steps[0]), int(steps[-3])) if len(steps) else (0, -1)
        if len(self._rows) < MAX_INDEXED * ROW.size:
            self._rows += ROW.pack(
                record.index,
                first,
                end,
                begin,
                events,
                dropped,
                record.start_ns,
                record.end_ns,
                record.wall_start_ns,
                record.step_count,
                first_step,
                last_step,
                record.complete,
            )

    def record(self) -> IndexRecord | None:
        """The index; `None` if it does not have all windows."""
        if self._open or len(self._rows) >= MAX_INDEXED * ROW.size:
            return None
        return IndexRecord(rows=bytes(self._rows), metadata=self.metadata, ledger=self.ledger)
