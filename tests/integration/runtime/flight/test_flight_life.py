"""The flight recorder with pauses, other profilers, forks, and users who do odd things; it saves when the process ends."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.runtime.events.record import Kind
from stepscope.runtime.flight.trigger_watch import MAX_WAITING, Fired, TriggerWatch
from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News, Trigger
from tests.support.basics import ROOT, heed_interrupts
from tests.support.exceptions import LostForWords
from tests.support.flight_recording import QUIET, Profile, When
from tests.support.killed_programs import windows as read_windows
from tests.support.launch import run_to_end
from tests.support.messages import refused
from tests.support.recording import run_program


class Waits:
    """A user's trigger that waits, as for an answer over the network, where it looks or is made, or asks a device."""

    name = "waits"

    def __init__(self, where: str) -> None:
        self.where = where
        self.reached, self.over = threading.Event(), threading.Event()

    def evaluator(self) -> Evaluator:
        if self.where == "evaluator":
            self.wait()
        return self

    def look(self, news: News) -> Sequence[Finding]:
        if self.where == "look" and len(news.steps):
            self.wait()
        return [Finding(at=int(news.steps.ends[-1]) - 1)] if 3 in news.steps.numbers else []

    def device(self) -> float:
        self.wait()
        return 0.99

    def wait(self) -> None:
        self.reached.set()
        assert self.over.wait(60)


def waiting(where: str) -> tuple[Trigger, Waits | LostForWords]:
    """A trigger that waits somewhere, and what says so."""
    if where == "words":
        error = LostForWords()
        return When(error=error), error
    waits = Waits(where)
    device = sc.triggers.MemoryHigh(share=0.98, device=waits.device, interval=0)
    return device if where == "device" else waits, waits


@pytest.mark.parametrize("where", ["look", "evaluator", "device", "words"])
def test_a_trigger_that_waits_holds_up_nobody(where: str, output_dir: Path, tmp_path: Path) -> None:
    """Another profiler's exporters get everything meanwhile, other triggers of its own fire, and it fires when it goes on, or its
    exception has found words."""
    other = sc.exporters.MemoryExporter()
    trigger, waits = waiting(where)
    profile = Profile(output_dir, triggers=(trigger, sc.triggers.NotFinite()), steps=1000)
    with profile.profiler as profiler, sc.trace(exporters=[other], output_dir=tmp_path / "other") as second:
        profile.steps(4, lambda number: sc.counter("norm", math.inf if number == 2 else 1.0))
        assert waits.reached.wait(60)
        sc.instant("meanwhile")
        assert second.flush(60)
        assert "meanwhile" in other.names()
        assert profiler.flush(60)
        assert profiler.save("mine")
        assert profiler.flush(60)
        assert [window.metadata["flight"]["reason"] for window in profile.memory.windows] == ["not_finite", "mine"]
        waits.over.set()
        while not (
            profile.flight.triggers.errors if where == "words" else trigger.name in profile.flight.triggers.fired
        ):
            profile.steps(1)
            assert profiler.flush(60)
    own = f"stepscope trigger {trigger.name}"
    assert not isinstance(waits, LostForWords) or set(waits.threads) == {own}
    assert not [thread for thread in threading.enumerate() if thread.name == own]
    profile.check_accounts()


def test_a_trigger_that_never_returns(output_dir: Path) -> None:
    """The profiler closes, with everything saved, and leaves its thread to itself."""
    waits = Waits("look")
    profile = Profile(output_dir, triggers=(waits,))
    with profile.profiler as profiler:
        profile.steps(4)
        assert waits.reached.wait(60)
        assert profiler.save("mine")
    assert [window.metadata["flight"]["reason"] for window in profile.memory.windows] == ["mine"]
    profile.check_accounts()
    waits.over.set()


def test_odd_reasons(output_dir: Path) -> None:
    """A reason of any kind does not raise, is cut, and never leads out of the directory."""
    profile = Profile(output_dir)
    with profile.profiler as profiler:
        for reason in ("", "../../etc/passwd", "x" * 10_000_000, "\udc80\0/\n", 7, None):
            profile.steps(1)
            assert profiler.save(reason)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert profiler.flush()
    names = sorted(path.name.split("-", 2)[2] for path in (output_dir / "windows").iterdir())
    reasons = ["7", "call", "etc_passwd", "none", "udc80", "x" * 40]
    assert names == [f"{reason}.journal" for reason in reasons]
    assert sorted(path.name for path in output_dir.iterdir()) == ["windows"]


class Unspeakable(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_without_words(output_dir: Path) -> None:
    """The exception that left the block is the one that the caller gets."""
    with pytest.raises(Unspeakable), Profile(output_dir, triggers=(sc.triggers.Raised(),)).profiler as profiler:
        profiler.step()
        raise Unspeakable
    assert len(list((output_dir / "windows").iterdir())) == 1


def test_a_program_that_fails_without_a_block(output_dir: Path) -> None:
    """With `start()` alone, the exception that ends the program is saved at its exit."""
    program = f"""
import stepscope as sc
profiler = sc.trace(keep_last=2, output_dir={str(output_dir)!r})
profiler.start()
for _ in range(5):
    profiler.step()
raise ValueError("the end")
"""
    done = run_to_end([sys.executable, "-W", "error", "-c", program], timeout=60)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: the end\n")
    (path,) = (output_dir / "windows").iterdir()
    assert path.name == "000000-step5-raised.journal"


def test_pauses_and_stops(output_dir: Path) -> None:
    """Events of a pause are not recorded, the pause is, and no watchdog fires in it. After stop() nothing is saved; after
    start() it goes on."""
    profile = Profile(output_dir, triggers=(sc.triggers.Stalled(factor=1, least=0.2),))
    with profile.profiler as profiler:
        profile.steps(5)
        profiler.pause()
        profile.steps(1)
        time.sleep(0.6)
        profiler.resume()
        profile.steps(1)
        profiler.save()
        assert profile.windows == [[5, 6, 7]]
        profiler.stop()
        assert not profiler.save()
        profiler.start()
        profile.steps(5)
        assert profiler.save()
        assert profile.windows[1:] == [[10, 11, 12]]
    assert profile.memory.names(0, Kind.SPAN).count("work") == 1
    assert "paused" in profile.memory.names(0, Kind.GAP)
    profile.check_accounts()


def test_without_keep_last(output_dir: Path) -> None:
    """A profiler that keeps nothing has nothing to save; it says so, and does not raise."""
    with sc.trace(output_dir=output_dir) as profiler:
        assert not profiler.save()
        assert not profiler.caught(ValueError())


def test_with_a_profiler_that_has_a_schedule(output_dir: Path) -> None:
    """Both get what they asked for, whatever the other does."""
    profile = Profile(output_dir / "flight")
    other = sc.exporters.MemoryExporter()
    scheduled = sc.trace(
        schedule=sc.schedule(wait=2, warmup=0, active=2, repeat=2),
        exporters=[other],
        output_dir=output_dir / "other",
        options=QUIET,
    )
    with profile.profiler as profiler, scheduled:
        profile.steps(10, lambda _: scheduled.step())
        profiler.save()
        assert profile.windows == [[8, 9, 10]]
        profile.steps(2, lambda _: scheduled.step())
    assert [[step.number for step in window.steps] for window in other.windows] == [[2, 3], [6, 7]]
    profile.check_accounts()


def test_fork(output_dir: Path) -> None:
    """A child keeps nothing of its parent's, saves nothing, and disturbs nothing."""
    (report,) = run_program(
        f"""
        import logging
        import stepscope as sc
        profiler = sc.trace(keep_last=3, output_dir={str(output_dir)!r})
        profiler.start()
        for _ in range(5):
            with span("work"): pass
            profiler.step()
        profiler.flush()
        child = os.fork()
        if not child:
            files = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd") if
                     os.path.lexists(f"/proc/self/fd/{{fd}}")]
            saved = profiler.save()
            logging.disable()  # it says that this step is nobody's
            profiler.step()
            os._exit(7 if saved or any("kept-" in name for name in files) else 0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        profiler.save("parent")
        profiler.close()
        print_json([code, sorted(os.listdir({str(output_dir / "windows")!r}))])
        """
    )
    assert report == [0, ["000000-step5-parent.journal"]]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"keep_last": 3, "schedule": sc.schedule(wait=0, warmup=0, active=1)}, ["keep_last", "schedule"]),
        ({"keep_last": 0}, ["keep_last", "0"]),
        ({"keep_last": True}, ["keep_last", "True"]),
        ({"keep_last": 3, "backends": [sc.TorchBackend("kineto")]}, ["mode='stream'"]),
        ({"keep_last": 3, "backends": [sc.TorchBackend(profile_memory=True)]}, ["mode='stream'"]),
    ],
)
def test_misuse(arguments: dict[str, Any], facts: list[str]) -> None:
    """Settings that contradict each other are refused when the profiler is made."""
    with refused((TypeError, ValueError), *facts):
        sc.trace(**arguments)


class Slow:
    """A trigger that takes its time, so that there is always a look that it has not answered."""

    name = "slow"

    def evaluator(self) -> Evaluator:
        return self

    def look(self, news: News) -> Sequence[Finding]:
        time.sleep(0.03)
        return []


@pytest.mark.parametrize("steps", [0, 1])
def test_a_flush_waits_for_earlier_events_only(steps: int, output_dir: Path) -> None:
    """Triggers are asked again whenever the loop comes by, also about nothing: no flush waits for those looks."""
    options = sc.Options(drain_interval=1.0 if not steps else 0.02)
    done = threading.Event()
    with sc.trace(
        keep_last=sc.FlightRecorder(steps=5, triggers=(Slow(),)), output_dir=output_dir, options=options
    ) as profiler:
        profiler.step()

        def go_on() -> None:
            while not done.wait(0.002):
                for _ in range(steps):
                    sc.instant("more")

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            assert all(profiler.flush(20) for _ in range(5))
        finally:
            done.set()
            thread.join()


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
    """The last steps of every profiler are saved, unless its settings say no or it has saved all its windows; the process dies."""
    run(
        """
one = sc.trace(keep_last=3, output_dir="one", options=options)
two = sc.trace(keep_last=sc.FlightRecorder(steps=2, cooldown=3600), output_dir="two", options=options)
raised = sc.trace(keep_last=sc.FlightRecorder(steps=2, triggers=(sc.triggers.Raised(),)), output_dir="raised", options=options)
full = sc.trace(keep_last=sc.FlightRecorder(steps=2, max_windows=1), output_dir="full", options=options)
with one, two, raised, full, sc.trace(output_dir="three"):
    steps(one, two, raised, full)
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
    assert saved(tmp_path / "raised") == {}
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
    """It is saved once: by `Raised`, where that is among the triggers."""
    heed_interrupts()
    profile = Profile(output_dir, triggers=(sc.triggers.Raised(only=(BaseException,)), sc.triggers.Terminated()))
    with pytest.raises(KeyboardInterrupt), profile.profiler:
        profile.steps(3)
        signal.raise_signal(signal.SIGINT)
    assert [path.name for path in (output_dir / "windows").iterdir()] == ["000000-step3-raised.journal"]
    assert profile.flight.triggers.fired == {"raised": 1}


def test_a_storm_of_calls_does_not_crowd_it_out() -> None:
    """However many calls of `save` wait, the end of the run is saved."""
    watch = TriggerWatch(sc.FlightRecorder(steps=1))
    for _ in range(MAX_WAITING + 5):
        watch.call(Fired("call", Finding(at=1)))
    assert watch.statistics().refused == 5
    assert watch.call(Fired("terminated by SIGTERM", Finding(at=1), always=True))
