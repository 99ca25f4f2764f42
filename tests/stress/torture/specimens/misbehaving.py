"""Faults that lose, hang, crash and leave things behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stress.torture.fault import Fault, Outcome

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
"""A program that nobody ends."""


def good(directory: Path, number: int) -> Outcome:
    """Loses nothing; says which trial it was by its counts."""
    assert not list(directory.iterdir())
    print("noise on standard output")
    return Outcome(produced=100, exported=90 + number, dropped=10 - number, blocked_ns=number, shutdown_ns=7)


def losing(directory: Path, number: int) -> Outcome:
    """Loses in even trials and writes twice in odd ones, so that the sums hide both."""
    return Outcome(produced=10, exported=10 + (1 if number % 2 else -1))


def raising(directory: Path, number: int) -> Outcome:
    """Raises instead of answering."""
    raise RuntimeError("mine")


def hanging(directory: Path, number: int) -> Outcome:
    """Starts a program, notes its number, and waits for ever, deaf to polite signals."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(SLEEPS, start_new_session=True)
    (Path(os.environ["TORTURE_NOTES"]) / "hanging").write_text(f"{os.getpid()} {child.pid}")
    while True:
        time.sleep(1)


def crashing(directory: Path, number: int) -> Outcome:
    """Ends the process that runs it."""
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError("not reached")


def leaving(directory: Path, number: int) -> Outcome:
    """Leaves a grandchild running that its parent does not wait for."""
    orphan = f"import subprocess; subprocess.Popen({SLEEPS!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", orphan], check=True)
    return Outcome(produced=1, exported=1)


def holding(directory: Path, number: int) -> Outcome:
    """Loses nothing, and holds the training thread."""
    return Outcome(produced=1, exported=1, blocked_ns=2_000_000_000)


def absent(directory: Path, number: int) -> Outcome:
    """Needs what is not there."""
    pytest.skip("a part is missing. Get it.")


FAULTS = tuple(
    Fault(family="misbehaving", name=trial.__name__, trial=trial, trials=4, short=2)
    for trial in (good, losing, raising, hanging, crashing, leaving, holding, absent)
)
