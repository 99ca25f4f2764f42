"""Accounts of the events of joined processes, for one profiler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

MAX_ENDED = 256
"""Ended processes with accounts of their own. Those of earlier ones are summed."""


class WorkerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Accounts of a joined process. `produced` = `drained` + `dropped` + `waiting`."""

    pid: int
    """0 for the sum of several processes."""
    name: str
    state: str
    """`recording`; `ended`; `left`: it records for itself now; `broken`: a ring was damaged and dropped."""
    rings: int = 0
    threads: int = 0
    """Living threads that have recorded."""
    broken: int = 0
    """Rings that contradicted themselves. Their remaining events are not counted."""
    produced: int = 0
    drained: int = 0
    dropped: int = 0
    without_ring: int = 0
    """Dropped events of threads that could not get a ring, such as without memory."""
    denied: str = ""
    """Why the last of these threads got no ring."""
    waiting: int = 0
    bytes: int = 0
    """Bytes of drained events and arguments."""

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
        """The difference to an earlier snapshot. Events that were waiting then count as produced since."""
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
    """Ended processes."""

    earlier: WorkerStatistics | None = None
    ended: tuple[tuple[Path, WorkerStatistics], ...] = ()


class WorkerAccounts:
    """Accounts of joined processes from a time on.

    The drain loop's thread calls `end`. Any thread may call `statistics`.
    """

    def __init__(self, living: Mapping[Path, WorkerStatistics]) -> None:
        """Args: the joined processes now, by their directories."""
        self._before = dict(living)
        # Replaced as a whole, so that a reader needs no lock, which a signal handler could not acquire.
        self._past = _Past()

    def end(self, directory: Path, last: WorkerStatistics) -> None:
        """A process has ended or left. If it has recorded nothing since this began, it has no accounts."""
        past, own = self._past, self._since(directory, last)
        if self._before.pop(directory, None) is not None and not (own.produced or own.waiting or own.broken):
            return
        earlier, ended = past.earlier, (*past.ended, (directory, own))
        if len(ended) > MAX_ENDED:
            first, ended = ended[0][1], ended[1:]
            earlier = first if earlier is None else earlier + first
        self._past = _Past(earlier, ended)

    def statistics(self, living: Mapping[Path, WorkerStatistics]) -> tuple[WorkerStatistics, ...]:
        """Accounts of each process, ended ones first. `living` was read before."""
        now = {directory: self._since(directory, total) for directory, total in living.items()}
        past = self._past
        ended = dict(past.ended)
        earlier = () if past.earlier is None else (past.earlier,)
        return (*earlier, *ended.values(), *(total for directory, total in now.items() if directory not in ended))

    def _since(self, directory: Path, total: WorkerStatistics) -> WorkerStatistics:
        before = self._before.get(directory)
        return total if before is None else total.since(before)
