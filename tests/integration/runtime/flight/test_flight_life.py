"""The flight recorder beside pauses, other profilers, forks, and users who do odd things."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.runtime.events.record import Kind
from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News
from tests.support.flights import QUIET, Profile, When
from tests.support.launch import run_to_end
from tests.support.messages import refused
from tests.support.raised import LostForWords
from tests.support.recording import run_program


class Wild:
    """A user's trigger that does what none should."""

    name = "wild"

    def __init__(self) -> None:
        self.looks = 0

    def evaluator(self) -> Evaluator:
        return self

    def look(self, news: News) -> Sequence[Finding]:
        self.looks += 1
        if self.looks == 2:
            raise asyncio.CancelledError
        if self.looks == 3:
            return None  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
        if self.looks == 4:
            return [Finding(at=1 << 80, text="\udc80" * 5000), Finding(at=-5), Finding(at=math.nan)]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        return []


def test_a_wild_trigger_disturbs_nobody(output_dir: Path) -> None:
    """Times of never, text that cannot be written, cancellations: the run goes on and ends in time."""
    profile = Profile(output_dir, triggers=(Wild(), When(30)))
    with profile.profiler as profiler:
        for _ in range(8):
            profile.steps(5)
            assert profiler.flush()
        began = time.monotonic()
    assert time.monotonic() - began < 20
    assert [30] in [window[-1:] for window in [[s.number for s in w.steps] for w in profile.memory.windows]]
    assert profile.flight.triggers.errors == 3
    profile.check_accounts()


def test_what_a_trigger_raises_is_put_into_words_beside_the_loop(output_dir: Path) -> None:
    """An exception that waits before it says anything holds up its trigger, and nobody else."""
    error = LostForWords()
    profile = Profile(output_dir, triggers=(When(error=error),), steps=1000)
    with profile.profiler as profiler:
        profile.steps(4)
        assert error.reached.wait(60)
        assert profiler.save("mine")
        assert profiler.flush(60)
        assert [window.metadata["flight"]["reason"] for window in profile.memory.windows] == ["mine"]
        error.over.set()
        while not profile.flight.triggers.errors:
            profile.steps(1)
            assert profiler.flush(60)
    assert set(error.threads) == {"stepscope trigger when"}
    profile.check_accounts()


class Waits:
    """A user's trigger that waits, as for an answer over the network, where it looks or is made."""

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

    def wait(self) -> None:
        self.reached.set()
        assert self.over.wait(60)


@pytest.mark.parametrize("where", ["look", "evaluator"])
def test_a_trigger_that_waits_holds_up_nobody(where: str, output_dir: Path, tmp_path: Path) -> None:
    """Another profiler's exporters get everything meanwhile, other triggers of its own fire, and it fires when it goes on."""
    waits, other = Waits(where), sc.exporters.MemoryExporter()
    profile = Profile(output_dir, triggers=(waits, When(2)), steps=1000)
    with profile.profiler as profiler, sc.trace(exporters=[other], output_dir=tmp_path / "other") as beside:
        profile.steps(4)
        assert waits.reached.wait(60)
        sc.instant("meanwhile")
        assert beside.flush(60)
        assert "meanwhile" in other.names()
        assert profiler.flush(60)
        assert profiler.save("mine")
        assert profiler.flush(60)
        assert [window.metadata["flight"]["reason"] for window in profile.memory.windows] == ["when", "mine"]
        waits.over.set()
        while "waits" not in profile.flight.triggers.fired:
            profile.steps(1)
            assert profiler.flush(60)
    assert not [thread for thread in threading.enumerate() if thread.name == "stepscope trigger waits"]
    profile.check_accounts()


def test_a_device_that_does_not_answer_holds_up_nobody(output_dir: Path) -> None:
    """`MemoryHigh.device` is the program's, though the trigger is not; it fires when the device has answered."""
    reached, over = threading.Event(), threading.Event()

    def device() -> float:
        reached.set()
        assert over.wait(60)
        return 0.99

    profile = Profile(output_dir, triggers=(sc.triggers.MemoryHigh(share=0.98, device=device, interval=0),), steps=1000)
    with profile.profiler as profiler:
        profile.steps(4)
        assert reached.wait(60)
        assert profiler.save("mine") and profiler.flush(60)
        over.set()
        while "memory_high" not in profile.flight.triggers.fired:
            profile.steps(1)
            assert profiler.flush(60)
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
    """Whatever is said, it does not raise, is cut, and never leaves the directory."""
    profile = Profile(output_dir)
    with profile.profiler as profiler:
        for reason in ("", "../../etc/passwd", "x" * 10_000_000, "\udc80\0/\n", 7, None):
            profile.steps(1)
            assert profiler.save(reason)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert profiler.flush()
    names = sorted(path.name.split("-", 2)[2] for path in (output_dir / "windows").iterdir())
    said = ["7", "call", "etc_passwd", "none", "udc80", "x" * 40]
    assert names == [f"{reason}.journal" for reason in said]
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


def test_pause_and_resume(output_dir: Path) -> None:
    """What happened in a pause is not recorded, the pause is, and no watchdog barks in it."""
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
    assert profile.memory.names(0, Kind.SPAN).count("work") == 1
    assert "paused" in profile.memory.names(0, Kind.GAP)


def test_stop_and_start(output_dir: Path) -> None:
    """After stop() nothing is saved; after start() it goes on."""
    profile = Profile(output_dir)
    with profile.profiler as profiler:
        profile.steps(5)
        profiler.stop()
        assert not profiler.save()
        profiler.start()
        profile.steps(5)
        assert profiler.save()
        assert profile.windows == [[8, 9, 10]]
    profile.check_accounts()


def test_without_keep_last(output_dir: Path) -> None:
    """A profiler that keeps nothing has nothing to save; it says so, and does not raise."""
    with sc.trace(output_dir=output_dir) as profiler:
        assert not profiler.save()
        assert not profiler.caught(ValueError())


def test_beside_a_profiler_with_a_schedule(output_dir: Path) -> None:
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
    (told,) = run_program(
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
        tell([code, sorted(os.listdir({str(output_dir / "windows")!r}))])
        """
    )
    assert told == [0, ["000000-step5-parent.journal"]]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"keep_last": 3, "schedule": sc.schedule(wait=0, warmup=0, active=1)}, ["keep_last", "schedule"]),
        ({"keep_last": 0}, ["keep_last", "0"]),
        ({"keep_last": True}, ["keep_last", "True"]),
        ({"keep_last": 2.5}, ["keep_last", "2.5"]),
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
def test_a_flush_waits_for_what_came_before_it_only(steps: int, output_dir: Path) -> None:
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
