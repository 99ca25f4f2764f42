"""The spool: keeps what was drained from the rings until the journals have it, so that a killed process loses nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from stepscope.runtime import _core

FILES = ("spool-0", "spool-1")


NOTHING = -1
FULL = -2
"""What `_core.spool` takes in the place of a file: nothing has to be kept; or it has to and is not, and is counted."""


class Writer(Protocol):
    """An outlet, as far as the spool is concerned."""

    @property
    def given(self) -> int: ...
    @property
    def handled(self) -> int: ...
    @property
    def unreported_drops(self) -> int: ...


class Passage:
    """Waits until the journals have handled everything that was drained before it was made."""

    def __init__(self) -> None:
        self._at = _core.now()
        self._goals: list[tuple[Writer, int]] | None = None

    def over(self, routed: int, journals: Sequence[Writer]) -> bool:
        """Whether they have; `routed`: everything that began by this time was routed, in ns."""
        if self._goals is None and routed >= self._at:
            self._goals = [(journal, journal.given) for journal in journals]
        return self._goals is not None and all(journal.handled >= goal for journal, goal in self._goals)


class Spool:
    """Two files of the session directory, filled by turns.

    A drain copies what it takes into one of them before it gives the rings free. When everything in the other one has
    been routed, and the journals have handled what they were given by then, that one is emptied and is next. So an
    event is in a ring, in the spool or in the journal at every moment. What finds no room here, and what the journals
    drop before they can write of it, is counted in the session, for recovery. Used on the loop.

    Args:
        directory: of the session.
        limit: size in bytes of one file after which nothing is added, because a journal does not get on.

    Raises:
        OSError: if the files cannot be made.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._limit = limit
        self._files: list[int] = []
        try:
            for name in FILES:
                self._files.append(os.open(directory / name, flags, 0o600))
        except OSError:
            self.close()
            raise
        self._now = 0
        self._left: Passage | None = None
        """Of the file that is not written to."""
        self._missed: tuple[int, Passage] | None = None
        """Of so many events that are in no file."""
        self._settled = 0
        self.stalled = 0
        """Times that a file had reached its limit."""

    def begin(self) -> None:
        """From now on drains are copied."""
        _core.spool(self._files[self._now])

    def turn(self, routed: int, journals: Sequence[Writer]) -> None:
        """Empties what is not needed any more, after each routing.

        Args:
            routed: everything that began by this time was routed, in ns.
            journals: who must have it; if there is none, nothing is kept.
        """
        self._tell(routed, journals)
        if not journals:
            _core.spool(NOTHING)
            for file in self._files:
                os.ftruncate(file, 0)
            self._left = None
            return
        if self._left is not None and self._left.over(routed, journals):
            os.ftruncate(self._files[1 - self._now], 0)
            self._left = None
        size = os.fstat(self._files[self._now]).st_size
        if self._left is None and size:
            self._now = 1 - self._now
            self._left = Passage()
            size = 0
        full = size > self._limit
        self.stalled += full
        _core.spool(FULL if full else self._files[self._now])

    def _tell(self, routed: int, journals: Sequence[Writer]) -> None:
        """Before anything is emptied: what would be lost without a word then has to be told of first."""
        count = _core.unspooled()
        if self._missed is not None and self._missed[1].over(routed, journals):
            self._settled, self._missed = self._missed[0], None
        if not journals:
            self._settled, self._missed = count, None
        elif self._missed is None and count > self._settled:
            self._missed = count, Passage()
        _core.spool_tell(self._settled, sum(journal.unreported_drops for journal in journals))

    def close(self) -> None:
        """Closes the files; also in a forked child, whose parent goes on with them."""
        _core.spool(NOTHING)
        for file in self._files:
            os.close(file)
        self._files.clear()
