"""Late release: a slot of a ring is free when the journals have its event, so that a killed process loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from stepscope.runtime import _core

STALL_TIMEOUT_NS = 250_000_000
"""Time without progress after which full rings do not wait for the journals any longer."""


class JournalWorker(Protocol):
    """The worker of a journal's exporter."""

    @property
    def items_queued(self) -> int: ...
    @property
    def handled(self) -> int: ...
    @property
    def unreported_drops(self) -> int: ...


class JoinedRings(Protocol):
    """The rings of processes that joined."""

    def mark(self) -> None: ...
    def release(self) -> None: ...


class JournalBarrier:
    """Passed when the journals have handled everything that was drained before it was made."""

    def __init__(self) -> None:
        self._made_ns = _core.now()
        self._goals: list[tuple[JournalWorker, int]] | None = None

    def passed(self, routed_ns: int, journals: Sequence[JournalWorker]) -> bool:
        """Whether they have; everything that began by `routed_ns` was routed."""
        if self._goals is None and routed_ns >= self._made_ns:
            self._goals = [(journal, journal.items_queued) for journal in journals]
        return self._goals is not None and all(journal.handled >= goal for journal, goal in self._goals)


class LateRelease:
    """Frees the slots of rings once the journals have handled what was drained from them. Used on the drain loop.

    While there is no journal, a drain frees what it copies. Where the rings fill up because a journal makes no progress,
    their slots are freed all the same, so that exporters beside it lose nothing: how many events a kill would lose then is
    in the session, for recovery.

    Args:
        joined: the rings of processes that joined.
        crowded: whether so many slots are not free that threads may soon find no room.
    """

    def __init__(self, joined: JoinedRings, crowded: Callable[[], bool]) -> None:
        self._joined, self._crowded = joined, crowded
        self._barrier: JournalBarrier | None = None
        self._early: tuple[int, JournalBarrier] | None = None
        """Slots that were freed early, and when the journals have what was in them."""
        self._progress = (0, 0)
        """Items that the journals had handled, and since when, in ns."""
        self.stalls = 0
        """Times that slots were freed before a journal had their events."""

    def begin(self) -> None:
        """A journal comes: from the next drain on slots wait for it."""
        _core.release_late(True)

    def advance(self, routed_ns: int, journals: Sequence[JournalWorker]) -> None:
        """Frees what may be freed; to be called after each routing.

        Args:
            routed_ns: everything that began by this time was routed.
            journals: the workers of all journals; without any, nothing waits.
        """
        if not journals:
            self.end()
            return
        if self._early is not None and self._early[1].passed(routed_ns, journals):
            self._early = None
        if self._barrier is not None and self._barrier.passed(routed_ns, journals):
            self._release()
        if self._barrier is not None and self._stalled(journals) and self._crowded():
            self._free_early()
        if self._barrier is None:
            _core.mark_rings()
            self._joined.mark()
            self._barrier = JournalBarrier()
            self._progress = sum(journal.handled for journal in journals), _core.now()
        early = 0 if self._early is None else self._early[0]
        dropped = sum(journal.unreported_drops for journal in journals)
        _core.set_at_risk(early + dropped + _core.private_slots())

    def waiting(self) -> bool:
        """Whether threads may soon find no room in the rings while journals are behind."""
        return self._barrier is not None and self._crowded()

    def end(self) -> None:
        """Frees everything that was drained."""
        self._barrier = self._early = None
        _core.release_late(False)
        self._joined.mark()
        self._joined.release()
        _core.set_at_risk(0)

    def _release(self) -> None:
        _core.release_rings()
        self._joined.release()
        self._barrier = None

    def _stalled(self, journals: Sequence[JournalWorker]) -> bool:
        handled, now = sum(journal.handled for journal in journals), _core.now()
        if handled != self._progress[0]:
            self._progress = handled, now
        return now - self._progress[1] > STALL_TIMEOUT_NS

    def _free_early(self) -> None:
        before = 0 if self._early is None else self._early[0]
        _core.mark_rings()
        self._joined.mark()
        count = _core.unreleased()
        self._release()
        self._early = before + count, JournalBarrier()
        self.stalls += 1
