"""Calls that a signal handler interrupts by an exception: they may be lost, but nothing that was recorded, and later ones work."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.backends.mindspore.backend import MindSporeBackend
from stepscope.backends.simulated.scripted import ScriptedBackend
from stepscope.backends.torch.kineto.worker import SharedResult
from stepscope.compat.mindspore.mstx import mstx
from stepscope.compat.mindspore.sources.dataset_waits import DatasetWaits
from stepscope.compat.torch.windows.callbacks import Callbacks
from stepscope.runtime import _core
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.events.record import Kind
from stepscope.runtime.inbox.inbox import Inbox
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.lifecycle.join import leave
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.user_code import replace
from tests.support.interrupting import interrupting
from tests.support.killed_programs import names

# A test that hangs does so in a lock: no handler of a signal ends it.
pytestmark = pytest.mark.timeout(300, method="thread")

TRIALS = 40
CLOSE_S = 8.0
"""More than `Options.close_timeout`, on a machine that is busy."""
EVERY_STEP = sc.schedule(wait=0, warmup=0, active=1)


def points(most: int) -> Iterator[int]:
    """Byte codes to interrupt, more of the early ones; the same in each run."""
    chance = random.Random(most)
    return (round(most ** chance.random()) for _ in range(TRIALS))


def close(profiler: sc.Profiler) -> None:
    """Closes within the deadline, and fails if something is still under way."""
    began = time.monotonic()
    profiler.close()
    assert time.monotonic() - began < CLOSE_S
    assert profiler.statistics().state == "closed"
    assert _core.changing(0) == 0 and not _core.recording() and not locks.holds_any_lock()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_step_that_is_interrupted_twice(tmp_path: Path) -> None:
    """Each step of a whole window has the span that the program recorded in it, and no window is without its begin."""
    memory, chance = sc.exporters.MemoryExporter(), random.Random(7)
    schedule = sc.schedule(wait=1, warmup=0, active=2)
    with (
        sc.trace(schedule=schedule, exporters=[memory], output_dir=tmp_path) as profiler,
        interrupting() as interrupt,
    ):
        for number in range(TRIALS * 10):
            # The step after this one begins a window.
            while profiler.step_num % 3:
                profiler.step()
            interrupt(profiler.step, round(150 * chance.random()), again=round(150 * chance.random()))
            if profiler.step_num % 3 == 0:
                continue
            for _ in range(2):
                with sc.span("work", where=interrupt.where):
                    pass
                profiler.step()
            assert number % 16 or profiler.flush(30)
        assert profiler.flush(30)
    assert len(memory.windows) >= TRIALS * 10
    for window in memory.windows:
        named = zip(memory.events(window.index), memory.names(window.index), strict=True)
        began = [event["ts"] for event, name in named if name == "work"]
        for step in window.steps if window.complete else ():
            assert any(step.start_ns <= at <= step.end_ns for at in began), (step, memory.arguments(window.index))


def written(directory: Path) -> list[str]:
    """Names of the instants that the journal has, which is whole."""
    with JournalReader(directory / "journal") as reader:
        list(reader)
        assert reader.end is not None and not reader.damage
    return sorted(names(directory / "journal", Kind.INSTANT).elements())


def profiler_in(directory: Path) -> sc.Profiler:
    """One with windows of one step, and both kinds of backends."""
    backends = [ScriptedBackend(), ScriptedBackend(name="bound", thread_bound=True)]
    options = sc.Options(linger=0.02, drain_interval=0.02)  # these backends never say that all has arrived
    return sc.trace(schedule=EVERY_STEP, backends=backends, output_dir=directory, options=options)


def test_a_start(tmp_path: Path) -> None:
    """A later one works, unless the first had done its work."""
    with interrupting() as interrupt:
        for number, point in enumerate(points(2000)):
            profiler = profiler_in(tmp_path / str(number))
            interrupted = interrupt(profiler.start, point)
            if profiler.statistics().state != "running":
                assert interrupted
                profiler.start()
            profiler.step()
            sc.instant("after")
            profiler.step()
            close(profiler)
            assert written(tmp_path / str(number)) == ["after"], interrupt.where


@pytest.mark.parametrize("name", ["step", "pause", "resume", "flush", "stop"])
def test_a_call(name: str, tmp_path: Path) -> None:
    """Later ones work, and whatever was recorded while a step recorded is in the journal."""
    profiler, recorded = profiler_in(tmp_path), list[str]()
    with interrupting() as interrupt:
        profiler.start()
        for number, point in enumerate(points(600)):
            interrupt(getattr(profiler, name), point)
            if profiler.statistics().state == "stopped":
                profiler.start()
            profiler.resume()
            profiler.resume()
            profiler.step()
            assert profiler.recording_now and _core.recording(), interrupt.where
            recorded.append(f"after {number}")
            sc.instant(recorded[-1])
            assert number % 8 or profiler.flush(30)  # a loop that is behind leaves out windows
        profiler.step()
        close(profiler)
    profiler.raise_errors()
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None and pipeline.windows.opened == pipeline.windows.closed
    assert written(tmp_path) == sorted(recorded)


def test_a_close(tmp_path: Path) -> None:
    """A second one ends what the first has begun."""
    with interrupting() as interrupt:
        for number, point in enumerate(points(2000)):
            profiler = profiler_in(tmp_path / str(number))
            profiler.start()
            sc.instant("before")
            interrupt(profiler.close, point)
            close(profiler)
            assert written(tmp_path / str(number)) == ["before"], interrupt.where


def test_a_stop_while_another_profiler_runs(tmp_path: Path) -> None:
    """Nothing is recorded for a profiler that has stopped, also where another one keeps the session."""
    never = sc.schedule(wait=1, warmup=0, active=1, skip_first=1000)
    functions = {f"StepController.{name}" for name in ("end", "_set_pauses", "_change", "_want")} | {"_finish"}
    with sc.trace(schedule=never, output_dir=tmp_path / "other"), interrupting() as interrupt:
        for point in interrupt.everywhere(least=10):
            profiler = profiler_in(tmp_path / str(point))
            profiler.start()
            interrupt(profiler.stop, point, inside=functions)
            assert profiler.statistics().state == "running" or not _core.recording(), interrupt.where
            close(profiler)


class Alarm(Exception):
    """An exception that a program's handler raises to end slow work: no more than an `Exception`."""


class Slow(asyncio.Task[None]):
    """A task whose type is written in Python, as programs make them: it is asked for what it has by code of ours."""


@pytest.mark.parametrize("kind", [asyncio.Task, Slow])
def test_the_first_span_of_a_task(kind: type[asyncio.Task[None]], output_dir: Path) -> None:
    """An exception of a handler during the search for the task comes out of the span: the program waits for it."""

    def ring() -> None:
        raise Alarm

    def first() -> None:
        with sc.span("first"):
            pass

    async def record(point: int) -> None:
        try:
            interrupt(first, point, ring)
        except Alarm:
            raised.append(point)
        assert not locks.holds_any_lock() and _core.changing(0) == 0

    raised = list[int]()
    with sc.trace(output_dir=output_dir), interrupting() as interrupt, asyncio.Runner() as runner:
        for point in interrupt.everywhere(least=10):

            async def main(point: int = point) -> None:
                # A factory of the program's own, which no profiler has replaced: the task is found when it records.
                await kind(record(point), loop=asyncio.get_running_loop())

            runner.run(main())
            assert point in raised or not interrupt.where, interrupt.where


def test_an_inbox() -> None:
    """An item is in it and counted, or neither."""
    with interrupting() as interrupt:
        for point in interrupt.everywhere(least=3):
            inbox: Inbox[int] = Inbox(100, lambda: None)
            interrupted = interrupt(lambda: inbox.put(1, 10), point)  # noqa: B023
            assert not locks.holds_any_lock()
            known = inbox.statistics()
            assert known.put == known.waiting == inbox.waiting, interrupt.where
            assert known.waiting_bytes == known.peak_bytes == 10 * known.put
            assert known.put == 1 or interrupted


def test_a_replaced_function() -> None:
    """At any point the function can be restored, and nothing is left to undo where it was not replaced."""

    class Owner:
        def name(self) -> None:
            """The function."""

    def wrapped(function: Callable[..., None]) -> Callable[..., None]:
        return lambda *args: function(*args)

    original: Any = Owner.name
    with interrupting() as interrupt:
        for point in interrupt.everywhere(least=10):
            undo: list[Callable[[], None]] = []
            interrupted = interrupt(partial(replace, undo, "name", wrapped, Owner), point)
            assert (Owner.name is not original) == len(undo), interrupt.where
            assert undo or interrupted
            for restore in undo:
                restore()
            assert Owner.name is original


def test_work() -> None:
    """It is done once, and whoever waits next gets its result."""
    done: list[int] = []
    with interrupting() as interrupt:
        for point in points(200):
            before = len(done)
            work = BackgroundCall(done.append, point, name="interrupted work")
            interrupt(lambda: work.result(30), point)  # noqa: B023
            work.result(30)
            assert done[before:] == [point], interrupt.where


def test_callbacks() -> None:
    """Each callback is called once and in order, whichever call is interrupted, and the wait for it ends."""
    with interrupting() as interrupt:
        for point in interrupt.everywhere(least=20):
            made: list[int] = []
            callbacks = Callbacks(made.append)
            interrupted = interrupt(lambda: callbacks.put(1), point)  # noqa: B023
            callbacks.put(2)
            interrupt(callbacks.finish, point)
            callbacks.put(3)
            callbacks.finish()
            assert made == [1, 2, 3] or (made == [2, 3] and interrupted), interrupt.where


def _callbacks() -> Callable[[], object]:
    callbacks = Callbacks(lambda view: None)

    def call() -> None:
        callbacks.put(1)
        callbacks.finish()

    return call


def _inbox() -> Callable[[], object]:
    inbox: Inbox[int] = Inbox(1 << 20, lambda: None)
    return lambda: inbox.put(1, 1)


def _shared_result() -> Callable[[], object]:
    result = SharedResult(None)

    def call() -> None:
        result.add_user()
        result.release()

    return call


def _marks() -> Callable[[], object]:
    return lambda: mstx.range_end(mstx.range_start("range"))


def _dataset_waits() -> Callable[[], object]:
    def call() -> None:
        waits = DatasetWaits()
        waits.begin()
        waits.end()

    return call


def _mindspore() -> Callable[[], object]:
    return MindSporeBackend()._let_go  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "make", [_callbacks, _inbox, _shared_result, _marks, _dataset_waits, _mindspore, lambda: sc.join, lambda: leave]
)
def test_a_handler_makes_the_call_that_it_interrupts(make: Callable[[], Callable[[], object]]) -> None:
    """Anywhere: it does not wait for a lock that its own thread holds."""
    call = make()
    with interrupting() as interrupt:
        for point in interrupt.everywhere(least=2):
            interrupt(call, point, call)
            assert not locks.holds_any_lock()


CALLS: dict[str, Callable[[sc.Profiler], object]] = {
    "start": lambda profiler: profiler.start(),
    "step": lambda profiler: profiler.step(),
    "pause": lambda profiler: profiler.pause(),
    "resume": lambda profiler: profiler.resume(),
    "flush": lambda profiler: profiler.flush(),
    "stop": lambda profiler: profiler.stop(),
    "close": lambda profiler: profiler.close(),
    "arm": lambda profiler: profiler.arm(sc.control.WindowRequest(steps=1)),
    "statistics": lambda profiler: profiler.statistics(),
    "report": lambda profiler: profiler.report(),
    "diagnostics": lambda profiler: profiler.diagnostics(),
    "add_metadata": lambda profiler: profiler.add_metadata("key", 1),
}


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("start", "stop", "close", "report")])
def test_a_handler_makes_the_call_of_a_profiler_that_it_interrupts(name: str, tmp_path: Path) -> None:
    """Anywhere as well, of one that runs."""
    profiler = profiler_in(tmp_path)
    call = partial(CALLS[name], profiler)
    with interrupting() as interrupt:
        profiler.start()
        for point in interrupt.everywhere(least=2):
            interrupt(call, point, call)
        close(profiler)


@pytest.mark.parametrize("name", CALLS)
def test_a_handler_makes_any_call_of_a_profiler(name: str, tmp_path: Path) -> None:
    """No call waits for itself, whichever it interrupts, and the profiler closes as ever."""
    chance = random.Random(name)

    def call(made: str, profiler: sc.Profiler) -> None:
        with suppress(ProfilerStateError), sc.span(made):
            CALLS[made](profiler)

    with interrupting() as interrupt:
        for number, point in enumerate(itertools.islice(points(1000), TRIALS // 2)):
            profiler = profiler_in(tmp_path / str(number))
            if name != "start":
                profiler.start()
            other = chance.choice(list(CALLS))
            interrupt(partial(call, name, profiler), point, partial(call, other, profiler))
            close(profiler)
