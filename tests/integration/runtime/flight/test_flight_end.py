"""What ends the process is a reason to save the last steps: SIGTERM and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.runtime.flight.trigger_watch import MAX_WAITING, Fired, TriggerWatch
from stepscope.runtime.flight.triggers.trigger import Finding
from tests.support.basics import ROOT, heed_interrupts
from tests.support.crashes import windows as read_windows
from tests.support.flights import Profile
from tests.support.launch import run_to_end

START = """
import asyncio, os, signal, sys, time
import stepscope as sc
from tests.support.basics import heed_interrupts
heed_interrupts()
options = sc.Options(close_timeout=30)
def steps(*profilers):
    for number in range(7):
        with sc.span("work"):
            [profiler.step() for profiler in profilers]
"""


def run(script: str, place: Path, code: int) -> subprocess.CompletedProcess[str]:
    """Runs a script in a directory of its own; fails if it ends otherwise."""
    command = [sys.executable, "-W", "error", "-c", f"import sys; sys.path.append({str(ROOT)!r})\n{START}{script}"]
    done = run_to_end(command, cwd=place)
    assert done.returncode == code, done.stderr + done.stdout
    return done


def saved(run: Path) -> dict[str, list[int]]:
    """The numbers of the steps in each saved window, by the name of its file."""
    return {
        path.name: [step.number for window in read_windows(path) for step in window.steps]
        for path in sorted((run / "windows").glob("*"))
    }


def test_sigterm(tmp_path: Path) -> None:
    """The last steps of every profiler that keeps some are saved, unless it is told not to, or has saved all the windows that it
    may; and the process dies of the signal."""
    run(
        """
one = sc.trace(keep_last=3, output_dir="one", options=options)
two = sc.trace(keep_last=sc.FlightRecorder(steps=2, cooldown=3600), output_dir="two", options=options)
told = sc.trace(keep_last=sc.FlightRecorder(steps=2, triggers=(sc.triggers.Raised(),)), output_dir="told", options=options)
full = sc.trace(keep_last=sc.FlightRecorder(steps=2, max_windows=1), output_dir="full", options=options)
with one, two, told, full, sc.trace(output_dir="three"):
    steps(one, two, told, full)
    full.save("first")
    full.flush()
    with sc.span("under way"):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
""",
        tmp_path,
        -signal.SIGTERM,
    )
    assert saved(tmp_path / "one") == {"000000-step7-terminated_by_sigterm.journal": [5, 6, 7]}
    assert saved(tmp_path / "two") == {"000000-step7-terminated_by_sigterm.journal": [6, 7]}
    assert saved(tmp_path / "told") == {}
    assert list(saved(tmp_path / "full")) == ["000000-step7-first.journal"]
    (window,) = read_windows(next((tmp_path / "one" / "windows").iterdir()))
    facts: Any = window.metadata["flight"]
    assert (facts["reason"], facts["value"]) == ("terminated by SIGTERM", "SIGTERM")


def test_sigterm_with_exporters_that_hang(tmp_path: Path) -> None:
    """Several profilers close at once: the deadline is that of one of them, and what can be saved is."""
    began = time.monotonic()
    run(
        """
options = sc.Options(close_timeout=4)
several = [sc.trace(keep_last=3, output_dir=f"{number}", exporters=[sc.exporters.MemoryExporter(hang_in="export")], options=options)
           for number in range(8)]
[profiler.start() for profiler in several]
steps(*several)
began = time.monotonic()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
""",
        tmp_path,
        -signal.SIGTERM,
    )
    assert time.monotonic() - began < 4 * 5
    for number in range(8):
        assert saved(tmp_path / f"{number}") == {"000000-step7-terminated_by_sigterm.journal": [5, 6, 7]}


@pytest.mark.parametrize("block", [True, False])
def test_ctrl_c(block: bool, tmp_path: Path) -> None:
    """KeyboardInterrupt saves where it leaves the `with`, and without one where it ends the program."""
    body = "steps(profiler)\n    signal.raise_signal(signal.SIGINT)"
    run(
        f"""
profiler = sc.trace(keep_last=3, output_dir="run", options=options)
if not {block}: profiler.start()
with profiler if {block} else open(os.devnull):
    {body}
""",
        tmp_path,
        -signal.SIGINT,
    )
    assert saved(tmp_path / "run") == {"000000-step7-terminated_by_keyboardinterrupt.journal": [5, 6, 7]}


def test_an_interrupt_that_counts_as_an_exception(output_dir: Path) -> None:
    """It is saved once: by `Raised`, where that was told so."""
    heed_interrupts()
    profile = Profile(output_dir, triggers=(sc.triggers.Raised(only=(BaseException,)), sc.triggers.Terminated()))
    with pytest.raises(KeyboardInterrupt), profile.profiler:
        profile.steps(3)
        signal.raise_signal(signal.SIGINT)
    assert [path.name for path in (output_dir / "windows").iterdir()] == ["000000-step3-raised.journal"]
    assert profile.flight.triggers.fired == {"raised": 1}


def test_a_storm_of_calls_does_not_crowd_it_out() -> None:
    """However many calls of `save` wait, what ends the run is taken."""
    watch = TriggerWatch(sc.FlightRecorder(steps=1))
    for _ in range(MAX_WAITING + 5):
        watch.call(Fired("call", Finding(at=1)))
    assert watch.statistics().refused == 5
    assert watch.call(Fired("terminated by SIGTERM", Finding(at=1), always=True))
