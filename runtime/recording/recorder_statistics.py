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
        """The difference to an earlier snapshot, with that of `workers`. Events that were waiting then count as produced since."""
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
