"""Saving: the calls by which a program has the flight recorder save its last steps."""

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
from stepscope.runtime.recording.arming import Arming
from stepscope.runtime.schedule.schedule import ScheduleFunction

MAX_REASON = 200
"""Characters kept of the reason of a save."""


class Saving(Arming):
    """The half of a profiler that answers calls of the flight recorder; without one they come to nothing."""

    def __init__(self, name: str, schedule: ScheduleFunction, keep_last: FlightRecorder | None) -> None:
        super().__init__(name, schedule)
        self.keep_last = keep_last
        self._hub: DrainLoop | None = None

    def save(self, reason: str = "call") -> bool:
        """Saves the last steps, up to now: `trace(keep_last=...)`. From any thread, and from signal handlers.

        With `FlightRecorder.after` it saves up to the end of so many steps more. The same reason does not save again
        within the cool-down. It only asks: the saving is done on the background loop.

        Args:
            reason: a word or two; part of the file's name, and what counts and reports call it.

        Returns:
            False if nothing comes of it: the profiler keeps no steps, does not run, or too many calls wait already.
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
        """Tells the flight recorder of an exception that was handled; saves as one that leaves the `with` does.

        Returns:
            False if nothing comes of it: there is no `Raised` trigger for such an exception, or as for `save`.
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
        """Tells the flight recorder what ends the run: an exception, or a signal by its name."""
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
        # One wake is enough for all that wait; at the latest the next drain looks.
        first = not flight.watch.waiting
        taken = flight.watch.call(Fired(reason, copied_finding(finding), always))
        if first:
            self._hub.wake()
        return taken

    def _flight_notes(self, pipeline: Pipeline) -> tuple[str, ...]:
        if self.keep_last is None or pipeline.flight is None:
            return ()
        notes = tuple(pipeline.flight.statistics().notes(self.keep_last))
        stepped = self._step > self._first_step
        if self._state in ("stopped", "closed") and not stepped:
            notes += ("never stepped: step() was never called, so what is kept is bounded by bytes only",)
        return notes
