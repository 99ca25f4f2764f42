"""What became of the events of processes that joined, as one profiler sees it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

KEPT_ENDED = 256
"""Ended processes whose accounts are kept apart; those of earlier ones are added up."""


class WorkerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Accounts of a process that joined. `produced` = `drained` + `dropped` + `waiting`."""

    pid: int
    """0 for several together."""
    name: str
    state: str
    """`recording`; `ended`; `left`: it records for itself now; `broken`: some ring was damaged and let go."""
    rings: int = 0
    threads: int = 0
    """Threads alive that have recorded something."""
    broken: int = 0
    """Rings that contradicted themselves; what was left in them is not counted."""
    produced: int = 0
    drained: int = 0
    dropped: int = 0
    without_ring: int = 0
    """Those of `dropped` that were recorded by threads which could have no ring, as where memory is full."""
    denied: str = ""
    """Why the last of these could have none."""
    waiting: int = 0
    bytes: int = 0
    """Bytes of events and arguments drained."""

    def __add__(self, other: WorkerStatistics) -> WorkerStatistics:
        return WorkerStatistics(
            pid=0,
            name="earlier processes",
            state="ended",
            rings=self.rings + other.rings,
            broken=self.broken + other.broken,
            produced=self.produced + other.produced,
            drained=self.drained + other.drained,
            dropped=self.dropped + other.dropped,
            without_ring=self.without_ring + other.without_ring,
            waiting=self.waiting + other.waiting,
            bytes=self.bytes + other.bytes,
        )

    def since(self, before: WorkerStatistics) -> WorkerStatistics:
        """The accounts from an earlier snapshot on; what was waiting then counts as produced since."""
        return msgspec.structs.replace(
            self,
            broken=self.broken - before.broken,
            produced=self.produced - before.drained - before.dropped,
            drained=self.drained - before.drained,
            dropped=self.dropped - before.dropped,
            without_ring=self.without_ring - before.without_ring,
            bytes=self.bytes - before.bytes,
        )


class _Past(msgspec.Struct, frozen=True):
    """Processes that have ended."""

    earlier: WorkerStatistics | None = None
    ended: tuple[tuple[Path, WorkerStatistics], ...] = ()


class WorkerAccounts:
    """Accounts of the processes that take part from a time on, and of each what it does from then on.

    `end` is called by the drain loop's thread, `statistics` by any.
    """

    def __init__(self, living: Mapping[Path, WorkerStatistics]) -> None:
        """Args: the processes that take part now, by their directories."""
        self._before = dict(living)
        # Replaced as a whole, so that a reader needs no lock, which a signal handler might find held.
        self._past = _Past()

    def end(self, directory: Path, last: WorkerStatistics) -> None:
        """A process takes part no more. One that did nothing since this began, and was only noticed to have ended, was
        none of it."""
        past, mine = self._past, self._since(directory, last)
        if self._before.pop(directory, None) is not None and not (mine.produced or mine.waiting or mine.broken):
            return
        earlier, ended = past.earlier, (*past.ended, (directory, mine))
        if len(ended) > KEPT_ENDED:
            first, ended = ended[0][1], ended[1:]
            earlier = first if earlier is None else earlier + first
        self._past = _Past(earlier, ended)

    def statistics(self, living: Mapping[Path, WorkerStatistics]) -> tuple[WorkerStatistics, ...]:
        """Accounts of each, those that have ended first; `living` was read before."""
        now = {directory: self._since(directory, known) for directory, known in living.items()}
        past = self._past
        ended = dict(past.ended)
        earlier = () if past.earlier is None else (past.earlier,)
        return (*earlier, *ended.values(), *(known for directory, known in now.items() if directory not in ended))

    def _since(self, directory: Path, known: WorkerStatistics) -> WorkerStatistics:
        before = self._before.get(directory)
        return known if before is None else known.since(before)
