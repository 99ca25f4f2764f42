"""The accounts of the recorder and of joined processes: frozen snapshots, and those of one profiler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from stepscope.runtime.display.text_table import human_count

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
    """Dropped events of threads that could not get a ring, such as without memory, or after the process has changed its user."""
    waiting: int = 0
    bytes: int = 0
    """Bytes of drained events and arguments."""

    def __add__(self, other: WorkerStatistics) -> WorkerStatistics:
        names = ("rings", "broken", "produced", "drained", "dropped", "without_ring", "waiting", "bytes")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return WorkerStatistics(pid=0, name="earlier processes", state="ended", **sums)


class RecorderStatistics(msgspec.Struct, frozen=True):
    """Accounts of the process's rings. `produced` = `drained` + `dropped` + `waiting`."""

    recording: bool
    rings: int
    threads: int
    """Living threads that have recorded."""
    produced: int
    drained: int
    dropped: int
    waiting: int
    bytes: int
    """Bytes of drained events and arguments."""
    cut: dict[str, int]
    """Number of shortened or refused items, by kind."""
    workers: tuple[WorkerStatistics, ...]
    """Accounts of joined processes. They are not part of the numbers above."""
    unwatched: dict[str, int] = {}
    """Tasks that recorded and whose suspended time counts as their own, by type: they are older than the profiler, or made without
    their loop's `create_task`."""

    greenlets: int = 0
    """Greenlets that recorded; their suspended time counts as their own."""

    removed: bool = False
    """Whether the session directory was removed from outside."""

    def notes(self) -> Iterator[str]:
        """Texts on inexact values."""
        if self.unwatched:
            kinds = ", ".join(f"{count:,} of {kind}" for kind, count in self.unwatched.items())
            yield (
                f"tasks not watched: {kinds}; the time in which they are suspended counts as their own. Start the profiler before "
                "asyncio.run(), and make tasks by asyncio.create_task()"
            )
        if self.greenlets:
            yield (
                f"{human_count(self.greenlets, 'greenlet')} recorded: each has a row of its own, and the time in which it is "
                "suspended counts as the self time of its spans"
            )

        if self.removed:
            yield (
                "session directory removed: this process goes on, but is not safe from a kill; what joined processes had "
                "in rings that were never seen here is lost without a count. Set Options.session_dir to a place that "
                "nobody cleans"
            )

    def since(self, before: RecorderStatistics, workers: tuple[WorkerStatistics, ...]) -> RecorderStatistics:
        """The difference to an earlier snapshot, with that of `workers`."""
        unwatched = {kind: count - before.unwatched.get(kind, 0) for kind, count in self.unwatched.items()}
        return msgspec.structs.replace(
            _since(self, before, "drained", "dropped", "bytes", "greenlets"),
            cut={what: count - before.cut.get(what, 0) for what, count in self.cut.items()},
            unwatched={kind: count for kind, count in unwatched.items() if count},
            workers=workers,
        )


_Accounts = TypeVar("_Accounts", WorkerStatistics, RecorderStatistics)


def _since(now: _Accounts, before: _Accounts, *names: str) -> _Accounts:
    """The difference of these counts to an earlier snapshot. Events that were waiting then count as produced since."""
    counts = {name: getattr(now, name) - getattr(before, name) for name in names}
    return msgspec.structs.replace(now, produced=now.produced - before.drained - before.dropped, **counts)


class WorkerAccounts:
    """Accounts of joined processes for one profiler, from a time on.

    The drain loop's thread calls `end`. Any thread may call `statistics`.
    """

    def __init__(self, living: Mapping[Path, WorkerStatistics]) -> None:
        """Args: the joined processes now, by their directories."""
        self._before = dict(living)
        # Replaced as a whole, so that a reader needs no lock, which a signal handler could not acquire.
        self._past: tuple[WorkerStatistics | None, dict[Path, WorkerStatistics]] = None, {}
        """The sum of earlier ended processes, and the accounts of later ones."""

    def end(self, directory: Path, last: WorkerStatistics) -> None:
        """A process has ended or left. If it has recorded nothing since this began, it has no accounts."""
        own = self._since(directory, last)
        if self._before.pop(directory, None) is not None and not (own.produced or own.waiting or own.broken):
            return
        earlier, ended = self._past[0], {**self._past[1], directory: own}
        if len(ended) > MAX_ENDED:
            first = ended.pop(next(iter(ended)))
            earlier = first if earlier is None else earlier + first
        self._past = earlier, ended

    def statistics(self, living: Mapping[Path, WorkerStatistics]) -> tuple[WorkerStatistics, ...]:
        """Accounts of each process, ended ones first. `living` was read before."""
        now = {directory: self._since(directory, total) for directory, total in living.items()}
        earlier, ended = self._past
        running = [total for directory, total in now.items() if directory not in ended]
        return (*(() if earlier is None else (earlier,)), *ended.values(), *running)

    def _since(self, directory: Path, total: WorkerStatistics) -> WorkerStatistics:
        before = self._before.get(directory)
        return (
            total if before is None else _since(total, before, "broken", "drained", "dropped", "without_ring", "bytes")
        )
