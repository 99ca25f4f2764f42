"""The newest windows of a stream, and the windows of several processes that are one window of their job."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.collector.runs.evicted import Evicted
from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import Int64, WindowOpened

MAX_WINDOWS = 128
"""The most closed windows of a stream in memory; the files have all."""
_MOST_OPEN = 64
_MOST_EVICTED = 4 * MAX_WINDOWS
"""The newest windows of which a part was evicted, so many."""
MOST_ACCOUNT = 1 << 16
"""Bytes of a ledger, or of diagnostics, that are read: they become many times as large in memory, at some ms for so many."""
MOST_REASONS = 64
"""Pairs of a source, or the output to the collector, and a reason that are counted apart; other losses count as `OTHER`."""
OTHER = "other"
_STEP_BYTES = 24
_OURS = "collector"
"""Name of the output whose losses are those of this stream."""

Steps = tuple[int, int]
"""Numbers of the first and the last step."""
Mark = tuple[int, Steps | None]
"""A window's index, counted by its process, and its steps as far as they are known."""

MARKS = np.dtype([("window", "<i8"), ("first_step", "<i8"), ("last_step", "<i8")])
Marks = NDArray[np.void]
"""Such marks of many windows, an array of `MARKS`; a window without steps has a last step that is less than its first."""

_MOST = (1 << 63) - 1
_FAR = 1 << 61
"""Step numbers are limited to this, so that their differences fit 64 bits."""


class WindowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A window of one stream."""

    index: int
    open: bool
    """Whether it is still recorded, or its end never came."""
    start_ns: int
    """Begin by the rank's monotonic clock."""
    end_ns: int = 0
    steps: int = 0
    first_step: int | None = None
    """Number of its first step, as far as it is known; of a window that is open, of those that have ended."""
    last_step: int | None = None
    complete: bool = False
    events: int = 0
    dropped: int = 0
    """Events lost by all sources, and on the way to this collector."""
    partly_evicted: bool = False
    """Whether a part may have been evicted to keep the files within the limit of the disk."""
    diagnostics: tuple[str, ...] = ()
    """The first few diagnostics."""


MarkedWindow = tuple[Mark, WindowFacts]
"""A window, and its index and steps."""


class _Closed(msgspec.Struct, frozen=True):
    """The fields of a `WindowRecord` that are shown."""

    index: Int64
    start_ns: Int64
    end_ns: Int64
    steps: bytes = b""
    complete: bool = False
    diagnostics: msgspec.Raw = msgspec.Raw(b"\x90")
    ledger: msgspec.Raw = msgspec.Raw(b"\x80")

    @property
    def count(self) -> int:
        """The number of its steps."""
        return len(self.steps) // _STEP_BYTES

    @property
    def range(self) -> Steps | None:
        """Numbers of its first and its last step."""
        numbers = np.frombuffer(self.steps, "<i8", 3 * self.count)[::3]
        return (int(numbers.min()), int(numbers.max())) if len(numbers) else None


_closed = msgspec.msgpack.Decoder(_Closed).decode
_diagnostics = msgspec.msgpack.Decoder(list[str]).decode
_ledger = msgspec.msgpack.Decoder(Ledger).decode
_opened = msgspec.msgpack.Decoder(WindowOpened).decode


class StreamWindows:
    """The newest windows of a stream, and what all of them have lost. One thread changes it; others may call `newest`."""

    def __init__(self) -> None:
        self.count = 0
        """Windows closed."""
        self.dropped: Counter[str] = Counter()
        """Lost events by the part that lost them and the reason, such as `recorder/overflow`."""
        self.evicted: set[int] = set()
        """Numbers of the segments that were evicted."""
        self.discarded = self.discarded_bytes = 0
        """Events and bytes in these segments."""
        self._partly_evicted: set[int] = set()
        self._open: dict[int, int] = {}
        self._open_steps: dict[int, Steps] = {}
        self._closed: deque[MarkedWindow] = deque(maxlen=MAX_WINDOWS)

    def __iter__(self) -> Iterator[WindowFacts]:
        """Yields the facts of `newest`, without their marks."""
        return (window for _, window in self.newest())

    @property
    def is_open(self) -> bool:
        """Whether a window is open that has steps."""
        return bool(self._open_steps)

    def newest(self) -> list[MarkedWindow]:
        """The newest windows first; open windows before closed ones."""
        found: list[MarkedWindow] = []
        evicted = self._partly_evicted
        for index, start in sorted(self._open.items(), reverse=True):
            steps = self._open_steps.get(index)
            first, last = steps or (None, None)
            window = WindowFacts(
                index=index,
                open=True,
                start_ns=start,
                first_step=first,
                last_step=last,
                partly_evicted=index in evicted,
            )
            found.append(((index, steps), window))
        closed = list(self._closed)  # at once, whatever another thread adds
        if evicted:
            partly = msgspec.structs.replace
            closed = [
                (mark, partly(each, partly_evicted=True) if mark[0] in evicted else each) for mark, each in closed
            ]
        return found + closed[::-1]

    def evict(self, evicted: Evicted) -> None:
        """Notes that a segment was evicted. Idempotent."""
        if evicted.segment in self.evicted:
            return
        self.evicted.add(evicted.segment)
        self.discarded += evicted.events
        self.discarded_bytes += evicted.nbytes
        newest = range(max(evicted.first_window, evicted.last_window - _MOST_EVICTED + 1), evicted.last_window + 1)
        self._partly_evicted = set(heapq.nlargest(_MOST_EVICTED, self._partly_evicted.union(newest)))

    def count_unread(self, windows: int, dropped: int) -> None:
        """Counts windows whose frames are not read, and their losses."""
        self.count += windows
        if dropped:
            add(self.dropped, {OTHER: dropped})

    def stepped(self, index: int, numbers: NDArray[np.int32] | NDArray[np.int64]) -> None:
        """Notes that steps of a window have ended."""
        numbers = numbers[numbers >= 0]
        if len(numbers):
            self.stepped_to(index, int(numbers.min()), int(numbers.max()))

    def stepped_to(self, index: int, first: int, last: int) -> None:
        """Notes that the steps `first` to `last` of a window have ended."""
        if index in self._open and 0 <= first <= last <= _MOST:
            before = self._open_steps.get(index, (first, last))
            self._open_steps[index] = min(before[0], first), max(before[1], last)

    def opened(self, payload: fmt.Bytes) -> None:
        """Reads a frame after which the events of a window follow. Raises `msgspec.MsgspecError` if it cannot be read."""
        record = _opened(payload)
        if len(self._open) < _MOST_OPEN:
            self._open[record.index] = record.at_ns

    def closed(self, payload: fmt.Bytes) -> bool:
        """Reads a frame with the end of a window.

        Returns:
            Whether all of it was read: not accounts and diagnostics of more than `MOST_ACCOUNT` bytes.

        Raises:
            msgspec.MsgspecError: if it cannot be read.
        """
        record = _closed(payload)
        fits = [len(part) <= MOST_ACCOUNT for part in (record.ledger, record.diagnostics)]
        ledger = _ledger(record.ledger) if fits[0] else Ledger()
        diagnostics = _diagnostics(record.diagnostics) if fits[1] else []
        lost = losses(ledger)
        add(self.dropped, lost)
        self.count += 1
        self._open.pop(record.index, None)
        self._open_steps.pop(record.index, None)
        steps = record.range
        window = WindowFacts(
            index=record.index,
            open=False,
            start_ns=record.start_ns,
            end_ns=record.end_ns,
            steps=record.count,
            first_step=None if steps is None else steps[0],
            last_step=None if steps is None else steps[1],
            complete=record.complete,
            events=sum(source.accepted for source in ledger.sources.values()),
            dropped=sum(lost.values()),
            diagnostics=tuple(text[:300] for text in diagnostics[:5]),
        )
        self._closed.append(((record.index, steps), window))
        return all(fits)

    def ended(self) -> None:
        """Notes that the stream was closed in order: no window is open."""
        self._open.clear()
        self._open_steps.clear()


def add(lost: Counter[str], more: Mapping[str, int]) -> None:
    """Adds losses; of more than `MOST_REASONS`, the later ones as `OTHER`."""
    for reason, count in more.items():
        lost[reason if reason in lost or len(lost) < MOST_REASONS else OTHER] += count


def losses(ledger: Ledger) -> Counter[str]:
    """Events that sources and the output to the collector lost, by `name/reason`; `MOST_REASONS` and `OTHER` at most."""
    lost: Counter[str] = Counter()
    for name, source in ledger.sources.items():
        add(lost, {f"{name[:40]}/{why[:40]}": count for why, count in source.dropped.items() if count})
    ours = ledger.outputs.get(_OURS)
    if ours is not None:
        add(lost, {f"{_OURS}/{why[:40]}": count for why, count in ours.dropped.items() if count})
    return lost


def places(first: Mapping[Mark, int], again: Mapping[Mark, int]) -> dict[tuple[bool, Mark], int]:
    """The index in the job of each window.

    Windows belong together if they have the same index, unless their step numbers say otherwise: a rank that was started
    again counts its windows from 0, while its steps go on. So the first starts say which steps an index has (the range that
    most have, of equally frequent ones the first), and windows of later starts join those that share most steps.

    Args:
        first: how often each is there of ranks' first starts, in order of rank and time.
        again: the same of later starts.

    Returns:
        By whether it is of a later start, and what it says of itself.
    """
    votes: dict[int, Counter[Steps]] = {}
    for (index, steps), count in first.items():
        if steps is not None:
            votes.setdefault(index, Counter())[steps] += count
    ranges = {index: counted.most_common(1)[0][0] for index, counted in votes.items()}
    window_ranges = _Ranges(ranges)
    last = max([*ranges, *(index for index, _ in first)], default=-1)
    found: dict[tuple[bool, Mark], int] = {}
    for later, marks in ((False, first), (True, again)):
        for index, steps in marks:
            usual = ranges.get(index)
            place = index
            if steps is not None and (later if usual is None else not _overlap(steps, usual)):
                place = window_ranges.best(steps)
                if place < 0:
                    # A window that nobody else has gets an index of its own.
                    last = place = min(last + 1, _MOST)
                    ranges[place] = steps
                    window_ranges.add(place, steps)
            found[later, (index, steps)] = place
    return found


class _Ranges:
    """Ranges of steps, in which one is looked for."""

    def __init__(self, ranges: Mapping[int, Steps]) -> None:
        self._indices = list(ranges)
        self._steps = np.clip(np.array([*ranges.values()], np.int64).reshape(-1, 2), -_FAR, _FAR)

    def add(self, index: int, steps: Steps) -> None:
        if len(self._indices) == len(self._steps):
            self._steps = np.concatenate([self._steps, np.zeros((len(self._steps) + 16, 2), np.int64)])
        self._steps[len(self._indices)] = np.clip(steps, -_FAR, _FAR)
        self._indices.append(index)

    def best(self, steps: Steps) -> int:
        """The window that shares most steps, of several the one with the lowest index; -1 if none shares any."""
        first, last = self._steps[: len(self._indices)].T
        shared = np.minimum(last, min(steps[1], _FAR)) - np.maximum(first, max(steps[0], -_FAR)) + 1
        most = shared.max(initial=0)
        return min((self._indices[at] for at in np.flatnonzero(shared == most)), default=-1) if most > 0 else -1


def _overlap(one: Steps, other: Steps) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]) + 1)
