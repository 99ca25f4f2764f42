"""What of one journal can be given up: its windows, and how much of the disk each would give back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from stepscope.collector.merge.job import job_of
from stepscope.collector.merge.places import Mark, Steps
from stepscope.collector.windows import ClosedRecord, closed_record
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.discard import Place, places
from stepscope.runtime.journal.frames import FrameReader
from stepscope.runtime.journal.records import RunRecord, decode_record

_AT_ONCE = 64
"""Frames that are read ahead."""


class Extent(msgspec.Struct):
    """A window of one journal, as far as it takes room."""

    at: int
    """Where the first frame begins that may have events of it."""
    end: int
    """Where the last one ends."""
    nbytes: int = 0
    """That its events would give back to the file system: of whole blocks."""
    events: int = 0
    last_ns: int = 0
    """Of its end, or of its latest event, by the rank's clock, as all times here."""
    closed: bool = False
    step_ns: float = 0.0
    """Mean duration of its steps; 0 if there is none."""
    steps: Steps | None = None


class Inventory:
    """Reads the headers of a journal, each once: a later look reads what has been written since.

    Windows that are closed and have nothing left to give up are forgotten. Calls block on the disk.
    """

    def __init__(self, path: Path, block: int) -> None:
        """Args: the journal; bytes of the blocks of its file system."""
        self.path = path
        self._block = block
        self._start_anew()

    def _start_anew(self) -> None:
        self.windows: dict[int, Extent] = {}
        self.run: RunRecord | None = None
        self._file = (0, 0)
        self._position = (0, 0)
        self._opened: set[int] = set()
        self._latest_closed = -1
        self._gone: dict[int, int] = {}

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
        """Unix time at which its process began."""
        return 0 if self.run is None else self.run.anchor.wall_ns

    @property
    def ahead_ns(self) -> int:
        """By how much Unix time was ahead of the rank's clock."""
        return 0 if self.run is None else self.run.anchor.wall(0)

    @property
    def position(self) -> int:
        """Up to which byte it was read."""
        return self._position[1]

    def frees(self, place: Place) -> int:
        """Bytes that a frame's events give back to the file system."""
        return place.frees(self._block)

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
            if self.position:
                reader.resume(*self._position)

            def passed(beginning: bytes) -> bool:
                found = fmt.decode_events_header(beginning)
                if found is not None:
                    at, number, length = reader.head
                    self._events(Place(at, number, length, found[1], found[0]))
                return True

            while (frame := reader.next(passed)) is not None:
                self._record(frame[0], frame[2])
            self._position = reader.position
        finally:
            reader.close()
        self._forget()

    def frames(self, window: int) -> Iterator[Place]:
        """The frames of a window that have events, the oldest first, read a few at a time.

        Raises:
            OSError, FormatError: as `look`.
        """
        extent = self.windows[window]
        at, end = extent.at, extent.end
        while at < end:
            found = list(islice(places(self.path, at, end), _AT_ONCE))
            if not found:
                return
            yield from (place for place in found if place.header.window == window)
            at = found[-1].end

    def discarded(self, window: int, given_up: list[Place]) -> int:
        """Notes that these frames, the oldest of a window, are gone.

        Returns:
            Events of the window that are gone, with those before.
        """
        extent = self.windows[window]
        extent.at = given_up[-1].end
        extent.nbytes -= sum(map(self.frees, given_up))
        events = sum(place.header.count for place in given_up)
        extent.events -= events
        self._gone[window] = gone = self._gone.get(window, 0) + events
        return gone

    def _events(self, place: Place) -> None:
        header = place.header
        extent = self.windows.get(header.window)
        if extent is None:
            extent = self.windows[header.window] = Extent(place.at, place.end)
            # Its end was read, and it was forgotten.
            extent.closed = header.window not in self._opened and header.window <= self._latest_closed
        extent.end = place.end
        extent.nbytes += self.frees(place)
        extent.events += header.count
        extent.last_ns = max(extent.last_ns, header.last_ns)

    def _record(self, kind: int, payload: bytes) -> None:
        if kind == fmt.FrameType.RUN:
            self.run = decode_record(kind, payload)
        elif kind == fmt.FrameType.WINDOW_OPENED:
            opened = decode_record(kind, payload)
            if opened is not None:
                self._opened.add(opened.index)
        elif kind == fmt.FrameType.WINDOW_CLOSED:
            try:
                self._closed(closed_record(payload))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                return  # the readers of the journal count it: here its window only stays open
        elif kind == fmt.FrameType.END:
            for extent in self.windows.values():
                extent.closed = True
        elif kind == fmt.FrameType.DISCARDED and (found := fmt.decode_events_header(payload)) is not None:
            window = found[0].window
            self._gone[window] = self._gone.get(window, 0) + found[0].count

    def _closed(self, record: ClosedRecord) -> None:
        self._opened.discard(record.index)
        self._latest_closed = max(self._latest_closed, record.index)
        extent = self.windows.get(record.index)
        if extent is not None:
            extent.closed, extent.steps = True, record.range
            extent.last_ns = max(extent.last_ns, record.end_ns)
            extent.step_ns = (record.end_ns - record.start_ns) / max(len(record.numbers), 1)

    def _forget(self) -> None:
        for window in [window for window, extent in self.windows.items() if extent.closed and extent.nbytes <= 0]:
            del self.windows[window]
            self._gone.pop(window, None)
