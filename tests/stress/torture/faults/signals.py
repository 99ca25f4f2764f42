"""Signals that ask the process to stop, whatever its main thread does at that moment."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

from tests.stress.torture.diary import Diary
from tests.stress.torture.fault import Fault, Outcome
from tests.stress.torture.faults.killed import delivered, started

MOMENTS = {
    "the main thread sleeps": "asleep",
    "it computes": "computing",
    "it is in native code": "in_native_code",
    "it ends windows": "stepping",
    "a backend changes on it": "changing",
    "it is in flush()": "flushing",
    "it is in statistics()": "looking",
    "it leaves `with`": "leaving",
    "it leaves `async with`": "leaving_async",
}
"""The calls of the victim's main thread, and the function in `tests/stress/torture/moments.py` for each."""
LASTING = ("asleep", "computing", "in_native_code")
"""Moments inside of a span that does not end. In the others the last window may end before the signal comes, with a step."""
SPREAD = 0.3
"""Seconds within which the signal comes."""
LIMIT = 30.0
"""Seconds after which a program that does not end is called deaf."""


def ask(number: signal.Signals, moment: str, place: Path, seed: int) -> Outcome:
    """A signal from another process at a random moment: everything is delivered, and the process dies of it, in time."""
    with started(place, seed, moment, program="moments") as process:
        time.sleep(random.Random(seed).uniform(0.0, SPREAD))
        if moment in LASTING:
            Diary(place / "diary").about_to_end()
        began = time.monotonic_ns()
        process.send_signal(number)
        try:
            ended = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            return Outcome(problems=(f"{number.name}: it still runs after {LIMIT:g} s",))
        took = time.monotonic_ns() - began
    return delivered(place, took, number.name, ended, -number, bare=moment not in LASTING)


FAMILY = "signals"
FAULTS = tuple(
    Fault(
        family=FAMILY,
        name=f"{number.name} while {about}",
        trial=partial(ask, number, moment),
        trials=8,
        least=2,
        short=int(number is signal.SIGTERM or moment == "leaving_async"),
    )
    for number in (signal.SIGTERM, signal.SIGINT)
    for about, moment in MOMENTS.items()
    # Python has nowhere to raise KeyboardInterrupt while native code runs, traced or not.
    if (number, moment) != (signal.SIGINT, "in_native_code")
)
