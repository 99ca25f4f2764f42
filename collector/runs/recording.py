"""Contents of a stream, found without reading its events."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.collector.runs.evicted import beyond, gaps_of, read_evicted
from stepscope.collector.runs.windows import MARKS, Marks
from stepscope.exporters.stream.protocol import identity
from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import Damage, FrameReader
from stepscope.runtime.journal.index import ROWS, JournalIndex, Rows, read_index, record_at, scan
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import ClockSync, MetadataRecord, RunRecord, decode_record
from stepscope.runtime.journal.replay import UnfinishedWindow, run_of
from stepscope.runtime.journal.segments import first_names
from stepscope.runtime.windows.window import Step, Window

MAX_STREAMS = 65_536
"""Streams below a directory that are read; further ones are ignored."""
MAX_SYNCS = 1 << 13
"""Round trips of one stream that are kept; of a longer run the quickest of every 2, 4, 8, ... in a row."""
NEAR_NS = 300 * 10**9
NEAREST = 8
"""For some windows, round trips at so little distance are kept, and so many on each side of the first, the last, and of a change of
the collector's clock."""
_FAR = 1 << 61
"""A time in ns (73 years) that no clock shows, not even Unix time; sums of such times fit 64 bits."""
MAX_UNFINISHED = 64
"""Windows without an end that are read, with the lowest numbers first; a complete stream has one or two."""
_STREAM = re.compile("[0-9a-f]{32}")

Wanted = Callable[[Rows], NDArray[np.bool_]]
"""Decides whether a row is wanted."""


class Recording(msgspec.Struct, kw_only=True):
    """The recording of one stream. Times are ns of its own monotonic clock."""

    id: str
    """Of the stream, where it is known; else the path of its file below the directory, as far as it distinguishes streams."""
    path: Path
    run: RunRecord
    syncs: list[ClockSync]
    marks: Marks
    """All its windows. Recordings with the same windows share the array."""
    open: list[int]
    """Numbers of windows without an end, `MAX_UNFINISHED` at most. Their steps are not in `marks` before `read_open`."""
    rows: Rows
    """The wanted windows, by number. Of one without an end, `closed` is 0."""
    complete: bool
    """Whether `rows` has all windows."""
    events: int
    """Events in all windows."""
    first_ns: int
    last_ns: int
    """End of its last window; the time of the run's anchor, if there is no window."""
    ended: bool
    """Whether it was closed in order."""
    recovered: bool
    """Whether its process was killed and `stepscope recover` completed it."""
    damage: Damage
    """Damage after its last index frame."""
    gaps: Damage
    """The damage that a reader of the whole stream counts where segments were evicted."""
    metadata: dict[str, Any]
    """Metadata that was added to the run, as it was at the end."""
    ledger: Ledger | None
    """The accounts of the run; `None` if it did not say them before it ended."""
    discarded: int
    """Events that a collector evicted, for want of room."""
    stream: str
    """Id of the stream, if a collector stores it; else empty."""
    first_segment: str = ""
    """Name of its oldest file, if older ones were deleted."""
    unfinished: dict[int, Window] | None = None
    """The windows without an end, after `read_open`."""

    @property
    def directory(self) -> Path:
        """Directory of the collector that stores it, if `stream` is known."""
        return self.path.absolute().parent.parent.parent

    @property
    def process(self) -> RunRecord:
        """Identity: equal in all recordings of its run, and in no other."""
        return identity(self.run)

    @classmethod
    def of(
        cls, path: Path, id: str, wanted: Wanted | None = None, shared_marks: dict[bytes, Marks] | None = None
    ) -> Recording:
        """Reads what a journal says of itself: its index, and the headers of the frames after that.

        Memory does not depend on the file's size, but for `marks`, the wanted windows, and `MAX_SYNCS` round trips.

        Args:
            wanted: which rows of the index stay in memory; default: all.
            shared_marks: marks of other recordings, which are added to.

        Raises:
            OSError: if it cannot be opened.
            FormatError: if it is no journal, or does not say whose it is.
        """
        samples = _ClockSamples()
        reader = FrameReader(path, follow=False)
        try:
            run = run_in(reader)
            if run is None:
                raise FormatError(f"{path} does not say whose journal it is: its beginning is missing")
            index = read_index(reader, samples.add) or scan(reader, on_sync=samples.add)
            found = [record_at(reader, index.builder.metadata, fmt.FrameType.METADATA)]
            found += [record_at(reader, index.builder.ledger, fmt.FrameType.LEDGER)]
            evicted = read_evicted(path) if stream_of(path) else []
            gaps = gaps_of(reader, evicted)
            damage = msgspec.structs.replace(index.damage, header=reader.damage.header)
            first = reader.files.at(reader.files.begin).path
        finally:
            reader.close()
        run = msgspec.structs.replace(run, anchor=_sane_anchor(run.anchor))
        parts = _window_tables(index)
        chosen = [part if wanted is None else part[wanted(part) | (part["closed"] == 0)] for part in parts]
        chosen = [part for part in chosen if len(part)]
        rows = chosen[0] if len(chosen) == 1 else np.concatenate([*chosen, np.zeros(0, ROWS)])
        first_ns, last_ns = _range(parts) or (run.anchor.monotonic_ns, run.anchor.monotonic_ns)
        metadata, ledger = found
        return cls(
            id=id,
            path=path,
            run=run,
            syncs=samples.selected()
            if wanted is None
            else _around(samples.selected(), rows[wanted(rows) | (rows["closed"] == 0)]),
            marks=_marks(parts, {} if shared_marks is None else shared_marks),
            open=rows["window"][rows["closed"] == 0].tolist(),
            rows=rows,
            complete=len(rows) == sum(map(len, parts)),
            events=sum(int(part["events"].sum()) for part in parts),
            first_ns=first_ns,
            last_ns=last_ns,
            ended=index.ended,
            recovered=bool(index.builder.recovered),
            damage=beyond(damage, gaps),
            gaps=gaps,
            metadata=metadata.values if isinstance(metadata, MetadataRecord) else {},
            ledger=ledger,
            discarded=sum(one.events for one in evicted),
            stream=stream_of(path),
            first_segment=first.name if first != path else "",
        )

    def rows_of(self, numbers: NDArray[np.int64]) -> Rows:
        """The rows of some of its windows, by number. If `rows` lacks one of them, the index is read again. Raises
        `OSError` or `FormatError` if it cannot be read."""
        found = self.rows[np.isin(self.rows["window"], numbers)]
        if len(found) < len(numbers) and not self.complete:
            again = Recording.of(self.path, self.id, lambda rows: np.isin(rows["window"], numbers))
            found = again.rows[np.isin(again.rows["window"], numbers)]
        return found

    def all_rows(self) -> Rows:
        """The rows of all its windows, by number. Raises `OSError` or `FormatError` as for `rows_of`."""
        return self.rows if self.complete else self.rows_of(self.marks["window"])

    def windows(self, rows: Rows) -> dict[int, Window]:
        """Windows, by number: those that have an end by that, the others by their events. Raises `OSError` or
        `FormatError` if they cannot be read."""
        found: dict[int, Window] = {}
        if (rows["closed"] == 0).any():
            self.read_open()
        with JournalReader(self.path) as reader:
            for number, closed in zip(rows["window"].tolist(), rows["closed"].tolist(), strict=True):
                window = reader.window_at(closed) if closed else (self.unfinished or {}).get(number)
                if window is None or window.index != number:
                    window = _searched(self.path, number)
                found[number] = _sane_window(window)
        return found

    def read_open(self) -> None:
        """Makes known the steps of the windows without an end. Idempotent. Raises `OSError` or `FormatError` if they
        cannot be read."""
        if self.unfinished is not None:
            return
        self.unfinished = _unfinished(self.path, self.open) if self.open else {}
        if self.unfinished:
            self.marks = self.marks.copy()
            for at in np.flatnonzero(np.isin(self.marks["window"], list(self.unfinished))).tolist():
                steps = [step.number for step in self.unfinished[int(self.marks["window"][at])].steps]
                if steps:
                    self.marks[at] = (self.marks["window"][at], min(steps), max(steps))


def run_in(frames: FrameReader) -> RunRecord | None:
    """The run, which begins each segment. The reader stays where it is."""
    reader = frames.copy()
    reader.restart()
    while (frame := reader.next(lambda _: True)) is not None:
        record = decode_record(frame[0], frame[2]) if frame[0] == fmt.FrameType.RUN else None
        if isinstance(record, RunRecord):
            return record
    return None


def _window_tables(index: JournalIndex) -> list[Rows]:
    """The windows of a journal by number, each once: the last one of its number. Those without an end have no steps."""
    parts = index.parts
    numbers = _column(parts, "window")
    far = _column(parts, "start_ns").min(initial=0) < -_FAR or _column(parts, "end_ns").max(initial=0) > _FAR
    if (numbers[1:] > numbers[:-1]).all() and not index.builder.open and not far:
        return parts
    rows = np.concatenate([*parts, _without_end(index)])
    _, last_of = np.unique(rows["window"][::-1], return_index=True)
    rows = rows[len(rows) - 1 - last_of]
    for name in ("start_ns", "end_ns"):
        rows[name] = np.clip(rows[name], -_FAR, _FAR)
    return [rows]


def _column(parts: Sequence[Rows], name: str) -> NDArray[np.int64]:
    return np.concatenate([part[name] for part in parts])


def _without_end(index: JournalIndex) -> Rows:
    closed: set[int] = set()
    for part in index.parts if index.builder.open else ():
        closed.update(part["window"].tolist())
    numbers = sorted(index.builder.open.keys() - closed)[:MAX_UNFINISHED]
    rows = np.zeros(len(numbers), ROWS)
    for row, number in zip(rows, numbers, strict=True):
        window = index.builder.open[number]
        row["window"], row["begin"], row["end"] = number, window.begin, index.end[1]
        row["start_ns"], row["end_ns"] = min(window.first_ns, window.last_ns), window.last_ns
        row["events"] = window.events.total()
    return rows


def _range(parts: Sequence[Rows]) -> tuple[int, int] | None:
    """Begin of the first window with events, and end of the last one; `None` without such a window."""
    some = [part if part["events"].min(initial=1) > 0 else part[part["events"] > 0] for part in parts]
    times = [(int(part["start_ns"].min()), int(part["end_ns"].max())) for part in some if len(part)]
    return (min(first for first, _ in times), max(last for _, last in times)) if times else None


def _marks(parts: Sequence[Rows], shared_marks: dict[bytes, Marks]) -> Marks:
    marks = np.empty(sum(map(len, parts)), MARKS)
    steps, first, last = (_column(parts, name) for name in ("steps", "first_step", "last_step"))
    marks["window"] = _column(parts, "window")
    marks["first_step"] = np.where(steps > 0, np.minimum(first, last), 0)
    marks["last_step"] = np.where(steps > 0, np.maximum(first, last), -1)
    # Most recordings have the windows of the first one: comparing with it is faster than hashing.
    first_marks = next(iter(shared_marks.values()), marks)
    if first_marks is not marks and np.array_equal(first_marks.view(np.int64), marks.view(np.int64)):
        return first_marks
    return shared_marks.setdefault(marks.tobytes(), marks)


def _around(syncs: list[ClockSync], rows: Rows) -> list[ClockSync]:
    """The round trips that measure the clock in some windows: those near them, and some before and after each change of the
    collector's clock. All, if there is no window, or these are as many."""
    if not len(rows):
        return syncs
    sent = np.array([sync.sent for sync in syncs], np.int64).clip(-_FAR, _FAR)
    start, end = int(rows["start_ns"].min()), int(rows["end_ns"].max())
    near = (sent >= start - NEAR_NS) & (sent <= end + NEAR_NS)
    first, last = np.searchsorted(sent, [start, end]).tolist()
    changes = [at for at in range(1, len(syncs)) if syncs[at].clock != syncs[at - 1].clock]
    for border in (first, last, *changes):
        near[max(border - NEAREST, 0) : border + NEAREST] = True
    return [syncs[at] for at in np.flatnonzero(near).tolist()]


class _ClockSamples:
    """Round trips of a run of any length in bounded memory, about evenly over the run."""

    def __init__(self) -> None:
        self._selected: list[ClockSync] = []
        self._group: list[ClockSync] = []
        """The newest round trips, of which one will be selected."""
        self._group_size = 1

    def add(self, sync: ClockSync) -> None:
        """Adds the next round trip."""
        if self._group_size == 1 and len(self._selected) < MAX_SYNCS - 1:
            self._selected.append(sync)
            return
        if self._group and self._group[0].clock != sync.clock:
            self._close_group()
        self._group.append(sync)
        if len(self._group) >= self._group_size:
            self._close_group()

    def selected(self) -> list[ClockSync]:
        """The round trips that were selected."""
        return [*self._selected, *([_quickest(self._group)] if self._group else [])][:MAX_SYNCS]

    def _close_group(self) -> None:
        if len(self._selected) < MAX_SYNCS:  # else they are of ever other clocks, and cannot be thinned
            self._selected.append(_quickest(self._group))
        self._group.clear()
        if len(self._selected) == MAX_SYNCS and self._group_size < MAX_SYNCS:
            self._group_size *= 2
            self._selected = list(_halved(self._selected))


def _halved(syncs: list[ClockSync]) -> Iterator[ClockSync]:
    """Selects the quicker one of two neighbours that were of one clock."""
    at = 0
    while at < len(syncs):
        pair = [sync for sync in syncs[at : at + 2] if sync.clock == syncs[at].clock]
        yield _quickest(pair)
        at += len(pair)


def _quickest(syncs: list[ClockSync]) -> ClockSync:
    """The round trip with the shortest way, which bounds the clock best; one that contradicts itself only if all do."""

    def way(sync: ClockSync) -> float:
        ns = (sync.returned - sync.sent) - (sync.answered - sync.arrived)
        return ns if ns >= 0 else math.inf

    return min(syncs, key=way)


def _sane(at: int) -> int:
    """Limits a time to the range that clocks show."""
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


def _unfinished(path: Path, numbers: Collection[int]) -> dict[int, Window]:
    """Windows that have no end, by the outlines of indexes, and the events after the last index."""
    with JournalReader(path) as reader:
        index = reader.index() or reader.own_index()
        windows = {number: UnfinishedWindow(number) for number in numbers}
        for position, record in index.records:
            for batch in reader.outlines(record, position):
                if batch.window in windows:
                    windows[batch.window].add(batch)
        reader.continue_at(index.begin, index)
        for item in reader.items(wanted=lambda header: header.window in windows):
            if isinstance(item, EventBatch):
                windows[item.window].add(item)
        run = run_of(reader, path.parent)
        for number, window in windows.items():
            of = index.builder.open.get(number)
            if of is not None and index.records and of.first_ns <= of.last_ns:
                window.lasted(of.first_ns, of.last_ns)
        return {number: window.close(run) for number, window in windows.items()}


def _searched(path: Path, number: int) -> Window:
    """A window whose end is not where the index says: it is looked for in all of the journal, or made of its events."""
    with JournalReader(path) as reader:
        window = UnfinishedWindow(number)
        for item in reader.items(wanted=lambda header: header.window == number):
            if isinstance(item, Window) and item.index == number:
                return item
            if isinstance(item, EventBatch):
                window.add(item)
        return window.close(run_of(reader, path.parent))


def stream_of(path: Path) -> str:
    """The id of a stream whose file lies as a collector keeps it, else empty."""
    return path.parent.name if path.name == "journal" and _STREAM.fullmatch(path.parent.name) else ""


class UnreadableJournal(msgspec.Struct, frozen=True):
    """A journal that could not be read."""

    path: str
    reason: str
    """A sentence. Most contain the path."""

    def __str__(self) -> str:
        return self.reason if self.path in self.reason else f"{self.path}: {self.reason}"


def recordings_in(
    sources: Sequence[Path], without: Collection[Path] = (), wanted: Wanted | None = None
) -> tuple[list[Recording], list[UnreadableJournal]]:
    """Journals, and all those below directories such as a collector's; and those that could not be read.

    Links below directories are not followed. A file that cannot be used, whatever is in it, costs the others nothing.

    Args:
        wanted: as for `Recording.of`.

    Raises:
        OSError: if a directory cannot be read.
    """
    shared_marks: dict[bytes, Marks] = {}
    found: list[Recording] = []
    unreadable: list[UnreadableJournal] = []
    for source in sources:
        for path in journals_in(source) if source.is_dir() else [source]:
            if path in without:
                continue
            id = str(path.relative_to(source) if source.is_dir() else path)
            id = id.removesuffix("/journal").removeprefix("streams/")
            try:
                found.append(Recording.of(path, stream_of(path) or id, wanted, shared_marks))
            except OSError as error:
                why = f"{error.strerror or error}: {error.filename or path}"
            except FormatError as error:
                why = str(error)
            except Exception as error:
                why = f"{path} cannot be used: {type(error).__name__}: {error}"
            else:
                continue
            unreadable.append(UnreadableJournal(str(path), why))
    return found, unreadable


def journals_in(directory: Path) -> Iterator[Path]:
    """Files below a directory that should be journals, of each its first segment; links are not followed. Raises
    `OSError` if the directory cannot be read."""
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
