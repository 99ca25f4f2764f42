"""Streams that take the place of others, if they have all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from stepscope.collector.files.disk import Disk
from stepscope.collector.runs.coverage import Coverage, covers
from stepscope.collector.runs.mark import SUPERSEDED, mark_of
from stepscope.runtime.errors import FormatError
from stepscope.runtime.files.private_files import replace_private

log = logging.getLogger("stepscope.collector")

WAIT = 2.0
"""Seconds for which who has written a stream's end waits until it is compared."""
TRIES = 8
"""Comparisons of a stream that goes on growing meanwhile: when it is closed it is compared again."""
KNOWN = 4096
"""Pairs of which it is remembered what came of comparing them."""


def objection(successor: Path, before: Path) -> str:
    """Why a stream does not take the place of another one; empty if it does.

    It does if it is of the same run and has every window of the other one, with as many events or more. One that does not
    say whose it is gives way: no command can use it. One that takes too much to read stays.

    Args:
        successor: journal of the one, which has ended.
        before: journal of the other.

    Raises:
        OSError: if they cannot be read.
    """
    try:
        old = Coverage.of(before)
    except FormatError:
        return ""
    except OSError:
        raise
    except Exception as error:  # whatever is in it: it stays
        return f"which cannot be compared: {type(error).__name__}: {error}"
    try:
        new = Coverage.of(successor)
    except OSError:
        raise
    except Exception as error:
        return f"with which it cannot be compared: {type(error).__name__}: {error}"
    if new.process != old.process:
        return "which is of another run"
    return "" if covers(new, old) else "which has events that it lacks: both are kept"


class Succession:
    """Compares streams, one pair after the other on a thread of its own, and marks those whose place another one takes.

    Methods are for the loop.
    """

    def __init__(self, existing: Callable[[str], Path | None]) -> None:
        """Args: gives the journal of a stream that is kept."""
        self._existing = existing
        self._disk = Disk(1)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._verdicts: dict[tuple[str, Path], tuple[int, int, str]] = {}
        self.replaced: Callable[[str], object] = lambda _: None
        """Is called with a stream when another one has taken its place."""

    async def compare(self, stream: str, before: str) -> None:
        """Has a stream, which is whole, take the place of another one if it has all of that. Returns when that is known, or
        after `WAIT` seconds; it goes on then, also if this is cancelled."""
        if stream not in self._tasks:
            self._tasks[stream] = asyncio.create_task(self._compare(stream, before))
        await asyncio.wait({self._tasks[stream]}, timeout=WAIT)

    async def over(self, stream: str) -> None:
        """Returns when nothing is compared with a stream any more."""
        if (task := self._tasks.get(stream)) is not None:
            await asyncio.wait({task})

    async def grown(self, before: str) -> None:
        """There is more of a stream than there was: if another one has its place, it is looked again whether it has all."""
        await self._attempt(before, lambda: self._look_again(before))

    async def _compare(self, stream: str, before: str) -> None:
        try:
            if await self._attempt(before, lambda: self._mark(stream, self._existing(before))):
                self.replaced(before)
        finally:
            del self._tasks[stream]

    async def _attempt(self, before: str, work: Callable[[], bool]) -> bool:
        try:
            return await self._disk.run(work)
        except Exception as error:  # what is wrong with a file costs neither who delivers another one nor the others
            log.warning("whether stream %s is superseded cannot be told: %s: %s", before, type(error).__name__, error)
            return False

    def _look_again(self, before: str) -> bool:
        path = self._existing(before)
        other = "" if path is None else mark_of(path)
        return bool(other) and self._existing(other) is not None and self._mark(other, path)

    def _mark(self, stream: str, before: Path | None) -> bool:
        """Marks a stream as superseded, or takes such a mark of it away; whether another one has all of it."""
        successor = self._existing(stream)
        if before is None or successor is None:
            return before is None
        why = ""
        for _ in range(TRIES):
            new, old = successor.stat().st_size, before.stat().st_size
            known = self._verdicts.get((stream, before))
            if known is not None and known[:2] == (new, old):
                why = known[2]
            else:
                why = objection(successor, before)
                if len(self._verdicts) >= KNOWN:
                    self._verdicts.clear()
                self._verdicts[stream, before] = new, old, why
                if why:
                    log.warning("stream %s does not take the place of %s, %s", stream, before, why)
            if not why:
                replace_private(before.with_name(SUPERSEDED), stream.encode())
            elif mark_of(before) == stream:
                before.with_name(SUPERSEDED).unlink(missing_ok=True)
            # Who closed it after it was read, and before it was marked, has not had it compared again.
            if before.stat().st_size == old:
                break
        return not why
