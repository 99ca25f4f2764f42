"""The flight recorder on the loop: what is kept, what fired, what is saved, which windows stay."""

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
from stepscope.runtime.windows.window import Window

FACTS = "flight"
"""Key of a window's metadata that says why it was saved."""
MAX_CAUSES = 64
"""Further triggers that are named in one window."""
MAX_SAVING = 8
"""Windows that may be on their way to the exporters; a storm of triggers must not pile them up."""


class FlightStatistics(msgspec.Struct, frozen=True):
    """Accounts of the flight recorder."""

    kept: RetentionStatistics
    triggers: WatchStatistics
    steps_kept: int
    """Those that could be saved now, the one under way included."""
    windows_saved: int
    """Windows that were closed, those deleted since included."""
    windows_deleted: int

    def lines(self, *, closed: bool) -> Iterator[str]:
        """The same in words.

        Args:
            closed: whether the run is over, so that nothing is kept any more.
        """
        kept, triggers = self.kept, self.triggers
        if not closed:
            steps = human_count(max(self.steps_kept - 1, 0), "step")
            size = f"{human_count(kept.events, 'event')}, {kept.bytes / 2**20:,.1f} MiB"
            yield f"keeps {steps} and the one under way: {size}"
        fired = ", ".join(f"{reason} ({count:,})" for reason, count in triggers.fired.items())
        yield f"fired {human_count(sum(triggers.fired.values()), 'time')}: {fired}" if fired else "fired never"
        deleted = f", of which {self.windows_deleted:,} since deleted" if self.windows_deleted else ""
        joined = sum(triggers.joined.values())
        already = f"; {human_count(joined, 'time')} the step was in one already" if joined else ""
        yield f"saved {human_count(self.windows_saved, 'window')}{deleted}{already}"

    def notes(self, settings: FlightRecorder) -> Iterator[str]:
        """What is not as it should be, or why there is nothing."""
        kept, triggers = self.kept, self.triggers
        if not triggers.windows:
            watched = ", ".join(trigger.name for trigger in settings.triggers) or "no trigger"
            yield f"nothing saved: of {watched} none fired, and save() was not called; the last steps were let go"
        for why, reasons in triggers.suppressed.items():
            counts = ", ".join(f"{reason} {human_count(count, 'time')}" for reason, count in reasons.items())
            yield f"not saved ({why}): {counts}"
        if triggers.refused:
            yield f"not saved: {triggers.refused:,} calls of save() came faster than they could be looked at"
        if kept.let_go_early:
            yield (
                f"kept too short: {kept.let_go_early:,} events were let go before {settings.steps:,} steps had passed, "
                f"to stay below FlightRecorder.max_bytes ({settings.max_bytes:,}); raise it, or keep fewer steps"
            )
        if kept.heap_bytes:
            yield (
                f"not safe from a kill: {kept.heap_bytes:,} bytes of the last steps are kept on the heap, as the session "
                "directory cannot be written; see Options.session_dir"
            )
        if kept.unreadable:
            yield f"unreadable: {kept.unreadable:,} events in files of the session directory that were damaged"
        for name, missed in triggers.missed.items():
            yield f"trigger {name!r} is behind: it did not see what happened in {human_count(missed, 'look')}"
        if triggers.errors:
            yield f"triggers failed {triggers.errors:,} times; raise_errors() raises what they raised"


class Flight:
    """Of one profiler; called by its pipeline."""

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
        self._told: dict[str, dict[str, int]] = {}
        """What was suppressed by the time of the last window."""

    @property
    def busy(self) -> bool:
        """Whether something fired that is not saved yet."""
        return self.watch.waiting

    def settled(self, at: int) -> bool:
        """Whether all is saved that fired by `at`, in ns."""
        return self.watch.settled(at)

    def saw(self, source: str, events: Block) -> None:
        """A block has arrived; the triggers are shown it with the next look."""
        self._blocks.append((source, events))

    def look(self, until: int) -> None:
        """Everything up to this time, in ns, is known: asks the triggers, opens windows, lets go of what is old."""
        windows = self.windows
        blocks, self._blocks = self._blocks, []
        known = until
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
            known = self.watch.known
        windows.let_go(known)

    def finished(self, window: Window) -> list[int]:
        """A window is closed; the indices of those whose output is to be deleted now."""
        return self._saved.add(window)

    @property
    def staying(self) -> tuple[int, ...]:
        """The windows that were saved and not deleted since, the oldest first; from any thread."""
        return self._saved.staying

    def statistics(self) -> FlightStatistics:
        """Accounts so far."""
        return FlightStatistics(
            kept=self.windows.retention.statistics(),
            triggers=self.watch.statistics(),
            steps_kept=self.windows.steps_kept,
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
            window.facts[FACTS] = {**about, "steps": self.settings.steps, "also": []}
            window.notes.insert(0, _sentence(about))
            window.notes += self._suppressed()

    def _refusal(self, fired: Fired, step: int) -> str:
        """Why a window is not to be opened, empty if it is."""
        if not fired.always and self.windows.open_count + self._unwritten() >= MAX_SAVING:
            return "busy"
        return self.watch.refusal(fired, step)

    def _add_cause(self, window: OpenWindow, about: dict[str, Any]) -> None:
        also: list[dict[str, Any]] = window.facts[FACTS]["also"]
        if len(also) < MAX_CAUSES:
            also.append(about)
            window.notes.append(_sentence(about))

    def _suppressed(self) -> list[str]:
        """What did not save since the last window was opened."""
        counts = self.watch.statistics().suppressed
        new = [
            f"{reason} {human_count(more, 'time')} ({why})"
            for why, reasons in counts.items()
            for reason, count in reasons.items()
            if (more := count - self._told.get(why, {}).get(reason, 0))
        ]
        self._told = counts
        return [f"fired before and did not save: {', '.join(new)}"] if new else []


def _sentence(about: dict[str, Any]) -> str:
    text = f": {about['text']}" if about["text"] else ""
    return f"saved: {about['reason']} in step {about['step']}{text}"
