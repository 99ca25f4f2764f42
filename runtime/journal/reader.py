"""Reads a journal, which may be damaged or still growing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import records as records
from stepscope.runtime.journal.frame_reader import Damage, FrameReader
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.journal.index import JournalIndex, Rows, index_records, read_index, record_at, scan
from stepscope.runtime.windows.window import Window

OF_WINDOWS = (fmt.FrameType.EVENTS, fmt.FrameType.WINDOW_OPENED, fmt.FrameType.WINDOW_CLOSED)
"""Frames that belong to a window."""

JournalItem = (
    records.RunRecord
    | EventBatch
    | ClockAnchor
    | records.MetadataRecord
    | records.WindowOpened
    | Window
    | Ledger
    | records.CapRecord
    | records.EndRecord
    | records.ClockSync
    | records.RecoveredRecord
)
"""An item that a reader yields."""


class JournalReader:
    """Iterates once over the items of a journal, in the order in which they were written.

    Names, categories, argument keys and tracks have ids of this process. The checksum of every frame is checked. Memory is
    bounded by the largest frame (64 MiB) and the limits of the tables. A torn end stops the iteration; a later iteration
    continues there if the file has grown. One thread at a time may use it.

    Args:
        path: the file.
        ids: known ids of the writing process, if any.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is not a journal, or one of a newer version.
    """

    run: records.RunRecord | None = None
    """The run record, which is read when the file is opened; `None` if that frame is damaged or not written yet."""
    metadata: dict[str, Any]
    """The metadata of the run, from the last such frame so far."""
    ledger: Ledger = Ledger()
    """The accounts of the run, from the last such frame so far."""
    end: records.EndRecord | None = None
    """The end record of a journal that was closed normally, once it was read."""
    recovered: records.RecoveredRecord | None = None
    """The record with which recovery began to append, once it was read."""

    def __init__(self, path: str | os.PathLike[str], ids: IdMap | None = None) -> None:
        self.path = Path(path)
        self.metadata = {}
        self._ids = ids or IdMap()
        self.frames = FrameReader(self.path)
        """The frames of the file, from which this reads."""
        self._end_position = (0, 0)
        first = self.frames.peek()
        if first is not None and first[0] == fmt.FrameType.RUN:
            self.run = records.decode_record(fmt.FrameType.RUN, first[2])

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self.frames.close()

    @property
    def damage(self) -> Damage:
        """Damage so far."""
        return self.frames.damage

    def __iter__(self) -> Iterator[JournalItem]:
        return self.items()

    @property
    def end_position(self) -> tuple[int, int]:
        """(number, position) of the end record of the run itself, or where it would be."""
        return self.frames.position if self.end is None and self.recovered is None else self._end_position

    def index(self) -> JournalIndex | None:
        """The index of the journal; `None` if it has none."""
        return read_index(self.frames)

    def own_index(self) -> JournalIndex:
        """The index of the frames of the run itself, before those that recovery appended. Without index frames, all of the journal is
        scanned."""
        own = [(position, record) for position, record in index_records(self.frames) if not record.recovered]
        return scan(self.frames, own, own=True)

    def continue_at(self, position: int, index: JournalIndex) -> bool:
        """Moves to a frame, which an index names, and reads the run's metadata and accounts up to that index.

        Returns:
            False, without moving, if no frame begins there.
        """
        found = self.frames.frame_at(position)
        number = index.end[0] if position == index.end[1] else None if found is None else found[1]
        if number is None:
            return False
        metadata = record_at(self.frames, index.builder.metadata, fmt.FrameType.METADATA)
        self.metadata = metadata.values if isinstance(metadata, records.MetadataRecord) else self.metadata
        ledger = record_at(self.frames, index.builder.ledger, fmt.FrameType.LEDGER)
        self.ledger = ledger if isinstance(ledger, Ledger) else self.ledger
        self.frames.resume(number, position)
        return True

    def outlines(self, record: records.IndexRecord, position: int) -> Iterator[EventBatch]:
        """The outlines of an index with this position: step marks, gaps and spans of steps of windows that were open."""
        at = record.outlines
        while 0 < at < position and (found := self.frames.frame_at(at)) is not None:
            (kind, flags, payload), _, at = found
            batch = self._batch(flags, payload) if kind == fmt.FrameType.OUTLINE else None
            if batch is not None:
                yield batch

    def window_at(self, position: int) -> Window | None:
        """The window whose end is the frame at a position, as an index names it; `None` if no such frame begins there."""
        record = record_at(self.frames, position, fmt.FrameType.WINDOW_CLOSED)
        return record.window() if isinstance(record, records.WindowRecord) else None

    def batches(self, rows: Rows, without: Sequence[tuple[int, int]] = ()) -> Iterator[EventBatch]:
        """The events of some windows. Frames before, between and after these windows are not read.

        Args:
            rows: of these windows, from an index. If no frame begins where one of them says, all of the journal is read.
            without: frames of these windows that are not read either, as positions from and to.
        """
        windows = {*rows["window"].tolist()}
        spans: list[tuple[int, int]] = []
        for begin, end in sorted(zip(map(self._present, rows["begin"].tolist()), rows["end"].tolist(), strict=True)):
            if begin >= end:
                continue  # nothing of it is left
            if spans and begin <= spans[-1][1]:
                begin, end = spans[-1][0], max(spans.pop()[1], end)
            spans.append((begin, end))
        spans = _difference(spans, sorted(without))
        found = [self.frames.frame_at(begin) for begin, _ in spans]
        numbers = [frame[1] for frame in found if frame is not None]
        if len(numbers) < len(spans):
            self.frames.restart()
            spans, numbers = [(self.frames.position[1], self.frames.files.end)], [self.frames.position[0]]

        def skipped(beginning: bytes) -> bool:
            header = fmt.decode_events_header(beginning)
            return header is not None and header[0].window not in windows

        for (begin, end), number in zip(spans, numbers, strict=True):
            self.frames.resume(number, begin)
            while self.frames.position[1] < end and (frame := self.frames.next(skipped)) is not None:
                batch = self._batch(frame[1], frame[2]) if frame[0] == fmt.FrameType.EVENTS else None
                if batch is not None:
                    yield batch

    def _present(self, position: int) -> int:
        """The first position from this one on that is not in a missing segment."""
        files = self.frames.files
        return position if files.end_before(position) is None else files.next_begin(position) or files.end

    def _go_to_window(self, window: int) -> int | None:
        """Moves to the first frame of a window. Returns the end of its last frame; `None` = the end of the journal."""
        index = self.index()
        row = None if index is None else index.find(window)
        if row is not None and index is not None and self.continue_at(row.begin, index):
            return row.end
        if row is None and index is not None:
            begun = index.builder.open.get(window)
            self.continue_at(index.end[1] if begun is None else begun.begin, index)
        return None

    def items(
        self, window: int | None = None, wanted: Callable[[fmt.EventsHeader], bool] | None = None
    ) -> Iterator[JournalItem]:
        """Continues the iteration.

        Args:
            window: skip events, begins and ends of other windows. At the beginning of a journal with an index, only the frames of
                the window, the last metadata and accounts, and what follows the last index frame are read.
            wanted: called with the header of each events frame. If it returns false, the frame is skipped without reading it.
        """

        def skipped(beginning: bytes) -> bool:
            found = fmt.decode_events_header(beginning)
            if found is None:
                return False
            header = found[0]
            return (window is not None and header.window != window) or (wanted is not None and not wanted(header))

        begun = self.frames.position[1] > self.frames.files.begin
        stop = None if window is None or begun else self._go_to_window(window)
        passed = None if window is None and wanted is None else skipped
        while stop is None or self.frames.position[1] < stop:
            frame = self.frames.next(passed)
            if frame is None:
                break
            if stop is not None and frame[0] not in OF_WINDOWS:
                continue  # later metadata were read already
            item = self._decode(*frame)
            if item is not None and not (window is not None and _other_window(item, window)):
                yield item

    def _decode(self, kind: int, flags: int, payload: bytes) -> JournalItem | None:
        if kind == fmt.FrameType.EVENTS:
            return self._batch(flags, payload)
        if kind == fmt.FrameType.OUTLINE:
            return None  # its events are in other frames
        if not records.is_known(kind):
            return None
        record = records.decode_record(kind, payload)
        if record is None:
            self.frames.count_undecodable()
        else:
            return self._note(record)
        return None

    def _note(self, record: Any) -> JournalItem | None:
        if isinstance(record, records.WindowRecord):
            return record.window()
        if isinstance(record, records.RunRecord):
            self.run = record
        elif isinstance(record, records.MetadataRecord):
            self.metadata = record.values
        elif isinstance(record, Ledger):
            self.ledger = record
        elif isinstance(record, records.IndexRecord):
            return None
        elif isinstance(record, records.EndRecord | records.RecoveredRecord):
            at, number, _ = self.frames.head
            if self.recovered is None:
                self._end_position = number, at
            if isinstance(record, records.EndRecord):
                self.end = record
            else:
                self.recovered = record
        item: JournalItem = record
        return item

    def _batch(self, flags: int, payload: bytes) -> EventBatch | None:
        found = fmt.decode_columns(payload, flags, self._ids)
        if found is None:
            self.frames.count_undecodable()
            return None
        header, events, args = found
        events.flags.writeable = False
        return EventBatch(header.source, header.window, events, args)


def _difference(spans: Sequence[tuple[int, int]], without: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of sorted, disjoint spans that lie outside of others, which are sorted, too. One of these that ends before it begins, as
    a damaged index may have it, has nothing in it."""
    parts: list[tuple[int, int]] = []
    at = 0
    for begin, end in spans:
        while at < len(without) and without[at][0] < end:
            if without[at][0] > begin:
                parts.append((begin, without[at][0]))
            begin = max(begin, *without[at])
            if begin >= end:
                break  # it may reach into the next span
            at += 1
        if begin < end:
            parts.append((begin, end))
    return parts


def _other_window(item: JournalItem, window: int) -> bool:
    return isinstance(item, records.WindowOpened | Window) and item.index != window
