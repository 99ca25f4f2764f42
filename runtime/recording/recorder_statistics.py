"""The accounts of the recorder: a frozen snapshot."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.recording.joined_accounts import WorkerStatistics


class RecorderStatistics(msgspec.Struct, frozen=True):
    """Accounts of the process's rings. `produced` = `drained` + `dropped` + `waiting`."""

    recording: bool
    rings: int
    threads: int
    """Threads alive that have recorded something."""
    produced: int
    drained: int
    dropped: int
    waiting: int
    bytes: int
    """Bytes of events and arguments drained."""
    cut: dict[str, int]
    """What was shortened or refused, by kind."""
    workers: tuple[WorkerStatistics, ...]
    """Accounts of the processes that joined the session; none of it is in the numbers above."""
    unwatched: dict[str, int] = {}
    """Tasks whose suspended time counts as their own, by type: their coroutines cannot be watched."""

    greenlets: int = 0
    """Greenlets that recorded; their suspended time counts as their own."""

    removed: bool = False
    """Somebody has removed the session directory."""

    def notes(self) -> Iterator[str]:
        """What is not as exact as it could be, in words."""
        if self.unwatched:
            kinds = ", ".join(f"{count:,} of {kind}" for kind, count in self.unwatched.items())
            yield (
                f"tasks not watched: {kinds}; the time in which they are suspended counts as their own. Derive the type "
                "from asyncio.Task, or start the profiler before such tasks are made"
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
        """The accounts from an earlier snapshot on, with those of `workers` from then on; what was waiting then counts
        as produced since."""
        return msgspec.structs.replace(
            self,
            produced=self.produced - before.drained - before.dropped,
            drained=self.drained - before.drained,
            dropped=self.dropped - before.dropped,
            bytes=self.bytes - before.bytes,
            cut={what: count - before.cut.get(what, 0) for what, count in self.cut.items()},
            greenlets=self.greenlets - before.greenlets,
            unwatched={
                kind: more for kind, count in self.unwatched.items() if (more := count - before.unwatched.get(kind, 0))
            },
            workers=workers,
        )
