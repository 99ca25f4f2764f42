"""Saving: the methods of a profiler that save the last steps of the flight recorder."""

from __future__ import annotations

from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.events import clock
from stepscope.runtime.events.json_values import plain
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.flight.trigger_watch import Fired
from stepscope.runtime.flight.triggers.raised import Raised
from stepscope.runtime.flight.triggers.terminated import Terminated
from stepscope.runtime.flight.triggers.trigger import Finding, copied_finding
from stepscope.runtime.loop.drain_loop import DrainLoop
from stepscope.runtime.loop.pipeline import Pipeline
from stepscope.runtime.schedule.schedule import ScheduleFunction
from stepscope.runtime.steps.arming import Arming

MAX_REASON = 200
"""Characters of the reason of a save; the rest is cut."""


class Saving(Arming):
    """The part of a profiler with the calls of the flight recorder. Without a flight recorder they have no effect."""

    def __init__(self, name: str, schedule: ScheduleFunction, keep_last: FlightRecorder | None) -> None:
        super().__init__(name, schedule)
        self.keep_last = keep_last
        self._hub: DrainLoop | None = None

    def save(self, reason: str = "call") -> bool:
        """Saves the last steps, up to now: `trace(keep_last=...)`. Any thread and signal handlers may call.

        The background loop does the saving later. With `FlightRecorder.after` it includes so many further steps. The same
        reason does not save again within the cool-down.

        Args:
            reason: a word or two, for the file name, counts and reports.

        Returns:
            False if nothing will be saved: the profiler retains no steps, does not run, or too many calls wait already.
        """
        finding = Finding(at=clock.now(), text="save() was called", at_once=not self._after)
        return self._fire(plain(str(reason)[:MAX_REASON]) or "call", finding)

    def _never_arms(self) -> str:
        if self.keep_last is None:
            return ""
        return (
            f"the profiler keeps the last {human_count(self.keep_last.steps, 'step')} (keep_last) and records at all times; "
            "profiler.save() writes them, and a second profiler, trace(control=...) without keep_last, records windows"
        )

    def caught(self, error: BaseException) -> bool:
        """Reports an exception that the program handled. It saves as if the exception had left the `with` block.

        Returns:
            False if nothing will be saved: no `Raised` trigger is for such an exception, or as for `save`.
        """
        return self._report_exception(error)

    def _report_exception(self, error: BaseException, always: bool = False) -> bool:
        for trigger in () if self.keep_last is None else self.keep_last.triggers:
            if isinstance(trigger, Raised) and isinstance(error, trigger.only):
                kind, text = type(error).__name__, error_text(error)
                at_once = always or not self._after
                return self._fire(trigger.name, Finding(at=clock.now(), value=kind, text=text, at_once=at_once), always)
        return False

    def _report_end(self, cause: BaseException | str | None) -> None:
        """Reports what ends the run to the flight recorder: an exception, or the name of a signal."""
        if isinstance(cause, BaseException) and self._report_exception(cause, always=True):
            return
        by = "KeyboardInterrupt" if isinstance(cause, KeyboardInterrupt) else cause
        triggers = () if self.keep_last is None else self.keep_last.triggers
        if isinstance(by, str) and any(isinstance(trigger, Terminated) for trigger in triggers):
            self._fire(f"terminated by {by}", Finding(at=clock.now(), value=by, at_once=True), always=True)

    @property
    def _after(self) -> int:
        return 0 if self.keep_last is None else self.keep_last.after

    def _fire(self, reason: str, finding: Finding, always: bool = False) -> bool:
        flight = None if self._pipeline is None else self._pipeline.flight
        if flight is None or self._hub is None or not self._live:
            return False
        # One wake-up is enough for all queued calls; the next drain would find them, too.
        first = not flight.watch.waiting
        accepted = flight.watch.call(Fired(reason, copied_finding(finding), always))
        if first:
            self._hub.wake()
        return accepted

    def _flight_notes(self, pipeline: Pipeline) -> tuple[str, ...]:
        if self.keep_last is None or pipeline.flight is None:
            return ()
        notes = tuple(pipeline.flight.statistics().notes(self.keep_last))
        stepped = self._step > self._first_step
        if self._state in ("stopped", "closed") and not stepped:
            notes += ("never stepped: step() was never called, so what is kept is bounded by bytes only",)
        return notes
