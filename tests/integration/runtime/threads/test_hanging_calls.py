"""Calls one after the other, and what one that does not return holds up: nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.backends.simulated.scripted import ScriptedBackend
from stepscope.runtime import _core
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.steps.call_serializer import CallSerializer
from tests.support.killed_programs import names

LONG = 30.0


class Hang:
    """Holds a thread until it is let go."""

    def __init__(self) -> None:
        self.reached, self.over = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.over.wait(LONG)


def in_thread(call: Callable[[], object]) -> threading.Thread:
    """Makes a call on a thread."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_a_call_whose_patience_ends_is_made_later() -> None:
    """By the thread that was inside; so are others that are deferred meanwhile, and their errors are stored."""
    serial, hang, made = CallSerializer(), Hang(), list[int]()

    def fail() -> None:
        raise ValueError("why")

    first = in_thread(lambda: serial.run(hang))
    assert hang.reached.wait(LONG)
    assert not serial.run(lambda: made.append(threading.get_ident()), timeout_s=0.01)
    assert not serial.run(fail, timeout_s=0)
    assert not serial.run(lambda: made.append(0), timeout_s=0)
    hang.over.set()
    first.join(LONG)
    assert made == [first.ident, 0] and [str(error) for error in serial.raised.errors] == ["why"]
    assert serial.run(lambda: made.append(1)) and made[-1] == 1


def test_calls_from_many_threads_never_interleave() -> None:
    """Each is made once, whether its patience ends or not."""
    serial, inside, most, made = CallSerializer(), 0, 0, 0

    def call() -> None:
        nonlocal inside, most, made
        inside += 1
        most = max(most, inside)
        made += 1
        inside -= 1

    def work(patience: float) -> None:
        for _ in range(500):
            serial.run(call, timeout_s=patience)

    threads = [in_thread(lambda patience=patience: work(patience)) for patience in (0.0, 0.0001, 1.0, 0.0)]  # type: ignore[misc]
    for thread in threads:
        thread.join(LONG)
    assert (most, made, inside) == (1, 2000, 0)


@pytest.mark.parametrize("where", ["schedule", "backend"])
def test_closing_around_a_thread_that_hangs(where: str, output_dir: Path) -> None:
    """Recorded events are delivered though another thread is inside of the schedule or a bound backend; should that
    return, its step() neither raises nor records."""
    hang, raised = Hang(), list[BaseException]()

    def schedule(step: int) -> ProfilerAction:
        if where == "schedule" and step == 3:
            hang()
        return ProfilerAction.RECORD if step != 1 else ProfilerAction.RECORD_AND_SAVE

    class Bound(ScriptedBackend):
        def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
            if where == "backend" and before is ProfilerAction.RECORD_AND_SAVE:
                hang()
            super().transition(before, after, at)

    profiler = sc.trace(
        schedule=schedule,
        backends=[Bound(name="bound", thread_bound=True)],
        output_dir=output_dir,
        options=sc.Options(close_timeout=1),
    )

    def train() -> None:
        try:
            profiler.start()
            for _ in range(5):
                with sc.span("work"):
                    pass
                profiler.step()
        except BaseException as error:
            raised.append(error)

    thread = in_thread(train)
    assert hang.reached.wait(LONG)
    profiler.close()
    assert profiler.statistics().state == "closed"
    assert _core.changing(0) == 0 and not _core.recording()
    with JournalReader(output_dir / "journal") as reader:
        list(reader)
        assert reader.end is not None
    recorded = names(output_dir / "journal")["work"]
    assert recorded == (3 if where == "schedule" else 2)
    hang.over.set()
    thread.join(LONG)
    assert not thread.is_alive() and not raised
    assert profiler.statistics().state == "closed"
    assert _core.changing(0) == 0 and not _core.recording()
    profiler.close()


@pytest.mark.parametrize("name", ["pause", "resume", "step", "stop", "flush", "start"])
def test_nothing_waits_for_ever_for_a_thread_that_hangs(name: str, output_dir: Path) -> None:
    """Calls of the same profiler return, and are made when the other thread's is done."""
    hang = Hang()

    def schedule(step: int) -> ProfilerAction:
        if step == 1:
            hang()
        return ProfilerAction.RECORD

    with sc.trace(schedule=schedule, output_dir=output_dir, options=sc.Options(close_timeout=1)) as profiler:
        thread = in_thread(profiler.step)
        assert hang.reached.wait(LONG)
        if name == "start":
            with pytest.raises(sc.errors.ProfilerStateError):
                profiler.start()
        else:
            getattr(profiler, name)()
        assert thread.is_alive()
        hang.over.set()
        thread.join(LONG)
        assert profiler.statistics().state == ("stopped" if name == "stop" else "running")
