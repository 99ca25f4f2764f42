"""Processes that are short of something, and that go on for long."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.journal.reader import JournalReader
from tests.stress.torture import strain
from tests.stress.torture.fault import Fault, Outcome
from tests.stress.torture.strain import RunReport
from tests.support.basics import ROOT
from tests.support.disks import small_disk
from tests.support.launch import run_to_end

BUSY = 8
"""Processes that compete for the cores."""
OUTPUTS = 2
"""Each span goes to the journal and to a Chrome trace."""
DEADLINE = 2.8
"""Seconds until which closing must return: the deadline of the program, half a second, and a busy machine."""


class Journaled(msgspec.Struct, frozen=True):
    """Events in a journal."""

    spans: int
    """Of the loop."""
    marks: int
    others: int
    """All that are no spans of the loop: marks among them, spans of steps, gaps."""


def in_journal(path: Path) -> Journaled:
    """Counts the events in a journal."""
    name = strings.intern(strain.NAME)
    with JournalReader(path) as reader:
        blocks = [item.events for item in reader if isinstance(item, EventBatch)]
    spans = sum(int(np.sum(events["name"] == name)) for events in blocks)
    marks = sum(int(np.sum(events["kind"] == int(Kind.STEP))) for events in blocks)
    return Journaled(spans, marks, sum(map(len, blocks)) - spans)


def rows(path: Path) -> list[dict[str, Any]]:
    """Spans in a Chrome trace, which must be whole."""
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return [row for row in found if row.get("name") == strain.NAME]


def run(what: str, place: Path, problems: list[str]) -> RunReport | None:
    """Runs the program; what it ends with other than well is a problem."""
    command = [sys.executable, "-W", "error", "-m", "tests.stress.torture.strain", what, str(place)]
    done = run_to_end(command, cwd=ROOT)
    if done.returncode or not done.stdout:
        problems.append(f"the program ended with {done.returncode}: {done.stderr[-400:]}")
        return None
    report = msgspec.json.decode(done.stdout, type=RunReport)
    problems += [f"a thread is left: {name}" for name in report.threads]
    problems += [f"left open: {name}" for name in report.descriptors]
    if report.in_flight:
        problems.append(f"{report.in_flight} events are neither exported nor dropped after closing")
    if report.closing_ns > DEADLINE * 1e9:
        problems.append(f"closing took {report.closing_ns / 1e9:.2f} s")
    return report


def trial(
    what: str, around: Callable[[Path], contextlib.AbstractContextManager[object]], place: Path, _: int
) -> Outcome:
    """Trains where something is short, and counts what the journal and the Chrome trace hold."""
    problems: list[str] = []
    with around(place):
        report = run(what, place, problems)
    if report is None:
        return Outcome(problems=tuple(problems))
    spans = rows(place / "trace.json")
    if any(row["ts"] < 0 or row["dur"] < 0 for row in spans):
        problems.append("a span begins before the trace, or ends before it begins")
    journal = in_journal(place / "run" / "journal")
    if what != "disk":
        problems += [f"{output}: {error}" for output, error in report.errors.items()]
    if report.dropped["journal"]:
        problems.append(f"the journal, whose disk is not slow, dropped {report.dropped['journal']} events")
    (chrome,) = (count for name, count in report.dropped.items() if "chrome" in name)
    # Accounts are of events of any kind. Missing events of the other kinds are known: marks from the number of steps, with
    # one where the loop began, and of what the journal has, what the Chrome trace has not.
    overflow = report.overflow - (report.steps + 1 - journal.marks)
    dropped = report.dropped["journal"] + chrome - (journal.others - report.others)
    return Outcome(
        produced=OUTPUTS * report.spans,
        exported=journal.spans + len(spans),
        dropped=OUTPUTS * overflow + dropped,
        blocked_ns=report.blocked_ns,
        shutdown_ns=report.closing_ns,
        problems=tuple(problems),
    )


@contextlib.contextmanager
def nothing(place: Path) -> Generator[None]:
    """The program sees to it."""
    yield


@contextlib.contextmanager
def busy(place: Path) -> Generator[None]:
    """Processes that never rest."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def small_shm(place: Path) -> contextlib.AbstractContextManager[object]:
    """A file system of 8 MiB for the rings."""
    return small_disk(place / "shm", 8 << 20)


def _fault(name: str, what: str, about: str, around: Callable[[Path], Any] = nothing, trials: int = 2) -> Fault:
    call = partial(trial, what, around)
    call.__doc__ = about
    return Fault(family="endurance", alone=True, name=name, trial=call, trials=trials)


FAULTS = (
    _fault("no descriptor is left", "descriptors", "Every descriptor is taken in the middle of the run."),
    _fault("little memory is left", "memory", "The process may grow by 64 MiB more, from the middle of the run on."),
    _fault("/dev/shm is full", "shm", "The file system of the rings fills up in the middle of the run.", small_shm),
    _fault("the wall clock is set back", "clock", "By an hour, in the middle of the run, as Python reads the time."),
    _fault("8 busy processes", "busy", "Eight processes that never rest compete for the cores.", busy),
    _fault("tasks come and go", "tasks", "Hundreds of tasks record next to the loop."),
    _fault(
        "slow disk", "disk", "The disk of the Chrome trace takes 256 KiB a second; that of the journal does not care."
    ),
)
