"""Reads a journal, whole, damaged or still being written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import Block, EventBatch
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import given_up
from stepscope.runtime.journal import records as records
from stepscope.runtime.journal.columns import ColumnDecoder
from stepscope.runtime.journal.frames import Damage, FrameReader
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.journal.index import JournalIndex, read_index, record_at
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
"""What iterating over a reader yields."""


class JournalReader:
    """Iterates once over the items of a journal, in the order in which they were written.

    Names, categories, argument keys and tracks come as ids of this process's tables. Every frame is checked
    against its checksum before anything in it is believed; memory is bounded by the largest frame (64 MiB) and
    the tables' bounds, whatever the file contains. A torn tail ends the iteration; iterating again later goes
    on from there, if the file has grown. Not safe for use by two threads at once.

    Args:
        path: the file.
        ids: what is known of the writing process's ids from elsewhere.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is not a journal, or one of a newer version.
    """

    run: records.RunRecord | None = None
    """Whose journal it is; read ahead when the file is opened, `None` if that frame is damaged or not there yet."""
    metadata: dict[str, Any]
    """The run's metadata, as the last metadata frame read so far has it."""
    ledger: Ledger = Ledger()
    """The run's accounts, as the last frame of them read so far has them."""
    end: records.EndRecord | None = None
    """The last frame of a journal that was closed in order, once it was read."""
    recovered: records.RecoveredRecord | None = None
    """Where recovery began to append, once it was read."""
    discarded = 0
    """Events that were taken out afterwards, to free the disk; no damage."""
    unknown_frames = 0
    """Frames of types that this version does not know, skipped; no damage."""

    def __init__(self, path: str | os.PathLike[str], ids: IdMap | None = None) -> None:
        self.path = Path(path)
        self.metadata = {}
        self._ids = ids or IdMap()
        self._columns = ColumnDecoder(self._ids)
        self._frames = FrameReader(self.path)
        self._end_position = (0, 0)
        first = self._frames.peek()
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
        self._frames.close()

    @property
    def damage(self) -> Damage:
        """What could not be used, of what was read so far."""
        return msgspec.structs.replace(
            self._frames.damage, lost_names=self._ids.lost_names, lost_arguments=self._ids.lost_arguments
        )

    def __iter__(self) -> Iterator[JournalItem]:
        return self.items()

    @property
    def sync_word(self) -> bytes | None:
        """The mark at the beginning of the file's frames, if it is known."""
        return self._frames.sync_word

    @property
    def position(self) -> tuple[int, int]:
        """(number of the next frame, byte where it begins), after the whole frames that were read."""
        return self._frames.position

    @property
    def end_position(self) -> tuple[int, int]:
        """The same of the frame that ends what the run itself wrote, or of the one that would."""
        return self.position if self.end is None and self.recovered is None else self._end_position

    def index(self) -> JournalIndex | None:
        """The index of a journal that was closed in order; `None` if it has none."""
        return read_index(self._frames)

    def _seek(self, window: int, index: JournalIndex) -> int | None:
        """Goes to the first frame of a window. Returns where its last one ends; 0: there is no such window; `None`: the frame is
        not there."""
        metadata = record_at(self._frames, index.metadata, fmt.FrameType.METADATA)
        self.metadata = metadata.values if isinstance(metadata, records.MetadataRecord) else self.metadata
        ledger = record_at(self._frames, index.ledger, fmt.FrameType.LEDGER)
        self.ledger = ledger if isinstance(ledger, Ledger) else self.ledger
        row = index.find(window)
        if row is None:
            return 0
        found = self._frames.frame_at(row.begin)
        if found is None:
            return None
        self._frames.resume(found[1], row.begin)
        return row.end

    def items(
        self, window: int | None = None, wanted: Callable[[fmt.EventsHeader], bool] | None = None
    ) -> Iterator[JournalItem]:
        """Goes on through the journal.

        Args:
            window: events, beginnings and ends of other windows are skipped without being read. At the beginning of a journal
                that has an index, only the frames of the window are looked at, and the last metadata and accounts.
            wanted: is shown what each frame of events says of itself; the frame is skipped, unread, unless it says so.
        """

        def skipped(beginning: bytes) -> bool:
            found = fmt.decode_events_header(beginning)
            if found is None:
                return False
            header = found[0]
            return (window is not None and header.window != window) or (wanted is not None and not wanted(header))

        at_beginning = self._frames.position == (0, fmt.FILE_HEADER.size)
        index = self.index() if window is not None and at_beginning else None
        stop = None if window is None or index is None else self._seek(window, index)
        passed = None if window is None and wanted is None else skipped
        while stop is None or self._frames.position[1] < stop:
            frame = self._frames.next(passed)
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
        if kind in given_up.KINDS:
            try:
                self.discarded += given_up.decode(kind, payload).total
            except FormatError:
                self._frames.count_undecodable()
            return None
        if not records.is_known(kind):
            self.unknown_frames += 1
            return None
        record = records.decode_record(kind, payload)
        if record is None:
            self._frames.count_undecodable()
        elif kind == fmt.FrameType.STRINGS:
            self._ids.add_strings(record)
        elif kind == fmt.FrameType.TRACKS:
            self._ids.add_tracks(record)
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
            at, number, _ = self._frames.head
            if self.recovered is None:
                self._end_position = number, at
            if isinstance(record, records.EndRecord):
                self.end = record
            else:
                self.recovered = record
        item: JournalItem = record
        return item

    def _batch(self, flags: int, payload: bytes) -> EventBatch | None:
        if flags & fmt.COLUMNS:
            found = fmt.decode_columns(payload, flags, self._columns)
            if found is not None:
                return self._read_only(*found)
        elif (decoded := fmt.decode_events(payload, flags)) is not None:
            header, events, args = decoded
            self._ids.localise(events, args)
            return self._read_only(header, events, bytes(args))
        self._frames.count_undecodable()
        return None

    def _read_only(self, header: fmt.EventsHeader, events: Block, args: bytes) -> EventBatch:
        events.flags.writeable = False
        return EventBatch(header.source, header.window, events, args)


def _other_window(item: JournalItem, window: int) -> bool:
    return isinstance(item, records.WindowOpened | Window) and item.index != window
