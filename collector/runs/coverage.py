"""What of a run a journal has, by window: read in bounded memory, whatever is in it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from stepscope.collector.errors import ExcessError
from stepscope.collector.runs.windows import closed_record
from stepscope.exporters.collector.protocol import MAX_HEADER, identity
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.records import RunRecord, decode_record

MOST_WINDOWS = 1 << 17
"""Of a journal that is read: a day and a half of one a second. They take some 20 MB."""
MOST_SECONDS = 60.0
"""Of the processor's time, for one journal: some ten million frames."""


class Covering(Protocol):
    """What is told of a recording to compare it with another one of its run."""

    @property
    def windows(self) -> Mapping[int, object]:
        """Those that have an end, or are known otherwise, by index."""
        ...

    @property
    def counts(self) -> Mapping[int, int]:
        """Events by window."""
        ...

    @property
    def first_ns(self) -> int:
        """Time of its first event."""
        ...

    @property
    def last_ns(self) -> int:
        """And of the end of its last."""
        ...


def covers(one: Covering, other: Covering) -> bool:
    """Whether all that is in `other` is in `one`, which is of the same run."""
    if not other.windows.keys() <= one.windows.keys():
        return False
    if any(one.counts.get(window, 0) < count for window, count in other.counts.items()):
        return False
    return not any(other.counts.values()) or (one.first_ns <= other.first_ns and other.last_ns <= one.last_ns)


class Coverage(msgspec.Struct, kw_only=True):
    """Of which run a journal is, and what it has of it. Times are ns of the run's clock; 0 without events."""

    process: RunRecord
    """What is the same in all journals of its run, and in no other."""
    windows: dict[int, None]
    """Those that are closed, by index."""
    counts: dict[int, int]
    """Events by window."""
    first_ns: int
    last_ns: int

    @classmethod
    def of(cls, path: Path, *, windows: int = MOST_WINDOWS, seconds: float = MOST_SECONDS) -> Coverage:
        """Reads a journal; of its events the headers only, of its records what is asked here.

        Memory is bounded by its largest frame and by the number of windows.

        Args:
            path: the journal; links are not followed.
            windows: that it may have.
            seconds: of the processor's time that it may take.

        Raises:
            OSError: if it cannot be read.
            FormatError: if it is no journal, or does not say whose it is.
            ExcessError: if it has more windows, or takes more time, or the record of its run is larger than a connection's
                first message.
        """
        scan = _Scan(windows, seconds)
        reader = FrameReader(path, follow=False)
        try:
            while (frame := reader.next(scan.passes)) is not None:
                scan.take(frame[0], frame[2])
        finally:
            reader.close()
        if scan.process is None:
            raise FormatError(f"{path} does not say whose journal it is: its beginning is missing")
        first, last = scan.span or (0, 0)
        return cls(process=scan.process, windows=scan.windows, counts=scan.counts, first_ns=first, last_ns=last)


class _Scan:
    """Collects what frames say."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._end = time.thread_time() + seconds
        self.process: RunRecord | None = None
        self.windows: dict[int, None] = {}
        self.counts: dict[int, int] = {}
        self.span: tuple[int, int] | None = None

    def passes(self, beginning: bytes) -> bool:
        """Notes what the beginning of an events frame says."""
        self._check()
        found = fmt.decode_events_header(beginning)
        if found is not None and found[0].count:
            header = found[0]
            self.counts[header.window] = self.counts.get(header.window, 0) + header.count
            first, last = self.span or (header.first_ns, header.last_ns)
            self.span = min(first, header.first_ns), max(last, header.last_ns)
        return True

    def take(self, kind: int, payload: bytes) -> None:
        """Notes whose journal it is, and which windows are closed; a record that cannot be read says nothing."""
        if kind == fmt.FrameType.RUN:
            if len(payload) > MAX_HEADER:
                raise ExcessError(f"the record of its run has {len(payload):,} bytes, of {MAX_HEADER:,} at most")
            run = decode_record(kind, payload)
            self.process = self.process if run is None else identity(run)
        elif kind == fmt.FrameType.WINDOW_CLOSED:
            with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
                self.windows[closed_record(payload).index] = None
        self._check()

    def _check(self) -> None:
        if max(len(self.windows), len(self.counts)) > self._most:
            raise ExcessError(f"it has more than {self._most:,} windows")
        if time.thread_time() > self._end:
            raise ExcessError(f"to read it takes more than {self._seconds:g} seconds of the processor's time")
