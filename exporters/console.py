"""The console exporter: a progress line while the run goes on, and the top of the table at each window's end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

import msgspec

from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.runtime.accounting.ledger import Ledger, losses
from stepscope.runtime.display.text_table import human_count, human_time, printable
from stepscope.runtime.events.record import Kind
from stepscope.runtime.export.exporter_accounts import counted
from stepscope.runtime.loop_threads.loop_thread import call_in_thread
from stepscope.runtime.settings.arguments import got, number_argument
from stepscope.runtime.windows.summary import SORT_KEYS


class ConsoleStatistics(msgspec.Struct, frozen=True):
    """Counts of the progress line."""

    step: int = -1
    """The newest step seen, 0-based; -1 before the first."""
    step_ns: float = 0.0
    """Mean duration of the steps between the last two step marks."""
    events: int = 0
    dropped: int = 0
    """Events that their sources lost."""
    windows: int = 0


class ConsoleExporter:
    """Shows progress on a terminal; plain lines where there is no terminal.

    It never raises because of its stream: once the terminal is gone, it counts in `write_errors` and keeps quiet.

    Args:
        stream: where to write; default: `sys.stderr` as it is when the run opens.
        interval: seconds between two progress lines.
        top: rows of the table shown when a window ends; 0 shows none.
        sort_by: column that the table is sorted by, see `Summary.table`.
        clock: seconds, monotonic.

    Raises:
        TypeError: an argument is not what it should be.
        ValueError: an argument is out of its range.
    """

    name = "console"

    def __init__(
        self,
        stream: TextIO | None = None,
        interval: float = 1.0,
        *,
        top: int = 10,
        sort_by: str = "self",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if stream is not None and not hasattr(stream, "write"):
            raise TypeError(f"stream must be an open file, {got(stream)}; leave it out for standard error")
        number_argument("interval", interval, unit="seconds")
        number_argument("top", top, whole=True)
        if sort_by not in SORT_KEYS:
            raise ValueError(f"cannot sort by {sort_by!r}: it must be one of {', '.join(SORT_KEYS)}")
        if interval < 0:
            raise ValueError(f"interval must not be negative, got {interval}")
        self.write_errors = 0
        """Writes that failed: the terminal was closed."""
        self._stream = stream
        self._interval = interval
        self._top = top
        self._sort_by = sort_by
        self._clock = clock
        self._statistics = ConsoleStatistics()
        self._shown_at = -float("inf")
        self._mark: tuple[int, int] | None = None
        self._title = ""
        self._run: Run | None = None

    def statistics(self) -> ConsoleStatistics:
        """The counts of the next progress line."""
        return self._statistics

    async def open(self, run: Run) -> None:
        self._run = run
        self._stream = self._stream or sys.stderr
        rank = "" if run.rank is None else f" rank {run.rank}"
        self._title = printable(run.name) + rank

    async def export(self, batch: EventBatch) -> None:
        self._count(batch)
        now = self._clock()
        if now - self._shown_at >= self._interval:
            self._shown_at = now
            await self._show(self._progress(), last=False)

    async def close_window(self, window: Window) -> None:
        self._statistics = msgspec.structs.replace(self._statistics, windows=self._statistics.windows + 1)
        state = "" if window.complete else ", incomplete"
        length = human_time(max(window.end_ns - window.start_ns, 0))
        steps = f"{len(window.steps)} step" + ("" if len(window.steps) == 1 else "s")
        lines = [f"{self._title}: window {window.index} ended: {steps} in {length}{state}"]
        lines += [f"  {printable(line)}" for line in _account(window.ledger)]
        lines += [f"  {printable(reason)}" for reason in window.diagnostics]
        if self._top and window.actions is not None:
            lines.append(window.summary().table(self._sort_by, self._top))
        await self._show("\n".join(lines), last=True)

    async def aclose(self) -> None:
        if self._run is not None:
            now, ledger = self._statistics, self._run.ledger()
            windows = f"{now.windows} window" + ("" if now.windows == 1 else "s")
            text = f"{self._title}: {windows}, {now.events:,} events, {now.dropped:,} dropped"
            if ledger.sources or ledger.outputs:
                lines = "".join(f"\n  {printable(line)}" for line in _account(ledger))
                text = f"{self._title}: accounts of the run{lines}\n{text}"
            self._run = None
            await self._show(text, last=True)

    def _count(self, batch: EventBatch) -> None:
        events = batch.events
        kinds = events["kind"]
        marks = events[kinds == int(Kind.STEP)]
        step, step_ns = self._statistics.step, self._statistics.step_ns
        for number, at in sorted(zip(marks["step"].tolist(), marks["ts"].tolist(), strict=True)):
            if self._mark is not None and number > self._mark[0]:
                step_ns = (at - self._mark[1]) / (number - self._mark[0])
            self._mark = (number, at)
            step = max(step, number)
        self._statistics = msgspec.structs.replace(
            self._statistics,
            step=step,
            step_ns=step_ns,
            events=self._statistics.events + len(events),
            dropped=self._statistics.dropped + losses(events).total(),
        )

    def _progress(self) -> str:
        now = self._statistics
        step = f"step {now.step}" if now.step >= 0 else "no step yet"
        pace = f", {human_time(now.step_ns)}/step" if now.step_ns > 0 else ""
        return f"{self._title}: {step}{pace}, {now.events:,} events, {now.dropped:,} dropped"

    async def _show(self, text: str, *, last: bool) -> None:
        if not self.write_errors:
            # A terminal may be slow or stopped; the loop must not wait for it.
            await call_in_thread(self._write, text, last)

    def _write(self, text: str, last: bool) -> None:
        stream = self._stream
        if stream is None:  # standard error was closed when the process began
            self.write_errors += 1
            return
        try:
            encoding = stream.encoding or "utf-8"
            text = text.encode(encoding, "backslashreplace").decode(encoding)
            if stream.isatty():
                # \r and "erase to the end of the line" (ECMA-48 EL) let the next line take this one's place.
                stream.write(f"\r\x1b[K{text}" + ("\n" if last else ""))
            else:
                stream.write(text + "\n")
            stream.flush()
        except (OSError, ValueError):
            self.write_errors += 1


def _account(ledger: Ledger) -> Iterator[str]:
    """Rows: events that sources made and lost; then each source with events in no window, each output, and texts that were left out or cut."""
    yield str(ledger)
    for name, source in ledger.sources.items():
        if source.outside or source.superseded:
            parts = ((source.outside, "in no window"), (source.superseded, "written as open ones before"))
            lost = ", ".join(f"{count:,} {what}" for count, what in parts if count)
            yield f"{name}: of {source.produced:,} events, {lost}"
    for name, output in ledger.outputs.items():
        yield f"{name}: {counted(output)}"
    if ledger.windows_left_out:
        yield f"left out: {human_count(ledger.windows_left_out, 'window')}, which began faster than they could be sorted"
    if any(ledger.cut.values()):
        yield "cut: " + ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in ledger.cut.items() if count)
