"""What of one journal can be given up: its windows, and what is left of those that were."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import msgspec

from stepscope.collector.discarding.discard import Discarded, EventsPlace, Place, events_place, places
from stepscope.collector.discarding.region import Made
from stepscope.collector.retention.least import Least
from stepscope.collector.runs.job import job_of
from stepscope.collector.runs.places import Mark, Steps
from stepscope.collector.runs.windows import ClosedRecord, closed_record
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import discarded_frames
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.discarded_frames import GivenUp
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.records import RunRecord, WindowRecord, decode_record

ROUND_TRIPS = 8
"""The newest comparisons of clocks that are not given up."""


class Extent(msgspec.Struct):
    """A window of one journal, as far as it takes room."""

    at: int
    """Where the first frame begins that may have events of it, or what was given up right before that."""
    end: int
    """Where the last one ends."""
    nbytes: int = 0
    """Of its frames of events."""
    events: int = 0
    last_ns: int = 0
    """Unix time of its end, or of its latest event, no later than that was seen."""
    excess_ns: int = 0
    """By how much the rank's anchor made that later."""
    closed: bool = False
    step_ns: float = 0.0
    """Mean duration of its steps; 0 if there is none."""
    steps: Steps | None = None
    after: int = 0
    """Where the last frame before its first ends that had events, or was given up."""


class Records(msgspec.Struct, frozen=True):
    """Records of windows of which no events are left."""

    start: int
    """Where to begin looking for them."""
    places: list[Place]
    ended: set[int]
    """Windows whose ends are among them."""


class Inventory:
    """Reads the headers of a journal, each once: a later look reads what has been written since.

    Windows that are closed and have nothing left to give up are forgotten. Calls block on the disk.
    """

    def __init__(self, path: Path) -> None:
        """Args: the journal."""
        self.path = path
        self._start_anew()

    def _start_anew(self) -> None:
        self.windows: dict[int, Extent] = {}
        self._firsts = Least()
        """Where their frames begin."""
        self.run: RunRecord | None = None
        self.ended = False
        """Whether it was closed in order."""
        self.events = 0
        """Of all its windows, with those that were given up."""
        self.last_ns = 0
        """Unix time of its latest window, or event, no later than that was seen."""
        self.size = 0
        """Bytes of the file, as of the last look."""
        self.made_ns = 0
        """Unix time by which its file was there."""
        self.grown_ns = 0
        """Unix time at which it was seen to have grown."""
        self.written_ns = 0
        """Unix time at which it had grown, as its file says."""
        self.unfreed: list[tuple[int, int]] = []
        """Where frames begin and end that were given up before it was looked at: their blocks may not be free yet."""
        self._file = (0, 0)
        self._seen_ns = 0
        """Unix time by which what this look reads was there."""
        self._excess_ns = 0
        self._position = (0, 0)
        self._opened: set[int] = set()
        self._latest_closed = -1
        self._gone: dict[int, int] = {}
        self._made: list[Made] = []
        self._records_at = fmt.FILE_HEADER.size
        self._oldest_record: int | None = None
        self._events_end = 0
        self._clocks: deque[int] = deque(maxlen=1)
        self._round_trips: deque[int] = deque(maxlen=ROUND_TRIPS)

    @property
    def job(self) -> str:
        """What its job is called; empty if the journal does not say."""
        return "" if self.run is None else job_of(self.run)

    @property
    def rank(self) -> int | None:
        """Of its process; `None` if it has none, or the journal does not say."""
        return None if self.run is None else self.run.rank

    @property
    def began_ns(self) -> int:
        """Unix time at which its process began, no later than its file was there."""
        return 0 if self.run is None else min(self.run.anchor.wall_ns, self.made_ns)

    def ahead_ns(self, window: int) -> int:
        """By how much Unix time was ahead of the rank's clock, so that nothing of a window is later than it was seen."""
        return self._ahead_ns - self.windows[window].excess_ns

    @property
    def _ahead_ns(self) -> int:
        """The same, as its process has it, whose clock may be wrong."""
        return 0 if self.run is None else self.run.anchor.wall(0)

    @property
    def position(self) -> int:
        """Up to which byte it was read."""
        return self._position[1]

    def mark(self, window: int) -> Mark:
        """What a window says of itself."""
        return window, self.windows[window].steps

    def look(self) -> None:
        """Reads what is new; all of it, if there is another file by now.

        Raises:
            OSError: if it cannot be read.
            FormatError: if it is no journal; what was known stays.
        """
        reader = FrameReader(self.path, follow=False)
        try:
            about = os.stat(self.path, follow_symlinks=False)
            if (about.st_dev, about.st_ino) != self._file or about.st_size < self.position:
                self._start_anew()
                self._file = (about.st_dev, about.st_ino)
                self.made_ns = min(about.st_mtime_ns, os.stat(self.path.parent).st_mtime_ns)
            self._seen_ns = time.time_ns() if self.position else about.st_mtime_ns
            self.size = about.st_size
            if self.position:
                reader.resume(*self._position)

            def passed(beginning: bytes) -> bool:
                place = events_place(*reader.head, beginning)
                if place is not None:
                    self._events(place)
                return True

            while (frame := reader.next(passed)) is not None:
                self._record(frame[0], frame[2], reader.head[0], reader.head[1], reader.position[1])
            if reader.position != self._position:
                # What is given up changes the file's time, too.
                self.grown_ns, self.written_ns = self._seen_ns, min(about.st_mtime_ns, self._seen_ns)
            self._position = reader.position
        finally:
            reader.close()
        self._made.clear()
        self._forget(*self.windows)

    def frames(self, window: int, after: int, most: int) -> list[EventsPlace]:
        """The first frames of a window that have events.

        Args:
            window: its index.
            after: byte at which a frame begins from which on they are looked for; 0: all.
            most: how many.

        Raises:
            OSError, FormatError: as `look`.
        """
        extent = self.windows.get(window)
        if extent is None:
            return []
        at = max(self._border(after), extent.at)
        found = (place for place in places(self.path, at, extent.end) if place.header.window == window)
        return list(islice(found, most))

    def discarded(self, window: int, frames: list[EventsPlace], done: Discarded) -> int:
        """Notes that these frames, the oldest of a window, are gone.

        Returns:
            Events of the window that are gone, with those before.
        """
        self._merged(done)
        extent = self.windows[window]
        self._moved(window, extent, _beyond(frames, done))
        extent.nbytes -= sum(place.end - place.at for place in frames)
        events = sum(place.header.count for place in frames)
        extent.events -= events
        self._gone[window] = gone = self._gone.get(window, 0) + events
        self._forget(window)
        return gone

    @property
    def oldest_record(self) -> int | None:
        """Unix time of the end of the oldest window of which only records are left; `None` if there is none.

        Raises:
            OSError, FormatError: as `look`.
        """
        if self._oldest_record is None:
            self._oldest_record = self._find_oldest()
        return self._oldest_record + self._ahead_ns - self._excess_ns if self._oldest_record >= 0 else None

    def records(self, most: int) -> Records:
        """The oldest records of windows that have nothing else: beginnings, ends, and clocks up to then.

        Args:
            most: how many.

        Raises:
            OSError, FormatError: as `look`.
        """
        start = self._records_at
        found = Records(start, [], set())
        reader = FrameReader(self.path, follow=False)
        try:
            reader.resume(0, start)  # their numbers do not matter
            while len(found.places) < most and (frame := reader.next(lambda _: True)) is not None:
                at, number, length = reader.head
                if at >= self._records_end or number in self._round_trips or number in self._clocks:
                    break  # what follows is looked at when these are no longer the newest
                gone = self._given_up(frame[0], frame[2])
                if gone is None:
                    continue
                found.places.append(Place(at=at, number=number, length=length, gone=gone))
                if frame[0] == fmt.FrameType.WINDOW_CLOSED:
                    found.ended.add(closed_record(frame[2]).index)
        finally:
            reader.close()
        if not found.places:
            self._oldest_record = -1
        return found

    def records_discarded(self, records: Records, done: Discarded) -> None:
        """Notes that these records, the oldest, are gone."""
        self._merged(done)
        self._records_at = _beyond(records.places, done)
        self._oldest_record = None
        for window in records.ended:
            self._gone.pop(window, None)

    @property
    def _records_end(self) -> int:
        """Where the first frame begins that may have events which are there."""
        first = self._firsts.find()
        return self.position if first is None else first

    def _find_oldest(self) -> int:
        """Time of the end of the oldest window of which only records are left; -1 if there is none."""
        reader = FrameReader(self.path, follow=False)
        try:
            reader.resume(0, self._records_at)
            while (frame := reader.next(lambda _: True)) is not None and reader.head[0] < self._records_end:
                if frame[0] != fmt.FrameType.WINDOW_CLOSED:
                    continue
                if self._given_up(frame[0], frame[2]) is not None:
                    return max(closed_record(frame[2]).end_ns, 0)
        finally:
            reader.close()
        return -1

    def _given_up(self, kind: int, payload: bytes) -> GivenUp | None:
        """What is said of a record when it is given up; `None` if it stays, as it also does if that takes more room."""
        gone = self._left_of(kind, payload)
        return gone if gone is not None and len(discarded_frames.encode(gone)) <= len(payload) else None

    def _left_of(self, kind: int, payload: bytes) -> GivenUp | None:
        try:
            match kind:
                case fmt.FrameType.WINDOW_OPENED:
                    opened = decode_record(kind, payload)
                    over = opened is not None and opened.index not in self.windows and opened.index not in self._opened
                    return GivenUp() if over else None
                case fmt.FrameType.WINDOW_CLOSED:
                    if closed_record(payload).index in self.windows:
                        return None
                    record = decode_record(kind, payload)
                    return GivenUp(windows=1, ledger=record.ledger) if isinstance(record, WindowRecord) else None
                case fmt.FrameType.CLOCK | fmt.FrameType.CLOCK_SYNC:
                    return GivenUp()
                case _:
                    return None
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def _merged(self, done: Discarded) -> None:
        """Notes that frames have become one: no frame begins or ends within it."""
        for made in done.made:
            for window, extent in self.windows.items():
                if min(extent.at, extent.after) > made.end:
                    break  # they are in the order of their first frames
                if made.at < extent.at <= made.end or made.at < extent.after <= made.end:
                    self._moved(window, extent, made.last)
                if made.at < extent.end < made.end:
                    extent.end = made.end
            if made.at < self._records_at <= made.end:
                self._records_at = made.at
            if made.at < self._events_end < made.end:
                self._events_end = made.end
            self._made = [one for one in self._made if not (made.at <= one.at and one.end <= made.end)]
            self._made.append(made)

    def _moved(self, window: int, extent: Extent, at: int) -> None:
        extent.at = at
        self._firsts.put(window, at)

    def _border(self, at: int) -> int:
        """Where a frame begins, of a byte where one with events ended since this look."""
        for made in self._made:
            if made.at < at < made.end:
                at = made.end
        return at

    def _events(self, place: EventsPlace) -> None:
        header = place.header
        extent = self.windows.get(header.window)
        if extent is None:
            extent = self.windows[header.window] = Extent(place.at, place.end)
            # Its end was read, and it was forgotten.
            extent.closed = header.window not in self._opened and header.window <= self._latest_closed
            extent.after = self._events_end
            at = next((start for start, end in self.unfreed[-1:] if end == self._events_end), place.at)
            self._moved(header.window, extent, at)
        extent.end = self._events_end = place.end
        extent.nbytes += place.end - place.at
        extent.events += header.count
        self.events += header.count
        self._until(extent, header.last_ns)

    def _record(self, kind: int, payload: bytes, at: int, number: int, end: int) -> None:
        match kind:
            case fmt.FrameType.RUN:
                self.run = decode_record(kind, payload)
            case fmt.FrameType.CLOCK:
                self._clocks.append(number)
            case fmt.FrameType.CLOCK_SYNC:
                self._round_trips.append(number)
            case fmt.FrameType.WINDOW_OPENED:
                opened = decode_record(kind, payload)
                if opened is not None:
                    self._opened.add(opened.index)
            case fmt.FrameType.WINDOW_CLOSED:
                try:
                    self._closed(closed_record(payload))
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    return  # the readers of the journal count it: here its window only stays open
            case fmt.FrameType.END:
                self.ended = True
                for extent in self.windows.values():
                    extent.closed = True
            case fmt.FrameType.DISCARDED | fmt.FrameType.GIVEN_UP:
                self._was_given_up(kind, payload)
                self.unfreed.append((at, end))
                self._events_end = end
            case _:
                pass

    def _was_given_up(self, kind: int, payload: bytes) -> None:
        try:
            gone = discarded_frames.decode(kind, payload)
        except FormatError:
            return  # as above
        self.events += gone.total
        for window, count in gone.events.items():
            self._gone[window] = self._gone.get(window, 0) + count

    def _closed(self, record: ClosedRecord) -> None:
        self._opened.discard(record.index)
        self._latest_closed = max(self._latest_closed, record.index)
        self._last(record.end_ns)
        extent = self.windows.get(record.index)
        if extent is not None:
            extent.closed, extent.steps = True, record.range
            extent.step_ns = (record.end_ns - record.start_ns) / max(len(record.numbers), 1)
            self._until(extent, record.end_ns)

    def _until(self, extent: Extent, time: int) -> None:
        unix, excess = self._last(time)
        extent.last_ns = max(extent.last_ns, unix)
        extent.excess_ns = max(extent.excess_ns, excess)

    def _last(self, time: int) -> tuple[int, int]:
        """Unix time of something that there is, and by how much the rank's anchor makes it later."""
        unix = time + self._ahead_ns
        excess = max(unix - self._seen_ns, 0)
        self._excess_ns = max(self._excess_ns, excess)
        self.last_ns = max(self.last_ns, unix - excess)
        return unix - excess, excess

    def _forget(self, *windows: int) -> None:
        for window in windows:
            extent = self.windows[window]
            if extent.closed and extent.nbytes <= 0:
                del self.windows[window]
                self._firsts.drop(window)
                self._gone.pop(window, None)
                self._oldest_record = None


def _beyond(places: Sequence[Place], done: Discarded) -> int:
    """Where the frame begins from which on the next ones are looked for, once these are gone: what was left is passed."""
    last = places[-1]
    gone = any(made.at <= last.at and last.end <= made.end for made in done.made)
    return done.made[-1].last if gone else last.end
