"""What all journals of a collector hold: windows, those together that are one of their job, and streams that are over."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping

import msgspec

from stepscope.collector.live.streams import Streams
from stepscope.collector.retention.inventory import Inventory
from stepscope.collector.retention.retention import Held
from stepscope.collector.runs.places import Mark, places

FORSAKEN = 3600 * 10**9
"""ns without news after which a stream is over that has no end: its process was killed."""

NEVER = 1 << 63
"""ns."""

Copied = Callable[[str], int]
"""How many bytes of a stream's file are elsewhere as well."""


class Over(msgspec.Struct, frozen=True):
    """A stream of which nothing more is expected."""

    stream: str
    end_ns: int
    """Unix time of its last window, no later than that was seen."""
    inventory: Inventory


class Holdings:
    """The state at one moment."""

    def __init__(self, inventories: Mapping[str, Inventory], streams: Streams | None, copied: Copied | None) -> None:
        """Args: the journals by their streams; what is known of these; if everything is to be copied, how much was."""
        self._inventories, self._streams, self._copied = inventories, streams, copied
        of_jobs = self._starts(lambda stream: inventories[stream].job)
        self._over = {stream for starts in of_jobs for stream in starts[:-1]}
        if streams is not None:
            self._over |= set(filter(streams.over, inventories))
        self._runs = self._of_runs()
        self._later = {stream for starts in self._starts(self._runs.__getitem__) for stream in starts[1:]}
        self.windows = self._held()

    @property
    def nbytes(self) -> int:
        """Of all events."""
        return sum(one.nbytes for one in self.windows)

    def over(self, dear: Collection[Hashable], now: int | None = None) -> list[Over]:
        """The streams that may be deleted, the oldest first: they are over, have no window that is dear, and are elsewhere as
        well if everything is to be copied.

        Args:
            dear: groups of windows that are kept longest.
            now: Unix time in ns.
        """
        now = time.time_ns() if now is None else now
        wanted = {one.stream for one in self.windows if one.group in dear}
        unread = {} if self._streams is None else self._streams.unread
        found: list[Over] = []
        for stream, one in self._inventories.items():
            ended = one.ended or (stream in self._over and now - one.grown_ns > FORSAKEN)
            copied = self._copied is None or self._copied(stream) >= one.position
            if ended and copied and stream not in wanted and stream not in unread:
                found.append(Over(stream, one.last_ns, one))
        return sorted(found, key=lambda one: one.end_ns)

    def _starts(self, whose: Callable[[str], Hashable]) -> Collection[list[str]]:
        """The streams of each rank, the oldest first; `whose`: of what it is a rank."""
        found: defaultdict[tuple[Hashable, int | None, str], list[str]] = defaultdict(list)
        for stream, one in sorted(self._inventories.items(), key=lambda item: item[1].began_ns):
            found[whose(stream), one.rank, stream if one.rank is None else ""].append(stream)
        return found.values()

    def _of_runs(self) -> dict[str, tuple[str, int]]:
        """The job of each stream, and which run of it: one that began when all before were over is another one, and its steps
        are not theirs, though they may have the same numbers."""
        found: dict[str, tuple[str, int]] = {}
        numbers, until = Counter[str](), Counter[str]()
        for stream, one in sorted(self._inventories.items(), key=lambda item: item[1].made_ns):
            numbers[one.job] += one.made_ns > until[one.job]
            end = one.written_ns if one.ended or stream in self._over else NEVER
            until[one.job] = max(until[one.job], end)
            found[stream] = one.job, numbers[one.job]
        return found

    def _held(self) -> list[Held]:
        marks: defaultdict[tuple[str, int], tuple[Counter[Mark], Counter[Mark]]] = defaultdict(
            lambda: (Counter(), Counter())
        )
        for stream, one in self._inventories.items():
            marks[self._runs[stream]][stream in self._later].update(map(one.mark, one.windows))
        placed = {run: places(*its) for run, its in marks.items()}
        held: list[Held] = []
        for stream, one in self._inventories.items():
            copied = None if self._copied is None else self._copied(stream)
            later, run = stream in self._later, self._runs[stream]
            for window, extent in one.windows.items():
                # What a later start is at is no window of the job until its steps say which.
                own = not one.job or (later and extent.steps is None)
                held.append(
                    Held(
                        stream=stream,
                        group=(stream, window) if own else (*run, placed[run][later, one.mark(window)]),
                        window=window,
                        nbytes=extent.nbytes,
                        end_ns=extent.last_ns,
                        step_ns=extent.step_ns,
                        closed=extent.closed or stream in self._over,
                        copied=copied is None or extent.end <= copied,
                    )
                )
        return held
