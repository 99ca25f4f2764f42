"""Processes that are short of something, and that go on for long."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.runtime import strings
from stepscope.runtime.events import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from tests.support import ROOT, missing
from tests.torture import strain
from tests.torture.fault import Fault, Outcome
from tests.torture.strain import Said

BUSY = 8
"""Processes that compete for the cores."""
TRICKLE = 1 << 20
"""Bytes per second of the slow disk."""
OUTPUTS = 2
"""Each span goes to the journal and to a Chrome trace."""
DEADLINE = 3.5
"""Seconds until which closing must return: the deadline of the program, half a second, and a busy machine."""


def in_journal(path: Path) -> int:
    """Spans in a journal."""
    name = strings.intern(strain.NAME)
    with JournalReader(path) as reader:
        return sum(int(np.sum(item.events["name"] == name)) for item in reader if isinstance(item, EventBatch))


def rows(path: Path) -> list[dict[str, Any]]:
    """Spans in a Chrome trace, which must be whole."""
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return [row for row in found if row.get("name") == strain.NAME]


def run(what: str, place: Path, problems: list[str]) -> Said | None:
    """Runs the program; what it ends with other than well is a problem."""
    command = [sys.executable, "-W", "error", "-m", "tests.torture.strain", what, str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        problems.append(f"the program ended with {done.returncode}: {done.stderr[-400:]}")
        return None
    said = msgspec.json.decode(done.stdout, type=Said)
    problems += [f"a thread is left: {name}" for name in said.threads]
    problems += [f"left open: {name}" for name in said.descriptors]
    if said.in_flight:
        problems.append(f"{said.in_flight} events are neither exported nor dropped after closing")
    if said.closing_ns > DEADLINE * 1e9:
        problems.append(f"closing took {said.closing_ns / 1e9:.2f} s")
    return said


def trial(
    what: str, around: Callable[[Path], contextlib.AbstractContextManager[object]], place: Path, _: int
) -> Outcome:
    """Trains where something is short, and counts what the journal and the Chrome trace hold."""
    problems: list[str] = []
    with around(place):
        said = run(what, place, problems)
    if said is None:
        return Outcome(problems=tuple(problems))
    spans = rows(place / "trace.json")
    problems += [f"{output}: {error}" for output, error in said.errors.items()]
    if any(row["ts"] < 0 or row["dur"] < 0 for row in spans):
        problems.append("a span begins before the trace, or ends before it begins")
    return Outcome(
        produced=OUTPUTS * said.spans,
        exported=in_journal(place / "run" / "journal") + len(spans),
        dropped=OUTPUTS * said.overflow + sum(sum(reasons.values()) for reasons in said.dropped.values()),
        held_ns=said.held_ns,
        shutdown_ns=said.closing_ns,
        problems=tuple(problems),
    )


def slow_disk(place: Path, _: int) -> Outcome:
    """The Chrome trace is a pipe that takes 1 MiB a second: the journal gets everything, closing keeps its deadline."""
    os.mkfifo(place / "trace.json")
    got = bytearray()

    def read() -> None:
        with open(place / "trace.json", "rb", buffering=0) as pipe:
            while piece := pipe.read(TRICKLE // 50):
                got.extend(piece)
                time.sleep(0.02)

    reader = threading.Thread(target=read)
    reader.start()
    problems: list[str] = []
    said = run("disk", place, problems)
    if said is None:
        with contextlib.suppress(OSError):  # nobody may ever have opened it to write
            os.close(os.open(place / "trace.json", os.O_WRONLY | os.O_NONBLOCK))
    reader.join()
    if said is None:
        return Outcome(problems=tuple(problems))
    journal = in_journal(place / "run" / "journal")
    if journal != said.spans:
        problems.append(f"the journal has {journal} of {said.spans} spans")
    chrome = sum(count for name, reasons in said.dropped.items() if "chrome" in name for count in reasons.values())
    # Of a piece that was under way at the deadline more may have arrived than was counted: no complete slice, though.
    found = min(bytes(got).count(f'"name":"{strain.NAME}"'.encode()), said.spans - chrome)
    return Outcome(
        produced=OUTPUTS * said.spans,
        exported=journal + found,
        dropped=OUTPUTS * said.overflow + sum(sum(reasons.values()) for reasons in said.dropped.values()),
        held_ns=said.held_ns,
        shutdown_ns=said.closing_ns,
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


@contextlib.contextmanager
def small_shm(place: Path) -> Generator[None]:
    """A file system of 8 MiB for the rings."""
    path = place / "shm"
    path.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        missing("the right to mount a tmpfs", "Run the tests as root.")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def _fault(name: str, what: str, about: str, around: Callable[[Path], Any] = nothing, trials: int = 2) -> Fault:
    call = partial(trial, what, around)
    call.__doc__ = about
    return Fault(family="endurance", name=name, trial=call, trials=trials)


FAULTS = (
    _fault("no descriptor is left", "descriptors", "Every descriptor is taken in the middle of the run."),
    _fault("little memory is left", "memory", "The process may grow by 64 MiB more, from the middle of the run on."),
    _fault("/dev/shm is full", "shm", "The file system of the rings fills up in the middle of the run.", small_shm),
    _fault("the wall clock is set back", "clock", "By an hour, in the middle of the run, as Python tells the time."),
    _fault("8 busy processes", "busy", "Eight processes that never rest compete for the cores.", busy),
    _fault("tasks come and go", "tasks", "Hundreds of tasks record beside the loop."),
    Fault(family="endurance", name="slow disk", trial=slow_disk, trials=2),
)
