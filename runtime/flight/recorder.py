"""The flight recorder on the loop: asks the triggers, and opens, retains and deletes windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.events.record import Block
from stepscope.runtime.flight.late_windows import FlightWindows
from stepscope.runtime.flight.retention import RetentionStatistics
from stepscope.runtime.flight.saved import SavedWindows
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.flight.trigger_watch import Fired, TriggerWatch, WatchStatistics
from stepscope.runtime.flight.triggers.trigger import News
from stepscope.runtime.windows.open_window import OpenWindow
from stepscope.runtime.windows.window import FLIGHT, Window

MAX_CAUSES = 64
"""Further triggers that are named in one window."""
MAX_SAVING = 8
"""Windows that wait for exporters at most. Triggers that fire again and again must not fill the memory."""


class FlightStatistics(msgspec.Struct, frozen=True):
    """Accounts of the flight recorder."""

    retained: RetentionStatistics
    triggers: WatchStatistics
    steps_retained: int
    """Steps that could be saved now, including the current one."""
    windows_saved: int
    """Closed windows, including those deleted since."""
    windows_deleted: int

    def lines(self, *, closed: bool) -> Iterator[str]:
        """Yields lines for the report.

        Args:
            closed: whether the run is over, so that nothing is retained.
        """
        retained, triggers = self.retained, self.triggers
        if not closed:
            steps = human_count(max(self.steps_retained - 1, 0), "step")
            size = f"{human_count(retained.events, 'event')}, {retained.bytes / 2**20:,.1f} MiB"
            yield f"keeps {steps} and the one under way: {size}"
        fired = ", ".join(f"{reason} ({count:,})" for reason, count in triggers.fired.items())
        yield f"fired {human_count(sum(triggers.fired.values()), 'time')}: {fired}" if fired else "fired never"
        deleted = f", of which {self.windows_deleted:,} since deleted" if self.windows_deleted else ""
        joined = sum(triggers.joined.values())
        already = f"; {human_count(joined, 'time')} the step was in one already" if joined else ""
        yield f"saved {human_count(self.windows_saved, 'window')}{deleted}{already}"

    def notes(self, settings: FlightRecorder) -> Iterator[str]:
        """Yields a note for each problem, and the reason if nothing was saved."""
        retained, triggers = self.retained, self.triggers
        if not triggers.windows:
            watched = ", ".join(trigger.name for trigger in settings.triggers) or "no trigger"
            yield f"nothing saved: of {watched} none fired, and save() was not called; the last steps were let go"
        for why, reasons in triggers.suppressed.items():
            counts = ", ".join(f"{reason} {human_count(count, 'time')}" for reason, count in reasons.items())
            yield f"not saved ({why}): {counts}"
        if triggers.refused:
            yield f"not saved: {triggers.refused:,} calls of save() came faster than they could be looked at"
        if retained.discarded_early:
            yield (
                f"kept too short: {retained.discarded_early:,} events were let go before {settings.steps:,} steps had passed, "
                f"to stay below FlightRecorder.max_bytes ({settings.max_bytes:,}); raise it, or keep fewer steps"
            )
        if retained.heap_bytes:
            yield (
                f"not safe from a kill: {retained.heap_bytes:,} bytes of the last steps are kept on the heap, as the session "
                "directory cannot be written; see Options.session_dir"
            )
        if retained.unreadable:
            yield f"unreadable: {retained.unreadable:,} events in files of the session directory that were damaged"
        for name, missed in triggers.missed.items():
            yield f"trigger {name!r} is behind: it did not see what happened in {human_count(missed, 'look')}"
        if triggers.errors:
            yield f"triggers failed {triggers.errors:,} times; raise_errors() raises what they raised"


class Flight:
    """The flight recorder of one profiler. The pipeline calls it."""

    def __init__(
        self,
        settings: FlightRecorder,
        serial: int,
        linger_ns: int,
        fallback_track: int,
        directory: Path | None,
        unwritten: Callable[[], int],
    ) -> None:
        """Args: as for `FlightWindows`; how many windows that are closed no exporter has written yet."""
        self.settings = settings
        self._unwritten = unwritten
        self.watch = TriggerWatch(settings)
        self.windows = FlightWindows(serial, linger_ns, fallback_track, settings, directory)
        self._saved = SavedWindows(settings.keep_newest, settings.keep_slowest)
        self._blocks: list[tuple[str, Block]] = []

    @property
    def busy(self) -> bool:
        """Whether something fired that is not saved yet."""
        return self.watch.waiting

    def resolved(self, at: int) -> bool:
        """Whether all findings until `at`, in ns, were processed."""
        return self.watch.resolved(at)

    def saw(self, source: str, events: Block) -> None:
        """Adds a block that has arrived, for the next look of the triggers."""
        self._blocks.append((source, events))

    def look(self, until: int) -> None:
        """All events up to this time, in ns, have arrived: asks the triggers, opens windows and discards old blocks."""
        windows = self.windows
        blocks, self._blocks = self._blocks, []
        examined = until
        if len(windows.steps):
            under_way = windows.steps.mark(windows.steps.find(until))
            news = News(
                now=until,
                steps=windows.ended_steps(until),
                blocks=blocks,
                step=under_way.number,
                step_began=None if windows.paused else windows.began(under_way.ts),
            )
            for fired in self.watch.look(news):
                self._save(fired, until)
            examined = self.watch.examined_until
        windows.discard(examined)

    def finished(self, window: Window) -> list[int]:
        """A window was closed. Returns the indices of windows whose output must be deleted now."""
        return self._saved.add(window)

    @property
    def remaining(self) -> tuple[int, ...]:
        """The windows that were saved and not deleted, the oldest first. Any thread may call."""
        return self._saved.remaining

    def statistics(self) -> FlightStatistics:
        return FlightStatistics(
            retained=self.windows.retention.statistics(),
            triggers=self.watch.statistics(),
            steps_retained=self.windows.steps_retained,
            windows_saved=self._saved.saved,
            windows_deleted=self._saved.discarded,
        )

    def _save(self, fired: Fired, now: int) -> None:
        windows, finding = self.windows, fired.finding
        at = windows.clamp(finding.at)
        mark = windows.steps.mark(windows.steps.find(at))
        about: dict[str, Any] = {
            "reason": fired.reason,
            "step": mark.number,
            "at_ns": at,
            "value": finding.value,
            "text": finding.text,
        }
        window = windows.window_at(at)
        if window is not None:
            self.watch.joined(fired)
            self._add_cause(window, about)
            if finding.at_once:
                windows.end_at_once(window, at, now)
        elif windows.saved_at(at):
            self.watch.joined(fired)
        elif why := self._refusal(fired, mark.number):
            self.watch.suppress(fired, why)
        else:
            window = windows.save(at, finding.at_once, now)
            self.watch.opened(fired, mark.number)
            window.facts[FLIGHT] = {**about, "steps": self.settings.steps, "also": []}
            window.notes.insert(0, _sentence(about))

    def _refusal(self, fired: Fired, step: int) -> str:
        """Why no window may be opened; empty if it may."""
        if not fired.always and self.windows.unfinished + self._unwritten() >= MAX_SAVING:
            return "busy"
        return self.watch.refusal(fired, step)

    def _add_cause(self, window: OpenWindow, about: dict[str, Any]) -> None:
        also: list[dict[str, Any]] = window.facts[FLIGHT]["also"]
        if len(also) < MAX_CAUSES:
            also.append(about)
            window.notes.append(_sentence(about))


def _sentence(about: dict[str, Any]) -> str:
    text = f": {about['text']}" if about["text"] else ""
    return f"saved: {about['reason']} in step {about['step']}{text}"
