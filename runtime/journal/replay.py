"""Replays a journal into an exporter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec

from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.run import Run
from stepscope.runtime.journal.format import time_range
from stepscope.runtime.journal.frame_reader import Damage
from stepscope.runtime.journal.reader import JournalItem, JournalReader
from stepscope.runtime.loop_threads.loop_thread import call_in_thread
from stepscope.runtime.windows.window import Step, Window


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a replay."""

    events: int
    windows: int
    """Closed windows, including those without an end in the journal."""
    unfinished: int
    """Windows without an end: the run was interrupted, or still runs."""
    damage: Damage
    ledger: Ledger
    """The run's own accounts: what it dropped before it reached the journal, and what the journal had no room for."""


def run_of(reader: JournalReader, output_dir: Path) -> Run:
    """The run of a journal, for an exporter that writes to `output_dir`."""
    record = reader.run
    return Run(
        name=record.name if record else "unknown",
        output_dir=output_dir,
        pid=record.pid if record else 0,
        host=record.host if record else "",
        rank=record.rank if record else None,
        world_size=record.world_size if record else None,
        anchor=record.anchor if record else ClockAnchor(0, 0, 0),
        metadata=lambda: reader.metadata,
        ledger=lambda: reader.ledger,
        job=record.job if record else "",
        clock=record.clock if record else "",
        id=record.id if record else "",
    )


async def replay_into(
    reader: JournalReader, exporter: Exporter, run: Run, window: Window | int | None = None
) -> Replayed:
    """Replays a journal into an exporter, from `open` to `aclose`.

    A worker thread reads. A window without an end in the journal is closed as incomplete, with the times and steps of its
    events.

    Args:
        reader: at the beginning of its journal. It is not closed.
        exporter: a new exporter.
        run: argument of `open`, such as `run_of(reader, ...)`.
        window: replay this window only. A `Window` replaces the journal's record in `close_window`.

    Raises:
        OutputError, ExporterError, ...: errors of the exporter, after it was closed.
    """
    only = window.index if isinstance(window, Window) else window
    items = reader.items(only)
    open_windows: dict[int, UnfinishedWindow] = {}
    events = windows = 0
    await exporter.open(run)
    try:
        while (item := await call_in_thread(_next, items)) is not None:
            if isinstance(item, EventBatch):
                open_windows.setdefault(item.window, UnfinishedWindow(item.window)).add(item)
                await exporter.export(item)
                events += len(item)
            elif isinstance(item, Window):
                open_windows.pop(item.index, None)
                await exporter.close_window(window if isinstance(window, Window) else item)
                windows += 1
        for unfinished in open_windows.values():
            closed = window if isinstance(window, Window) else unfinished.close(run)
            await exporter.close_window(closed)
    finally:
        with anyio.CancelScope(shield=True):
            await exporter.aclose()
    return Replayed(
        events=events,
        windows=windows + len(open_windows),
        unfinished=len(open_windows),
        damage=reader.damage,
        ledger=reader.ledger,
    )


WITHOUT_END = "the journal ends inside this window: the run was interrupted, or goes on"
"""Diagnostic of a window that has no end in the journal."""


class UnfinishedWindow:
    """Collects times and steps of a window, for the case that it has no end."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._first = self._last = 0
        self._events = 0
        self._starts: dict[int, int] = {}

    def add(self, batch: EventBatch) -> None:
        first, last = time_range(batch.events)
        self._first = min(self._first, first) if self._events else first
        self._last = max(self._last, last) if self._events else last
        self._events += len(batch)
        marks = batch.events[batch.events["kind"] == int(Kind.STEP)]
        self._starts.update(zip(marks["step"].tolist(), marks["ts"].tolist(), strict=True))

    def lasted(self, first_ns: int, last_ns: int) -> None:
        """Notes the time that its events cover: not all of them were added."""
        self._first, self._last = first_ns, last_ns

    def close(self, run: Run) -> Window:
        starts = sorted(self._starts.items(), key=lambda pair: pair[1])
        ends = [*(start for _, start in starts[1:]), max(self._last, starts[-1][1] if starts else 0)]
        return Window(
            index=self._index,
            profiler=run.name,
            start_ns=self._first,
            end_ns=self._last,
            steps=tuple(Step(number, start, end) for (number, start), end in zip(starts, ends, strict=False)),
            complete=False,
            diagnostics=(WITHOUT_END,),
            wall_start_ns=run.anchor.wall(self._first),
            metadata=run.metadata(),
        )


def _next(items: Iterator[JournalItem]) -> JournalItem | None:
    return next(items, None)
