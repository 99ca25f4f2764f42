"""Faults that end the process: killed, crashed, out of memory, or asked to stop."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from functools import partial
from pathlib import Path

import numpy as np

from stepscope.exporters.repair import repair_chrome
from stepscope.runtime.errors import StepscopeError
from stepscope.runtime.recovery.recover import recover
from tests.support import ROOT
from tests.torture.diary import ENTERED, LANES, LEFT, Diary
from tests.torture.fault import Fault, Outcome
from tests.torture.found import Found
from tests.torture.victim import MAIN

CRASHES = {
    "segfault": -signal.SIGSEGV,
    "abort": -signal.SIGABRT,
    "abort_in_a_foreign_thread": -signal.SIGABRT,
    "leave_at_once": 7,
    "out_of_memory": -signal.SIGKILL,
    "overflow_the_stack": -signal.SIGSEGV,
}
"""Endings of the victim that run none of our code, and what its parent sees of them."""
STOPS = {
    "terminate": -signal.SIGTERM,
    "interrupt": -signal.SIGINT,
    "exit_normally": 3,
    "raise_an_exception": 1,
    "raise_in_a_thread": 1,
}
"""Endings that let the profiler close."""
MOST_NS = 8_000_000_000
"""Deadline for closing, half a second, and what a loaded machine takes to end a process."""


def start(place: Path, seed: int, ending: str = "wait") -> subprocess.Popen[bytes]:
    """Starts the victim and returns when it records."""
    (place / "session").mkdir()
    command = [sys.executable, "-m", "tests.torture.victim", str(place), str(seed), ending]
    with (place / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=errors, stderr=errors
        )
    deadline = time.monotonic() + 60
    while not (place / "ready").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    return process


def settle(place: Path, journal: Path) -> Outcome:
    """Compares what was recovered with the diary: every span that had ended is there, and those that were open."""
    found = Found(journal)
    diary = Diary(place / "diary")
    problems = list(found.problems)
    produced = exported = 0
    for lane in range(LANES):
        notes = np.frombuffer(diary.lane(lane), np.uint8)
        left, entered = np.flatnonzero(notes == LEFT), np.flatnonzero(notes == ENTERED)
        ended = found.ended(lane)
        produced += len(left)
        exported += int(np.isin(left, ended).sum())
        # The process may have died between what it did and the note of it: in one span of each lane.
        more = ended[~np.isin(ended, left)]
        if len(more) > 1 or not np.isin(more, np.append(entered, len(notes))).all():
            problems.append(f"lane {lane}: {len(more)} spans came back that had not ended")
        still_open = len(entered) - int(np.isin(entered, ended).sum())
        if not still_open <= found.open[lane] <= still_open + 1:
            problems.append(f"lane {lane}: {still_open} spans were open, {found.open[lane]} came back")
    missing = produced - exported
    # Gaps also count what had no note yet, and step marks.
    if not missing <= found.gaps <= missing + LANES:
        problems.append(f"{found.gaps} events are said to be dropped, {missing} are missing")
    return Outcome(produced=produced, exported=exported, dropped=min(found.gaps, missing), problems=tuple(problems))


def settle_closed(place: Path, journal: Path) -> Outcome:
    """Compares what was written in order with the diary: no span is missing before the end of recording."""
    found = Found(journal)
    diary = Diary(place / "diary")
    produced = exported = 0
    for lane in range(LANES):
        left = np.flatnonzero(np.frombuffer(diary.lane(lane), np.uint8) == LEFT)
        ended = found.ended(lane)
        if lane != MAIN:  # the other threads go on while the files are closed
            left = left[left <= ended.max(initial=-1)]
        missing = int((~np.isin(left, ended)).sum())
        # Spans that were open when recording ended are written without their number.
        produced += len(left)
        exported += len(left) - missing + min(missing, found.open[lane])
    dropped = min(found.gaps, produced - exported)
    return Outcome(produced=produced, exported=exported, dropped=dropped, problems=found.problems)


def traces(place: Path, *, repair: bool) -> list[str]:
    """What is wrong with the Chrome and TensorBoard files."""
    problems: list[str] = []
    for path in [*place.glob("run/*.json*"), *place.glob("run/tb/*.json*")]:
        try:
            complete = repair_chrome(path)
            text = complete.path.read_bytes()
            json.loads(zlib.decompress(text, 31) if complete.path.name.endswith(".gz") else text)
            if complete.lost >= 0 and not repair:
                problems.append(f"{path.name} was not complete")
        except (StepscopeError, ValueError, zlib.error) as error:
            problems.append(f"{path.name}: {error!r}")
    return problems


def recovered(place: Path) -> Outcome:
    """Recovers what the victim left, and settles accounts."""
    began = time.monotonic_ns()
    result = recover(place / "run")
    took = time.monotonic_ns() - began
    problems = traces(place, repair=True)
    return settle(place, result.journal) + Outcome(tried=0, shutdown_ns=took, problems=tuple(problems))


def kill(place: Path, seed: int) -> Outcome:
    """SIGKILL at a random moment."""
    process = start(place, seed)
    time.sleep(random.Random(seed).uniform(0.0, 0.4))
    process.kill()
    process.wait()
    return recovered(place)


def crash(ending: str, code: int, place: Path, seed: int) -> Outcome:
    """An end that runs none of our code."""
    ended = start(place, seed, ending).wait(60)
    outcome = recovered(place)
    if ended != code:
        outcome += Outcome(tried=0, problems=(f"{ending} ended with {ended}: {_said(place)}",))
    return outcome


def stop(ending: str, code: int, place: Path, seed: int) -> Outcome:
    """An end that lets the profiler close."""
    process = start(place, seed, ending)
    while process.poll() is None and not (place / "ending").exists():
        time.sleep(0.002)
    began = time.monotonic_ns()
    ended = process.wait(60)
    took = time.monotonic_ns() - began
    problems = traces(place, repair=False)
    problems += [f"{ending} ended with {ended}: {_said(place)}"] if ended != code else []
    problems += ["there is something to recover"] if (place / "run" / "session").exists() else []
    problems += [f"closing took {took / 1e9:.1f} s"] if took > MOST_NS else []
    return settle_closed(place, place / "run" / "journal") + Outcome(
        tried=0, shutdown_ns=took, problems=tuple(problems)
    )


def starve(place: Path, seed: int) -> Outcome:
    """Memory is used up and stays so, while Python ends: what cannot be closed then is recovered."""
    process = start(place, seed, "run_out_of_memory")
    process.wait(60)
    if not (place / "run" / "session").exists():
        return settle_closed(place, place / "run" / "journal")
    return recovered(place)


def _said(place: Path) -> str:
    return (place / "stderr").read_text(errors="replace")[-300:]


FAMILY = "killed"
FAULTS = (
    Fault(family=FAMILY, name="SIGKILL at a random moment", trial=kill, trials=50, short=4),
    *(
        Fault(family=FAMILY, name=ending.replace("_", " "), trial=partial(crash, ending, code), trials=2)
        for ending, code in CRASHES.items()
    ),
    Fault(family=FAMILY, name="no memory left at the end", trial=starve, trials=2),
    *(
        Fault(family=FAMILY, name=ending.replace("_", " "), trial=partial(stop, ending, code), trials=2)
        for ending, code in STOPS.items()
    ),
)
