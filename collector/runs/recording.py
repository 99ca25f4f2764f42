"""What a stream holds, found without reading its events."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepscope.collector.runs.evicted import damage_without, read_evicted
from stepscope.exporters.stream.protocol import identity
from stepscope.runtime.accounting.ledger import Ledger, sum_ledgers
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import Damage, FrameReader
from stepscope.runtime.journal.index import JournalIndex, read_index
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import (
    ClockSync,
    MetadataRecord,
    RunRecord,
    WindowRecord,
    decode_record,
    is_known,
)
from stepscope.runtime.journal.replay import UnfinishedWindow, run_of
from stepscope.runtime.journal.segments import first_names
from stepscope.runtime.windows.window import Step, Window

MAX_STREAMS = 65_536
"""More are not looked for below a directory."""
MAX_SYNCS = 1 << 13
"""Round trips of one stream that are kept; of a longer run the quickest of every 2, 4, 8, ... in a row."""
_FAR = 1 << 61
"""ns, 73 years: no clock shows more, not even Unix time, and sums of such times fit."""
MAX_UNFINISHED = 64
"""Windows without an end that are looked into; a stream that was written in order has one or two."""
_STREAM = re.compile("[0-9a-f]{32}")


class Recording(msgspec.Struct, kw_only=True):
    """One stream. Times are ns of its own monotonic clock."""

    id: str
    """Of the stream, where it is known; else the path of its file below the directory, as far as it tells streams apart."""
    path: Path
    run: RunRecord
    anchor: ClockAnchor
    """The last reading of its wall clock."""
    syncs: list[ClockSync]
    windows: dict[int, Window]
    """By index. Those that have no end are incomplete, and end with their last event."""
    counts: dict[int, int]
    """Events by window."""
    first_ns: int
    last_ns: int
    """Of its events; of the anchor, if it has none."""
    ended: bool
    recovered: bool
    """Whether its process was killed and `stepscope recover` completed it."""
    """Whether it was closed in order."""
    damage: Damage
    metadata: dict[str, Any]
    """What was added to the run, as it was at the end."""
    ledger: Ledger
    """The accounts of the run. If it could not say them before it ended, those of its windows, added up."""
    discarded: int
    """Events that a collector evicted, for want of room."""
    stream: str
    """Id of the stream, where it lies as a collector keeps it; else empty."""
    index: JournalIndex | None
    """Its windows, if its run was closed in order."""

    @property
    def directory(self) -> Path:
        """Of the collector that keeps it, if `stream` is known."""
        return self.path.absolute().parent.parent.parent

    @property
    def process(self) -> RunRecord:
        """What is the same in all recordings of its run, and in no other."""
        return identity(self.run)

    @property
    def events(self) -> int:
        """Events in all windows."""
        return sum(self.counts.values())

    @classmethod
    def of(cls, path: Path, id: str, only: Collection[int] | None = None) -> Recording:
        """Reads what a journal says of itself; events are passed over, but for those of windows without an end.

        Memory does not depend on the file's size, but for windows and round trips.

        Args:
            path: the journal.
            id: of the recording.
            only: numbers of the windows that are wanted; default: all. Of a journal that has an index, only that and these
                windows are read.

        Raises:
            OSError: if it cannot be opened.
            FormatError: if it is no journal, or does not say whose it is.
        """
        scan = _Scan()
        reader = FrameReader(path, follow=False)
        try:
            index = None if only is None else read_index(reader)
            if only is not None and index is not None and scan.take_indexed(reader, index, only):
                damage = index.damage
            else:
                while (frame := reader.next(scan.passes)) is not None:
                    scan.take(frame[0], frame[2])
                evicted = read_evicted(path) if stream_of(path) else []
                scan.discarded = sum(one.total for one in evicted)
                damage, index = damage_without(reader, evicted), None
        finally:
            reader.close()
        run = scan.run
        if run is None:
            raise FormatError(f"{path} does not say whose journal it is: its beginning is missing")
        unknown = set(scan.counts) if index is None else {one for one in index.builder.open if not only or one in only}
        without_end = sorted(unknown - set(scan.windows))[:MAX_UNFINISHED]
        windows = {**scan.windows, **{index: _unfinished(path, index) for index in without_end}}
        run = msgspec.structs.replace(run, anchor=_sane_anchor(run.anchor))
        anchor = _sane_anchor(scan.anchor or run.anchor)
        spans = scan.spans or [(anchor.monotonic_ns, anchor.monotonic_ns)]
        return cls(
            id=id,
            path=path,
            run=run,
            anchor=anchor,
            syncs=scan.syncs,
            windows={index: _sane_window(window) for index, window in windows.items()},
            counts=scan.counts,
            first_ns=_sane(min(first for first, _ in spans)),
            last_ns=_sane(max(last for _, last in spans)),
            ended=scan.ended,
            recovered=scan.recovered,
            damage=damage,
            metadata=scan.metadata,
            ledger=scan.ledger or sum_ledgers(window.ledger for window in windows.values()),
            discarded=scan.discarded,
            stream=stream_of(path),
            index=index,
        )


class _ClockSamples:
    """Round trips of a run of any length in bounded memory, about evenly over the run."""

    def __init__(self) -> None:
        self._kept: list[ClockSync] = []
        self._group: list[ClockSync] = []
        """The newest, of which one will be kept."""
        self._group_size = 1

    def add(self, sync: ClockSync) -> None:
        """The next one."""
        if self._group and self._group[0].clock != sync.clock:
            self._close_group()
        self._group.append(sync)
        if len(self._group) >= self._group_size:
            self._close_group()

    def kept(self) -> list[ClockSync]:
        """What is kept of them."""
        return [*self._kept, *([_quickest(self._group)] if self._group else [])][:MAX_SYNCS]

    def _close_group(self) -> None:
        if len(self._kept) < MAX_SYNCS:  # else they are of ever other clocks, and cannot be thinned
            self._kept.append(_quickest(self._group))
        self._group.clear()
        if len(self._kept) == MAX_SYNCS and self._group_size < MAX_SYNCS:
            self._group_size *= 2
            self._kept = list(_halved(self._kept))


def _halved(syncs: list[ClockSync]) -> Iterator[ClockSync]:
    """The quicker of two neighbours that were of one clock."""
    at = 0
    while at < len(syncs):
        pair = [sync for sync in syncs[at : at + 2] if sync.clock == syncs[at].clock]
        yield _quickest(pair)
        at += len(pair)


def _quickest(syncs: list[ClockSync]) -> ClockSync:
    """That with the shortest way, which bounds the clock best; one that contradicts itself only if all do."""

    def way(sync: ClockSync) -> float:
        ns = (sync.returned - sync.sent) - (sync.answered - sync.arrived)
        return ns if ns >= 0 else math.inf

    return min(syncs, key=way)


def _sane(at: int) -> int:
    """A time that can be reckoned with: what no clock shows is the nearest that one might."""
    return max(-_FAR, min(at, _FAR))


def _sane_anchor(anchor: ClockAnchor) -> ClockAnchor:
    return ClockAnchor(_sane(anchor.monotonic_ns), _sane(anchor.wall_ns), _sane(anchor.error_ns))


def _sane_window(window: Window) -> Window:
    return msgspec.structs.replace(
        window,
        start_ns=_sane(window.start_ns),
        end_ns=_sane(window.end_ns),
        steps=tuple(Step(step.number, _sane(step.start_ns), _sane(step.end_ns)) for step in window.steps),
    )


class _Scan:
    """Collects what frames say."""

    def __init__(self) -> None:
        self.run: RunRecord | None = None
        self.anchor: ClockAnchor | None = None
        self._samples = _ClockSamples()
        self.windows: dict[int, Window] = {}
        self.counts: dict[int, int] = {}
        self.spans: list[tuple[int, int]] = []
        self.ended = self.recovered = False
        self.metadata: dict[str, Any] = {}
        self.ledger: Ledger | None = None
        self.discarded = 0

    def passes(self, beginning: bytes) -> bool:
        """Notes what the beginning of an events frame says."""
        found = fmt.decode_events_header(beginning)
        if found is not None and found[0].count:
            header = found[0]
            self.counts[header.window] = self.counts.get(header.window, 0) + header.count
            span = (header.first_ns, header.last_ns)
            known = self.spans.pop() if self.spans else span
            self.spans.append((min(known[0], span[0]), max(known[1], span[1])))
        return True

    @property
    def syncs(self) -> list[ClockSync]:
        """Round trips, in the order of the file."""
        return self._samples.kept()

    def take(self, kind: int, payload: bytes) -> None:
        """Notes what any other frame says; those of tables are of no interest here."""
        if not is_known(kind):
            return
        record = decode_record(kind, payload)
        if isinstance(record, RunRecord):
            self.run = record
        elif isinstance(record, ClockAnchor):
            self.anchor = record
        elif isinstance(record, ClockSync):
            self._samples.add(record)
        elif isinstance(record, WindowRecord):
            self.windows[record.index] = record.window()
        elif isinstance(record, MetadataRecord):
            self.metadata = record.values
        elif isinstance(record, Ledger):
            self.ledger = record
        elif kind == fmt.FrameType.END:
            self.ended = True
        elif kind == fmt.FrameType.RECOVERED:
            self.recovered = True

    def take_indexed(self, reader: FrameReader, index: JournalIndex, only: Collection[int]) -> bool:
        """Notes what the index leads to: the run, its last metadata and accounts, and these windows. False, and nothing is noted:
        the index leads elsewhere, or names no such window."""
        rows = [index.find(window) for window in only]
        ends = [None if row is None else reader.frame_at(row.closed) for row in rows]
        first = reader.peek()
        if first is None or any(end is None or end[0][0] != fmt.FrameType.WINDOW_CLOSED for end in ends):
            return False
        others = [reader.frame_at(at) for at in (index.builder.metadata, index.builder.ledger) if at]
        for frame in (first, *(found[0] for found in (*others, *ends) if found is not None)):
            self.take(frame[0], frame[2])
        # The counts of all windows tell copies of a run from its other parts.
        for row in index.windows():
            if row.events:
                self.counts[row.window] = row.events
                self.spans.append((row.start_ns, row.end_ns))
        for number, window in index.builder.open.items():
            self.counts[number] = window.events.total()
            self.spans.append((window.first_ns, window.last_ns))
        for sync in index.syncs():
            self._samples.add(sync)
        self.ended, self.recovered = index.ended, bool(index.builder.recovered)
        return True


def _unfinished(path: Path, index: int) -> Window:
    """A window that has no end, as its events tell it."""
    with JournalReader(path) as reader:
        window = UnfinishedWindow(index)
        for item in reader.items(index):
            if isinstance(item, EventBatch):
                window.add(item)
        return window.close(run_of(reader, path.parent))


def stream_of(path: Path) -> str:
    """The id of a stream whose file lies as a collector keeps it, else empty."""
    return path.parent.name if path.name == "journal" and _STREAM.fullmatch(path.parent.name) else ""


def recordings_in(
    sources: Sequence[Path], without: Collection[Path] = (), only: Collection[int] | None = None
) -> tuple[list[Recording], list[str]]:
    """Journals, and all those below directories such as a collector's; and why others cannot be used.

    Links below directories are not followed. A file that cannot be used, whatever is in it, costs the others nothing.

    Args:
        sources: journals and directories.
        without: journals that are left out.
        only: as for `Recording.of`.

    Raises:
        OSError: if a directory cannot be read.
    """
    found: list[Recording] = []
    unusable: list[str] = []
    for source in sources:
        for path in journals_in(source) if source.is_dir() else [source]:
            if path in without:
                continue
            id = str(path.relative_to(source) if source.is_dir() else path)
            id = id.removesuffix("/journal").removeprefix("streams/")
            try:
                found.append(Recording.of(path, stream_of(path) or id, only))
            except OSError as error:
                unusable.append(f"{error.strerror or error}: {error.filename or path}")
            except FormatError as error:
                unusable.append(str(error))
            except Exception as error:
                unusable.append(f"{path} cannot be used: {type(error).__name__}: {error}")
    return found, unusable


def journals_in(directory: Path) -> Iterator[Path]:
    """Files below a directory that should be journals, of each its first segment; links are not followed.

    Raises:
        OSError: if the directory cannot be read.
    """
    os.listdir(directory)  # which says what is wrong with it, where walking would find nothing
    number = 0
    for place, below, files in os.walk(directory):
        below.sort()
        for name in first_names(files):
            path = Path(place) / name
            if (name == "journal" or path.suffix in (".journal", ".ssj")) and not path.is_symlink():
                number += 1
                if number > MAX_STREAMS:
                    return
                yield path
