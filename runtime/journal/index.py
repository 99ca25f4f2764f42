"""The index of a journal: the position of each window's frames, and the columns of `stepscope windows`.

The writer appends an index frame about once a minute, and at the end. Each has the windows that were closed since the one before,
so that the index of a killed or running process lacks the last minute only, which readers scan.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.events.clock import now
from stepscope.runtime.events.intervals import FOREVER
from stepscope.runtime.events.record import Block, EventBatch, Kind, join_blocks
from stepscope.runtime.events.survey import Survey, of_kind
from stepscope.runtime.journal.format import FILE_HEADER, EventsHeader, FrameType, decode_events_header
from stepscope.runtime.journal.frame_reader import Damage, FrameReader
from stepscope.runtime.journal.records import (
    MAX_OPEN,
    STEP_BYTES,
    CapRecord,
    ClockSync,
    EndRecord,
    IndexRecord,
    Int64,
    RecoveredRecord,
    WindowOpened,
    WindowSoFar,
    decode_record,
)
from stepscope.runtime.session.note import JOURNAL
from stepscope.runtime.windows.open_window import STEPS
from stepscope.runtime.windows.window import Window

INTERVAL_NS = 60_000_000_000
MAX_EVENTS = 1 << 21
MAX_BYTES = 16 << 20
"""An index is due after this time, so many events, or so many bytes, whichever comes first."""
MIN_BYTES = 64 << 10
"""It is not due for the time alone if fewer bytes were written since the last one: to scan these is quicker than to find one more index,
of which a run with a small window each minute would have thousands."""
MAX_ROWS_BYTES = 256 << 10
"""It is due earlier if its rows and stretches would have more bytes than this: a message broker takes frames of 1 MiB, as a rule."""

MAX_SYNCS = 256
"""Comparisons of clocks in one index."""

MAX_INDEX_BYTES = 8 << 20
"""Limit of an index frame. Larger ones are neither written nor read: decoded, they take many times as much memory."""
_INDEX_OVERHEAD = 1 << 10
"""Bytes of memory that an index takes beside its frame."""
MAX_INDEXES = 1 << 17
"""Index frames of a journal that are read: those of months."""
_MAX_LEDGER_BYTES = 1 << 20
"""Limit of the accounts of a window that was scanned. Larger ones are not read."""
NO_STEPS = (0, 0, -1)
"""Entries of a window without steps: how many it has, and the numbers of the first and the last."""

STRETCH_BYTES = 64 << 10
"""Frames of a window that follow each other are one stretch in the index until they have so many bytes."""

ROW = struct.Struct("<12q?7x")
"""A closed window, the fields of `WindowRow`."""

STRETCH = struct.Struct("<7q")
"""The fields of `Stretch`."""

_PART_BYTES = 128 << 10

_SCANNED = frozenset({FrameType.WINDOW_OPENED, FrameType.CAP, FrameType.CLOCK_SYNC, FrameType.RECOVERED})
"""Types of small records that a scan decodes."""

_MOST = np.iinfo(np.int64).max


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


ROWS = np.dtype(
    [(name, "?" if name == "complete" else "<i8") for name in WindowRow.__struct_fields__] + [("padding", "V7")]
)
"""The same as `ROW` and `WindowRow`, for numpy."""

Rows = NDArray[np.void]
"""An array of `ROWS`."""


class Stretch(msgspec.Struct):
    """Frames of one window that follow each other, and the steps and times of their events."""

    window: int
    begin: int
    """Position where they begin."""
    end: int
    first_ns: int
    last_ns: int
    """Begin of the first event, and end of the last one."""
    first_step: int
    last_step: int
    """Numbers of steps; `last_step` is less if no event belongs to one."""

    def extend(self, following: Stretch) -> bool:
        """Adds the next frames. Returns false, and adds nothing, if they do not follow, or this is long enough."""
        if self.end != following.begin or self.end - self.begin >= STRETCH_BYTES:
            return False
        self.end = following.end
        self.first_ns, self.last_ns = min(self.first_ns, following.first_ns), max(self.last_ns, following.last_ns)
        self.first_step = min(self.first_step, following.first_step)
        self.last_step = max(self.last_step, following.last_step)
        return True


STRETCHES = np.dtype([(name, "<i8") for name in Stretch.__struct_fields__])
"""The same as `STRETCH` and `Stretch`, for numpy."""


class _Open:
    """An open window: its frames so far."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.first_ns = int(FOREVER)
        self.last_ns = 0
        self.events: Counter[str] = Counter()
        self.outline: dict[str, list[Block]] = {}
        """Step marks, gaps and spans of steps since the last index, by source."""
        self.stretches: list[Stretch] = []
        """Frames since the last index."""
        self.in_index = False
        """Whether an index has stretches of it."""

    @staticmethod
    def of(record: WindowSoFar) -> _Open:
        """Continues from an index."""
        made = _Open(record.begin)
        made.first_ns, made.last_ns, made.events = record.first_ns, record.last_ns, Counter(record.events)
        return made


class _WindowEnd(msgspec.Struct, frozen=True):
    """The fields of a `WindowRecord` that an index has. The others may be large."""

    index: Int64
    start_ns: Int64
    end_ns: Int64
    steps: bytes = b""
    complete: bool = False
    ledger: msgspec.Raw = msgspec.Raw(b"\x80")
    wall_start_ns: Int64 = 0

    def accounts(self) -> Ledger:
        """The window's accounts; empty if they are too large, or cannot be decoded."""
        found = decode_record(FrameType.LEDGER, bytes(self.ledger)) if len(self.ledger) <= _MAX_LEDGER_BYTES else None
        return Ledger() if found is None else found

    def numbers(self) -> NDArray[np.int64]:
        """Numbers of the window's steps."""
        return np.frombuffer(self.steps, "<i8", len(self.steps) // STEP_BYTES * 3)[::3]


_decode_window_end = msgspec.msgpack.Decoder(_WindowEnd).decode


class IndexBuilder:
    """Builds the index while a journal is written or scanned, with 104 bytes per window since the last index."""

    def __init__(self) -> None:
        self.metadata = 0
        """Position of the last frame with the run's metadata."""
        self.ledger = 0
        """Position of the frame with the accounts of the run."""
        self.recovered = 0
        """Position of the frame with which recovery began to append."""
        self.dropped = False
        """Whether the journal dropped events."""
        self.open: dict[int, _Open] = {}
        """Open windows, by number."""
        self.rows = bytearray()
        """Windows that were closed since the last index."""
        self.stretches = bytearray()
        """Stretches of these windows."""
        self._stretch_bytes = 0
        """Size of these stretches, and of those of open windows."""
        self.syncs: list[ClockSync] = []
        """Comparisons with other clocks since the last index."""
        self.before = 0
        """Position of the last index."""
        self._opened: dict[int, int] = {}
        """Positions of scanned frames that open windows, before the first events of these."""
        self._events = 0
        self._last = (now(), 0)
        """Time at which the last index was due, and size of the journal then."""

    @staticmethod
    def after(position: int, record: IndexRecord) -> IndexBuilder:
        """Continues after an index."""
        made = IndexBuilder()
        made.before = position
        made.metadata, made.ledger, made.recovered = record.metadata, record.ledger, record.recovered
        made.dropped = record.dropped
        made.open = {window.window: _Open.of(window) for window in record.open}
        return made

    def add_frame(self, header: EventsHeader, begin: int) -> None:
        """Adds an events frame that was scanned, unless more windows are open than an index can have."""
        if header.window not in self.open and len(self.open) >= MAX_OPEN:
            return
        window = self._of(header.window, begin)
        if header.count:
            window.first_ns = min(window.first_ns, header.first_ns)
            window.last_ns = max(window.last_ns, header.last_ns)
        window.events[header.source] += header.count

    def add_batch(self, batch: EventBatch, counts: Survey, begin: int, end: int) -> None:
        """Adds a batch that was written; its frames have the positions `begin` to `end`."""
        window = self._of(batch.window, begin)
        last_ns = max(counts.end_ns, counts.last_ns)  # a duration may be below 0, and counts as 0
        stretch = Stretch(batch.window, begin, end, counts.first_ns, last_ns, counts.first_step, counts.last_step)
        if not (window.stretches and window.stretches[-1].extend(stretch)):
            window.stretches.append(stretch)
            self._stretch_bytes += STRETCH.size
        window.first_ns = min(window.first_ns, counts.first_ns)
        window.last_ns = max(window.last_ns, counts.end_ns)
        window.events[batch.source] += counts.events
        self._events += counts.events
        if counts.steps or counts.gaps or batch.source == STEPS:
            outline = window.outline.setdefault(batch.source, [])
            if batch.source == STEPS:
                outline.append(batch.events)
            else:
                kinds = ((Kind.STEP, counts.steps), (Kind.GAP, counts.gaps))
                outline += [of_kind(batch.events, kind) for kind, count in kinds if count]

    def close_window(self, window: Window, begin: int, end: int) -> None:
        """Adds the end of a window, whose frame has the positions `begin` to `end`."""
        steps = (len(window.steps), window.steps[0].number, window.steps[-1].number) if window.steps else NO_STEPS
        self._close(window, window.ledger, steps, begin, end)

    def _close(
        self, window: Window | _WindowEnd, ledger: Ledger, steps: tuple[int, int, int], begin: int, end: int
    ) -> None:
        """Args: the window, its accounts, the number of its steps and those of the first and the last, and positions of its frame."""
        opened = self.open.pop(window.index, None) or _Open(begin)
        if opened.in_index or len(opened.stretches) > 1:
            self.stretches += _packed(opened.stretches)
        else:  # its row says as much
            self._stretch_bytes -= STRETCH.size * len(opened.stretches)
        output = ledger.outputs.get(JOURNAL)
        self.dropped |= output is not None and bool(output.dropped)
        self.rows += ROW.pack(
            window.index,
            opened.begin,
            end,
            begin,
            opened.events.total(),
            min(ledger.lost(JOURNAL).total(), _MOST),
            window.start_ns,
            window.end_ns,
            window.wall_start_ns,
            *steps,
            window.complete,
        )

    def add_record(self, kind: int, payload: bytes, begin: int, end: int) -> None:
        """Adds another frame that was scanned, with its position. Of records that may be large only what is needed is decoded."""
        if kind == FrameType.METADATA:
            self.metadata = begin
        elif kind == FrameType.LEDGER:
            self.ledger = begin
        elif kind == FrameType.WINDOW_CLOSED:
            with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):  # it is damaged
                window = _decode_window_end(payload)
                numbers = window.numbers()
                steps = (len(numbers), int(numbers[0]), int(numbers[-1])) if len(numbers) else NO_STEPS
                self._close(window, window.accounts(), steps, begin, end)
        elif kind in _SCANNED:
            self._add_small(decode_record(kind, payload), begin)

    def _add_small(self, record: Any, begin: int) -> None:
        if isinstance(record, WindowOpened):
            self._opened[record.index] = begin
        elif isinstance(record, RecoveredRecord):
            self.recovered = begin
        elif isinstance(record, CapRecord):
            self.dropped = True
        elif isinstance(record, ClockSync):
            self.add_sync(record)

    def add_sync(self, sync: ClockSync) -> None:
        if len(self.syncs) < MAX_SYNCS:
            self.syncs.append(sync)

    def _of(self, window: int, begin: int) -> _Open:
        if window not in self.open:
            self.open[window] = _Open(self._opened.pop(window, begin))
        return self.open[window]

    def is_due(self, size: int) -> bool:
        """Whether an index is due in a journal of so many bytes. If so, the next one is due an interval later."""
        at_ns, last_size = self._last
        is_large = self._events > MAX_EVENTS or size - last_size > MAX_BYTES or len(self.syncs) == MAX_SYNCS
        is_large = is_large or len(self.rows) + self._stretch_bytes > MAX_ROWS_BYTES
        due = is_large or (now() - at_ns > INTERVAL_NS and size - last_size >= MIN_BYTES)
        if due:
            self._last, self._events = (now(), size), 0
        return due

    def outlines(self) -> Iterator[EventBatch]:
        """Events of open windows since the last index that recovery needs: step marks, gaps and spans of steps."""
        for number, window in self.open.items():
            for source, blocks in window.outline.items():
                yield EventBatch(source, number, join_blocks(blocks), b"")

    def record(self, outlines: int) -> IndexRecord:
        """The index. Its outlines begin at this position."""
        windows = [
            WindowSoFar(number, window.begin, window.first_ns, window.last_ns, dict(window.events))
            for number, window in self.open.items()
        ]
        stretches = [window.stretches for window in self.open.values()]
        return IndexRecord(
            before=self.before,
            outlines=outlines,
            at_ns=now(),
            rows=memoryview(bytes(self.rows)),
            stretches=memoryview(bytes(self.stretches) + b"".join(map(_packed, stretches))),
            open=windows,
            metadata=self.metadata,
            ledger=self.ledger,
            recovered=self.recovered,
            dropped=self.dropped,
            syncs=list(self.syncs),
        )

    def begin_next(self, position: int) -> None:
        """The index was written at this position."""
        self.before = position
        self.rows.clear()
        self.stretches.clear()
        self.syncs.clear()
        for window in self.open.values():
            window.in_index |= bool(window.stretches)
            window.outline.clear()
            window.stretches.clear()
        self._stretch_bytes = 0


def _packed(stretches: Sequence[Stretch]) -> bytes:
    return b"".join(STRETCH.pack(*msgspec.structs.astuple(stretch)) for stretch in stretches)


class JournalIndex:
    """The whole index of a journal: its index frames, and what follows the last of them.

    Args:
        records: the index frames, with their positions.
        builder: continues after the last of them.
        first: position of the first frame of the journal; its older segments may have been deleted.
        begin: position of the first frame after the index frames.
        end: number and position of the frame after the last one.
        ended: whether the journal was closed normally.
        damage: after the last index frame.
    """

    def __init__(
        self,
        records: Sequence[tuple[int, IndexRecord]],
        builder: IndexBuilder,
        *,
        first: int,
        begin: int,
        end: tuple[int, int],
        ended: bool,
        damage: Damage,
    ) -> None:
        self.records = records
        self.builder = builder
        self.begin = begin
        self.end = end
        self.ended = ended
        self.damage = damage
        self._first = first

    @property
    def parts(self) -> list[Rows]:
        """All closed windows of which there is something, in the order in which they were closed, in arrays of some size."""
        stored: list[list[memoryview]] = [[]]
        size = 0
        for rows in (*(record.rows for _, record in self.records), memoryview(bytes(self.builder.rows))):
            if size > _PART_BYTES:
                stored.append([])
                size = 0
            stored[-1].append(rows[: len(rows) // ROW.size * ROW.size])
            size += len(rows)
        joined = (part[0] if len(part) == 1 else b"".join(part) for part in stored)
        return [self._present(np.frombuffer(rows, ROWS)) for rows in joined]

    def _present(self, rows: Rows) -> Rows:
        if int(rows["begin"].min(initial=self._first)) >= self._first:
            return rows
        rows = rows[rows["end"] > self._first].copy()
        cut = rows["begin"] < self._first
        rows["begin"][cut], rows["complete"][cut] = self._first, False
        return rows

    def windows(self) -> Iterator[WindowRow]:
        """The same, one by one."""
        return (row for part in self.parts for row in rows_of(part))

    def find(self, window: int) -> WindowRow | None:
        """One closed window; `None` if the journal has no such window."""
        found = [part[part["window"] == window] for part in self.parts]
        return next(rows_of(np.concatenate(found)[-1:]), None)

    def without(self, row: np.void, steps: tuple[int, int], times: tuple[int, int]) -> list[tuple[int, int]]:
        """Positions of frames of a window, from and to, that have no event of some steps, and none in an interval.

        Args:
            row: of the window, from `parts`.
            steps: numbers of the first and the last step.
            times: begin and end of the interval, in ns.
        """
        window, begin, end = (int(row[name]) for name in ("window", "begin", "end"))
        found: list[tuple[int, int]] = []
        for _, record in self.records[bisect_right(self.records, begin, key=itemgetter(0)) :]:
            if record.before >= end:
                break  # its frames, and those of later indexes, are behind the window
            stored = record.stretches[: len(record.stretches) // STRETCH.size * STRETCH.size]
            rows = np.frombuffer(stored, STRETCHES)
            of_steps = (rows["first_step"] <= steps[1]) & (rows["last_step"] >= steps[0])
            in_time = (rows["first_ns"] <= times[1]) & (rows["last_ns"] >= times[0])
            others = rows[(rows["window"] == window) & ~of_steps & ~in_time]
            found += zip(others["begin"].tolist(), others["end"].tolist(), strict=True)
        return found


def rows_of(rows: Rows) -> Iterator[WindowRow]:
    """Rows of an array, one by one."""
    return (WindowRow(*values[:-1]) for values in rows.tolist())


def read_index(frames: FrameReader, on_sync: Callable[[ClockSync], object] | None = None) -> JournalIndex | None:
    """The index of a journal. Frames after the last index frame are scanned. Does not move the reader.

    Args:
        frames: a reader of the journal. Segments may be missing.
        on_sync: called with each comparison with another clock, in their order; default: the index has them.

    Returns:
        `None` if there is no index frame, as in a short journal, or if it does not have all windows.
    """
    records = index_records(frames, gaps=True)
    if not records:
        return None
    if on_sync is not None:
        for sync in (sync for _, record in records for sync in record.syncs):
            on_sync(sync)
    index = scan(frames, records, on_sync=on_sync)
    for at, ((position, record), (_, following)) in enumerate(pairwise(records)):
        if following.before != position:
            # The ends of windows that were open here may be in a segment that is missing.
            later = [*(bytes(record.rows) for _, record in records[at + 1 :]), bytes(index.builder.rows)]
            closed = {row[0] for rows in later for row in ROW.iter_unpack(rows[: len(rows) // ROW.size * ROW.size])}
            for window in record.open:
                if window.window not in closed:
                    index.builder.open.setdefault(window.window, _Open.of(window))
    return index


class IndexFrame(NamedTuple):
    """An index of a journal."""

    position: int
    number: int
    """Number of the frame."""
    end: int
    """Position of the next frame."""
    record: IndexRecord


def index_records(frames: FrameReader, *, gaps: bool = False) -> list[tuple[int, IndexRecord]]:
    """The records of `index_frames`, with their positions."""
    return [(found.position, found.record) for found in index_frames(frames, gaps=gaps)]


def index_frames(frames: FrameReader, *, gaps: bool = False, most_bytes: int = sys.maxsize) -> list[IndexFrame]:
    """The index frames of a journal, in order; none if one of them is missing or damaged, if there are more than `MAX_INDEXES`, or if
    the journal was closed with more windows than they have.

    Args:
        frames: a reader of the journal.
        gaps: accept that segments are missing, with their index frames.
        most_bytes: memory for them; of more, the older ones are left out.
    """
    last = frames.last()
    end = None if last is None or last[0] != FrameType.END else decode_record(last[0], last[2])
    windows: int | None = None
    """How many rows there must be, if that is known."""
    if isinstance(end, EndRecord):
        at = end.index
        windows = end.windows if frames.files.begin == FILE_HEADER.size else None
    else:
        at = frames.find_last(FrameType.INDEX)
    found: list[IndexFrame] = []
    nbytes = 0
    while at >= frames.files.begin and len(found) <= MAX_INDEXES:
        index = _index_at(frames, at)
        if index is None and gaps and (missing := frames.files.end_before(at)) is not None:
            index, windows = _index_at(frames, frames.find_last(FrameType.INDEX, missing)), None
            index = index if index is not None and index.end == missing else None
        if index is None or (found and index.position >= found[-1].position):
            return []
        nbytes += index.end - index.position + _INDEX_OVERHEAD
        if nbytes > most_bytes:
            return found[::-1]
        found.append(index)
        at = index.record.before
    if len(found) > MAX_INDEXES:
        return []
    if windows is not None and sum(len(index.record.rows) // ROW.size for index in found) != windows:
        return []
    return found[::-1]


def _index_at(frames: FrameReader, at: int) -> IndexFrame | None:
    found = frames.frame_at(at) if at > 0 else None
    if found is None or found[0][0] != FrameType.INDEX or len(found[0][2]) > MAX_INDEX_BYTES:
        return None
    record = decode_record(FrameType.INDEX, found[0][2])
    return IndexFrame(at, found[1], found[2], record) if isinstance(record, IndexRecord) else None


def record_at(frames: FrameReader, at: int, kind: FrameType) -> Any:
    """The record of a frame at a position; `None` if there is no such frame of this type."""
    found = frames.frame_at(at) if at > 0 else None
    return None if found is None or found[0][0] != kind else decode_record(kind, found[0][2])


def scan(
    frames: FrameReader,
    records: Sequence[tuple[int, IndexRecord]] = (),
    *,
    own: bool = False,
    on_sync: Callable[[ClockSync], object] | None = None,
) -> JournalIndex:
    """Reads the rest of a journal after its index frames, without its events. Does not move the reader.

    Args:
        frames: a reader of the journal.
        records: its first index frames, with their positions.
        own: end with the run's own frames, before those that recovery appended.
        on_sync: called with each comparison with another clock; default: the index has the first `MAX_SYNCS`.
    """
    builder = IndexBuilder.after(*records[-1]) if records else IndexBuilder()
    tail = frames.copy()
    if not (records and tail.resume_after(builder.before)):
        tail.restart()
    begin, ended = tail.position[1], False

    def skipped(beginning: bytes) -> bool:
        header = decode_events_header(beginning)
        if header is not None:
            builder.add_frame(header[0], tail.head[0])
        return True

    end = tail.position
    while (frame := tail.next(skipped)) is not None:
        kind, _, payload = frame
        if own and kind == FrameType.RECOVERED:
            break
        ended |= kind == FrameType.END
        if kind == FrameType.CLOCK_SYNC and on_sync is not None:
            sync = decode_record(kind, payload)
            if isinstance(sync, ClockSync):
                on_sync(sync)
        else:
            builder.add_record(kind, payload, tail.head[0], tail.position[1])
        end = tail.position
    else:
        end = tail.position
    return JournalIndex(
        records, builder, first=frames.files.begin, begin=begin, end=end, ended=ended, damage=tail.damage
    )
