"""Saving: the calls that have the flight recorder save the last steps."""

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
from stepscope.runtime.steps.step_controller import StepController

MAX_REASON = 200
"""Characters of the reason of a save; the rest is cut."""


class Saving:
    """Fires the flight recorder of a profiler, from any thread. Without a flight recorder it has no effect."""

    def __init__(self, settings: FlightRecorder | None, steps: StepController) -> None:
        """Args: `trace(keep_last=...)`; the steps, whose pipeline has the flight recorder once the run is open."""
        self._steps = steps
        self._triggers = () if settings is None else settings.triggers
        self._after = 0 if settings is None else settings.after

    def save(self, reason: str) -> bool:
        """Saves the last steps; false if nothing will be saved."""
        finding = Finding(at=clock.now(), text="save() was called", at_once=not self._after)
        return self._fire(plain(str(reason)[:MAX_REASON]) or "call", finding)

    def caught(self, error: BaseException, *, always: bool = False) -> bool:
        """Saves if a trigger is for such an exception; `always`: also within the cool-down."""
        for trigger in self._triggers:
            if isinstance(trigger, Raised) and isinstance(error, trigger.only):
                kind, text = type(error).__name__, error_text(error)
                at_once = always or not self._after
                return self._fire(trigger.name, Finding(at=clock.now(), value=kind, text=text, at_once=at_once), always)
        return False

    def ended_by(self, cause: BaseException | str | None) -> None:
        """Saves if a trigger is for what ends the run: an exception, or the name of a signal."""
        if isinstance(cause, BaseException) and self.caught(cause, always=True):
            return
        by = "KeyboardInterrupt" if isinstance(cause, KeyboardInterrupt) else cause
        if isinstance(by, str) and any(isinstance(trigger, Terminated) for trigger in self._triggers):
            self._fire(f"terminated by {by}", Finding(at=clock.now(), value=by, at_once=True), always=True)

    def _fire(self, reason: str, finding: Finding, always: bool = False) -> bool:
        pipeline = self._steps.pipeline
        if pipeline is None or pipeline.flight is None or not self._steps.live:
            return False
        watch = pipeline.flight.watch
        # One wake-up is enough for all queued calls; the next drain would find them, too.
        first = not watch.waiting
        accepted = watch.call(Fired(reason, copied_finding(finding), always))
        if first:
            pipeline.inbox.wake()
        return accepted


def why_no_arming(settings: FlightRecorder | None) -> str:
    """Why a profiler with a flight recorder refuses requests for windows; empty without one."""
    if settings is None:
        return ""
    return (
        f"the profiler keeps the last {human_count(settings.steps, 'step')} (keep_last) and records at all times; "
        "profiler.save() writes them, and a second profiler, trace(control=...) without keep_last, records windows"
    )
