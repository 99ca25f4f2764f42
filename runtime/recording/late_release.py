"""Late release: a slot of a ring is freed when the journals have its event, so that a killed process loses no events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepscope.runtime import _core
from stepscope.runtime.export.exporter_worker import ExporterWorker
from stepscope.runtime.recording.joined_processes import Workers

STALL_TIMEOUT_NS = 250_000_000
"""Time without progress of the journals after which full rings are freed."""


class JournalBarrier:
    """Passed when the journals have handled all events of the drains so far, the last of which began at `drained_ns`."""

    def __init__(self, drained_ns: int) -> None:
        self._drained_ns = drained_ns
        self._goals: list[tuple[ExporterWorker, int]] | None = None

    def passed(self, routed_ns: int, journals: Sequence[ExporterWorker]) -> bool:
        """Whether they have. All events that began by `routed_ns` were routed."""
        if self._goals is None and routed_ns >= self._drained_ns:
            self._goals = [(journal, journal.items_queued) for journal in journals]
        return self.reached()

    def reached(self) -> bool:
        """Whether they have, as far as that is known. Any thread may call."""
        return self._goals is not None and all(journal.handled >= goal for journal, goal in self._goals)


class LateRelease:
    """Frees the slots of rings once the journals have handled their events. Used on the drain loop.

    Without a journal, a drain frees the slots that it copies. If threads may soon have no free slots (`crowded`) because a
    journal makes no progress, slots are freed early, so that other exporters lose nothing. The control page has the number of
    events that a kill would lose then, for recovery.
    """

    def __init__(self, joined: Workers, crowded: Callable[[], bool]) -> None:
        self._joined, self._crowded = joined, crowded
        self._barrier: JournalBarrier | None = None
        self._early: tuple[int, JournalBarrier] | None = None
        """Number of slots that were freed early, and a barrier for their events."""
        self._progress = (0, 0)
        """Number of items that the journals had handled, and when that last changed, in ns."""

    def begin(self) -> None:
        """A journal was added: from the next drain on, slots wait for it."""
        _core.release_late(True)

    def advance(self, drained_ns: int, routed_ns: int, journals: Sequence[ExporterWorker]) -> None:
        """Called after each routing: frees the slots of events that all journals have; without journals, all slots.

        The last drain began at `drained_ns`, and events that began by `routed_ns` were routed.
        """
        if not journals:
            self.end()
            return
        if self._early is not None and self._early[1].passed(routed_ns, journals):
            self._early = None
        if self._barrier is not None and self._barrier.passed(routed_ns, journals):
            self._release()
        if self._barrier is not None and self._stalled(journals) and self._crowded():
            self._free_early(drained_ns)
        if self._barrier is None:
            self._mark()
            self._barrier = JournalBarrier(drained_ns)
            self._progress = sum(journal.handled for journal in journals), _core.now()
            if self._barrier.passed(routed_ns, journals):
                self._release()
        early = 0 if self._early is None else self._early[0]
        dropped = sum(journal.unreported_drops for journal in journals)
        _core.set_at_risk(early + dropped + _core.private_slots())

    def due(self) -> bool:
        """Whether the journals have handled the events of the slots that wait. Any thread may call."""
        barrier = self._barrier
        return barrier is not None and barrier.reached()

    def release_due(self) -> None:
        """Frees the slots that are due. Called when a journal has made progress, so that a drain finds them free."""
        if self.due():
            self._release()

    def waiting(self) -> bool:
        """Whether threads may soon have no free slots, as journals are behind."""
        return self._barrier is not None and self._crowded()

    def end(self) -> None:
        """Frees all drained slots."""
        self._barrier = self._early = None
        _core.release_late(False)
        self._joined.mark()
        self._joined.release()
        _core.set_at_risk(0)

    def _mark(self) -> None:
        _core.mark_rings()
        self._joined.mark()

    def _release(self) -> None:
        _core.release_rings()
        self._joined.release()
        self._barrier = None

    def _stalled(self, journals: Sequence[ExporterWorker]) -> bool:
        handled, now = sum(journal.handled for journal in journals), _core.now()
        if handled != self._progress[0]:
            self._progress = handled, now
        return now - self._progress[1] > STALL_TIMEOUT_NS

    def _free_early(self, drained_ns: int) -> None:
        before = 0 if self._early is None else self._early[0]
        self._mark()
        count = _core.unreleased()
        self._release()
        self._early = before + count, JournalBarrier(drained_ns)
