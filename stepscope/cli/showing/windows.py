"""`stepscope windows`: lists the windows of a run."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from stepscope.cli.common.messages import add_json, exit_code, print_json, print_result
from stepscope.runtime.display.text_table import Column, human_count, printable, text_table
from stepscope.runtime.journal.index import WindowRow
from stepscope.runtime.journal.replay import WITHOUT_END
from stepscope.runtime.journal.segments import journal_bytes
from stepscope.runtime.session.note import JOURNAL, notes_in
from stepscope.runtime.windows.step_statistics import begins_with_startup
from stepscope.runtime.windows.window import Window

if TYPE_CHECKING:
    from stepscope.analysis.reading.recording import Rank

HELP = "list the windows of a run"
DESCRIPTION = """\
Lists the windows of a run. Events are read only of a window without an end, so a long run is listed as soon as a short one. Of a
run of more than 256 MiB damage among events is not noticed: `stepscope explain` names it.
A window is `incomplete` if a part of it was not recorded, `still open` while the run records it, and has `no end` if its
process died in it, or runs elsewhere.
"""

EPILOG = """\
examples:
  stepscope windows runs/exp1            when each was, its steps, and how many events it has
  stepscope windows runs/exp1 --json     for programs
  stepscope explain runs/exp1 --window 3
  stepscope convert runs/exp1 third.json --window 3

exit codes: 0 listed, 1 failed, 2 wrong usage, 3 listed, but without recordings, or parts of one, that could
not be read, which are named
"""
HEAD = ("window", "begins", "lasts", "steps", "events", "dropped", "state")
CHECKED_BYTES = 256 << 20
"""Journals of a run that together have at most so many bytes are read for damage."""
LEFT = ("process", "begins", "state")
"""Columns that are aligned left."""

State = Literal["", "incomplete", "still open", "no end"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One window of one process."""

    process: str
    window: int
    begins: str
    """Local time."""
    seconds: float
    first_step: int | None
    last_step: int | None
    events: int
    dropped: int
    complete: bool
    state: State
    """State of an incomplete window: still being recorded, or without an end, as its process died or runs elsewhere."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("path", metavar="PATH", type=Path, help="as for `stepscope explain`")
    add_json(parser, "the list")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        FileNotFoundError: if there is nothing of that name.
        FormatError: if there is no recording.
    """
    from stepscope.analysis.reading.recording import load

    recording = load(arguments.path, only=())
    recorded = [rank for rank in recording.ranks if not rank.foreign]
    if sum(journal_bytes(path) for rank in recorded for path in rank.paths) <= CHECKED_BYTES:
        for rank in recorded:
            rank.check_frames()
    lines: list[Line] = []
    for rank in recording.ranks:
        counts = Counter[int]() if rank.foreign else Counter(rank.counts)
        for batch in rank.batches() if rank.foreign else ():  # only the events of such a trace say when it was
            counts[batch.window] += len(batch)
        indexed = {row.window: _indexed(rank, row) for row in rank.rows}
        read = {number: _line(rank, window, counts[number]) for number, window in rank.windows.items()}
        lines += [line for _, line in sorted({**read, **indexed}.items())]
    if arguments.json:
        print_json(lines)
        return exit_code(recording.unreadable, recording.damage)
    print_result(_table(lines, several=len(recording.ranks) > 1))
    if late := sum(rank.dropped.get("late", 0) for rank in recording.ranks):
        print(
            f"{human_count(late, 'event')} came after the window was closed, which is without them, even if it is complete."
        )
    starts_up = any(begins_with_startup(rank.metadata) for rank in recording.ranks)
    if starts_up and any(line.first_step == 0 for line in lines):
        print("Step 0 is startup: it ends with the optimizer's first step, and is not judged or counted as a step.")
    for note in (note for note in recording.notes if note not in recording.unreadable):
        print_result(note)
    return exit_code(recording.unreadable, recording.damage)


def _process(rank: Rank) -> str:
    return rank.name if rank.rank is None else f"rank {rank.rank}"


def _runs(rank: Rank) -> bool:
    """True if its process goes on, as its note says; that of a process elsewhere is not here."""
    with contextlib.suppress(OSError):
        return any(note.running and note.pid == rank.pid for _, note in notes_in(rank.path.parent, []))
    return False


def _local_time(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / 1e9).isoformat(" ", "milliseconds")


def _indexed(rank: Rank, row: WindowRow) -> Line:
    return Line(
        process=_process(rank),
        window=row.window,
        begins=_local_time(row.wall_start_ns),
        seconds=(row.end_ns - row.start_ns) / 1e9,
        first_step=row.first_step if row.steps else None,
        last_step=row.last_step if row.steps else None,
        events=row.events,
        dropped=row.dropped,
        complete=row.complete,
        state="" if row.complete else "incomplete",
    )


def _line(rank: Rank, window: Window, counted: int) -> Line:
    steps = window.steps
    wall_ns = window.start_ns if rank.foreign else window.wall_start_ns
    state: State = "" if window.complete else "incomplete"
    if WITHOUT_END in window.diagnostics:
        state = "still open" if _runs(rank) else "no end"
    return Line(
        process=_process(rank),
        window=window.index,
        begins=_local_time(wall_ns),
        seconds=(window.end_ns - window.start_ns) / 1e9,
        first_step=steps[0].number if steps else None,
        last_step=steps[-1].number if steps else None,
        events=counted or sum(each.accepted for each in window.ledger.sources.values()),
        dropped=window.ledger.lost(JOURNAL).total(),
        complete=window.complete,
        state=state,
    )


def _table(lines: list[Line], *, several: bool) -> str:
    if not lines:
        return "There is no window."
    rows: list[tuple[str, ...]] = []
    for line in lines:
        process = (printable(line.process),) if several else ()
        steps = "" if line.first_step is None else f"{line.first_step} to {line.last_step}"
        lasts, events, dropped = f"{line.seconds:,.3f} s", f"{line.events:,}", f"{line.dropped:,}"
        rows.append((*process, f"{line.window}", line.begins, lasts, steps, events, dropped, line.state))
    head = ("process", *HEAD) if several else HEAD
    return text_table([Column(name, right=name not in LEFT) for name in head], rows)
