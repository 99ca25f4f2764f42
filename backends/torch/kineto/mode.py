"""Kineto mode: torch's own profiler, driven on the training thread and read off it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack

from stepscope.backends.torch.gaps import Gaps
from stepscope.backends.torch.kineto.session import session
from stepscope.backends.torch.kineto.slot import slot
from stepscope.backends.torch.kineto.worker import FinishedTrace, Keeper, KinetoWorker, notes_of
from stepscope.backends.torch.settings import TorchSettings
from stepscope.runtime.events import clock
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.detail import FULL, Detail
from stepscope.runtime.sources.sink import BackendReport, Sink


class KinetoMode:
    """Records with kineto. All calls but `aclose` and `report` come from the training thread."""

    def __init__(self, settings: TorchSettings, sink: Sink, keeper: Keeper | None = None) -> None:
        """Args: what to record; where events go; who else gets each stretch of the recording as torch has it."""
        self._settings = settings
        self._worker = KinetoWorker(sink, keeper)
        self.gaps = Gaps(sink)
        self._since = 0
        self._warm = self._recording = self._closed = self._throws_away = False
        slot.watch()
        self._watching = ExitStack()
        self._watching.callback(slot.unwatch)
        self._problems: Counter[str] = Counter()
        self._cost_ns = 0
        self._detail = FULL
        self._chosen: dict[str, bool] = {}
        self.wants = settings
        """The current settings of torch's profiler."""

    @property
    def recording(self) -> bool:
        """True if kineto records now."""
        return self._recording and not self.gaps.open

    def set_detail(self, detail: Detail) -> None:
        """Records operators or not, in windows that are prepared from now on."""
        self._detail = detail

    def choose(self, chosen: Mapping[str, bool]) -> None:
        """Replaces the settings for windows that are prepared from now on."""
        self._chosen = dict(chosen)

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if self._closed:
            self.abandon()
            return
        began = clock.now()
        recorded = self._recording
        if recorded and (not after.records or before is ProfilerAction.RECORD_AND_SAVE):
            self._stop(at)
        if not self._recording:  # what is recorded already stays as it is
            self.wants = self._settings.chosen(self._chosen)
        if after is ProfilerAction.WARMUP and not self._warm:
            self._warm = self._allowed() and self._done(session.warm_up_for(self))
        elif after.records and not self._recording:
            self._start(at)
        elif after.records:
            session.reoccupy()
        elif after is ProfilerAction.NONE and self._warm:
            self._warm = False
            session.cancel_warm_up(self)
        if not recorded:
            self._worker.put(at)
        self._cost_ns += clock.now() - began

    def toggle(self, enable: bool, activities: frozenset[str]) -> bool:
        """Switches kinds of activities off and on again; False unless it records on this thread."""
        return self._recording and session.toggle(enable, activities)

    def abandon(self) -> None:
        """Ends a recording and throws it away."""
        if self._recording:
            self._throws_away = True
            self._recording = False
            session.stop_for(self, clock.now())
            self.gaps.end(clock.now())
        if self._closed:
            self._watching.close()

    def orphaned(self) -> None:
        """The thread that records has ended. A session that is left to itself crashes torch when the process exits, so it
        is ended from here; what it recorded cannot be had."""
        if self._recording:
            self._recording = False
            self.gaps.end(self._since)
            self.gaps.add(self._since, clock.now(), "the thread that recorded it has ended")
            self._done(session.forget(self))
        if self._closed:
            self._watching.close()

    async def aclose(self) -> None:
        self._closed = True
        if self._recording:
            self.gaps.add(self._since, clock.now(), "recording was not ended on the thread that began it")
        else:
            self._watching.close()
        await self._worker.aclose()

    def report(self) -> BackendReport:
        problems = self._problems + self._worker.problems
        return BackendReport(
            mode="kineto",
            clock=f"CLOCK_REALTIME as kineto has it, mapped by two readings per window within {self._worker.clock_error_ns} ns",
            training_thread_ns=self._cost_ns,
            notes=(*self.gaps.notes(), *notes_of(problems)),
        )

    # what the session calls

    def add(self, trace: FinishedTrace) -> None:
        """Gets a stretch of the recording; those of one mode do not overlap."""
        if self._throws_away:
            trace.result.release()
        else:
            self._worker.put(trace)

    def _start(self, at: int) -> None:
        allowed = self._warm or self._allowed()
        self._warm = False
        if not allowed:
            return
        self._recording, self._since = True, at
        problem = session.record_for(self)
        if problem:
            self.gaps.begin(at, problem)

    def _stop(self, at: int) -> None:
        self._recording = False
        session.stop_for(self, at)
        self.gaps.end(at)
        self._worker.put(at)

    def _allowed(self) -> bool:
        """True if a window may have operators; says what it will lack."""
        if not self._detail.operators and not self._detail.requested:
            self._problems["a window has no operators, to keep within overhead_budget"] += 1
        return self._detail.operators

    def _done(self, problem: str) -> bool:
        if problem:
            self._problems[problem] += 1
        return not problem
