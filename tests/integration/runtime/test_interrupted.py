"""Calls that a signal handler interrupts by an exception, at every point: each is done or not done, and nothing is held."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.backends.kineto_result import SharedResult
from stepscope.backends.mindspore import MindSporeBackend
from stepscope.backends.scripted import ScriptedBackend
from stepscope.compat.mindspore.dataset_waits import DatasetWaits
from stepscope.compat.mindspore.mstx import mstx
from stepscope.compat.torch.callbacks import Callbacks
from stepscope.runtime import _core
from stepscope.runtime.events.record import Kind
from stepscope.runtime.loop.inbox import Inbox
from stepscope.runtime.recording.join import leave
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.background_call import BackgroundCall
from tests.support.interrupting import interrupting

# A test that hangs does so in a lock: no handler of a signal ends it.
pytestmark = pytest.mark.timeout(600, method="thread")


def records() -> bool:
    """Whether spans are recorded now; fails if a call has left something held."""
    assert not locks.held_here() and _core.changing(0) == 0
    return bool(_core.recording())


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("name", ["pause", "resume"])
def test_a_pause(name: str, depth: int, output_dir: Path) -> None:
    """Recording goes on after as many calls of `resume` as there were pauses, or one less: never after another number."""
    memory = sc.exporters.MemoryExporter()
    with sc.trace(exporters=[memory], output_dir=output_dir) as profiler, interrupting() as interrupt:
        after = depth + 1 if name == "pause" else max(depth - 1, 0)
        point = 0
        for point in itertools.count(1):
            for _ in range(depth):
                profiler.pause()
            interrupted = interrupt(getattr(profiler, name), point)
            left = 0
            while not records():
                profiler.resume()
                left += 1
            assert left == after or (interrupted and left == depth), interrupt.where
            profiler.pause()
            assert not records(), interrupt.where
            profiler.resume()
            assert records(), interrupt.where
            sc.instant(f"after {point}")
            if not interrupted:
                break
    assert point > 20
    assert memory.names(kind=Kind.INSTANT) == [f"after {number + 1}" for number in range(point)]


def test_a_step(output_dir: Path) -> None:
    """Whatever is interrupted when the action changes: later windows are whole, and the backends' too."""
    backends = [ScriptedBackend(), ScriptedBackend(name="bound", thread_bound=True)]
    schedule = sc.schedule(wait=1, warmup=1, active=1)
    memory = sc.exporters.MemoryExporter()
    with (
        sc.trace(schedule=schedule, backends=backends, exporters=[memory], output_dir=output_dir) as profiler,
        interrupting() as interrupt,
    ):
        for change in range(3):
            point = 0
            for point in itertools.count(1):
                while profiler.step_num % 3 != change:
                    profiler.step()
                interrupted = interrupt(profiler.step, point)
                records()
                profiler.step()
                while profiler.step_num % 3 != 2:
                    profiler.step()
                assert records(), interrupt.where
                sc.instant(f"{change} {point}")
                profiler.step()
                assert not records(), interrupt.where
                assert point % 16 or profiler.flush(30)  # a loop that is behind leaves out windows
                if not interrupted:
                    break
            assert point > 20 and profiler.flush(30)
            found = [name for name in memory.names(kind=Kind.INSTANT) if name.startswith(f"{change} ")]
            assert found == [f"{change} {number + 1}" for number in range(point)]


class Alarm(Exception):
    """What a program's handler raises to end what takes too long: no more than an `Exception`."""


class Slow(asyncio.Task[None]):
    """A task whose type is written in Python, as programs make them: it is asked for what it has by code of ours."""


@pytest.mark.parametrize("kind", [asyncio.Task, Slow])
def test_the_first_span_of_a_task(kind: type[asyncio.Task[None]], output_dir: Path) -> None:
    """What a handler raises while it is found out which task records comes out of the span: the program waits for it."""

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
        records()

    raised = list[int]()
    point = 0
    with sc.trace(output_dir=output_dir), interrupting() as interrupt, asyncio.Runner() as runner:
        for point in itertools.count(1):

            async def main(point: int = point) -> None:
                # A factory of the program's own, which no profiler has replaced: the task is found when it records.
                await kind(record(point), loop=asyncio.get_running_loop())

            runner.run(main())
            if not interrupt.where:
                break
            assert point in raised, interrupt.where
    assert point > 20


def test_an_inbox() -> None:
    """An item is in it and counted, or neither."""
    with interrupting() as interrupt:
        point = 0
        inbox: Inbox[int] = Inbox(100, lambda: None)
        known = inbox.statistics()
        for point in itertools.count(1):
            inbox = Inbox(100, lambda: None)
            interrupted = interrupt(lambda: inbox.put(1, 10), point)  # noqa: B023
            assert not locks.held_here()
            known = inbox.statistics()
            assert known.put == known.waiting == inbox.waiting, interrupt.where
            assert known.waiting_bytes == known.peak_bytes == 10 * known.put
            if not interrupted:
                break
    assert known.put == 1 and point > 3


def test_work() -> None:
    """It is done once, and whoever waits next gets its result; no thread is left that waits for a lock."""
    done: list[int] = []
    with interrupting() as interrupt:
        point = 0
        for point in itertools.count(1):
            work = BackgroundCall(done.append, point, name="interrupted work")
            interrupted = interrupt(lambda: work.finish(lambda: None), point)  # noqa: B023
            work.result(30)
            assert done == list(range(1, point + 1)), interrupt.where
            if not interrupted:
                break
    assert point > 10
    assert not [thread for thread in threading.enumerate() if thread.name == "interrupted work"]


def test_callbacks() -> None:
    """What was put is called, once and in order, whatever is interrupted; and the wait for it ends."""
    with interrupting() as interrupt:
        point = 0
        made: list[int] = []
        for point in itertools.count(1):
            made = []
            callbacks = Callbacks(made.append)
            interrupted = interrupt(lambda: callbacks.put(1), point)  # noqa: B023
            callbacks.put(2)
            interrupted |= interrupt(callbacks.finish, point)
            callbacks.put(3)
            callbacks.finish()
            assert made[-2:] == [2, 3] and made[:-2] in ([], [1]), interrupt.where
            if not interrupted:
                break
    assert point > 20 and made == [1, 2, 3]


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
        result.keep()
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
        point = 0
        for point in itertools.count(1):
            if not interrupt(call, point, call):
                break
            assert not locks.held_here()
    assert point > 2


def test_a_lock_that_is_taken_if_it_is_free() -> None:
    """It is given back wherever that is interrupted, and the call is not made while another thread has it."""
    lock, made = locks.reentrant(), list[int]()
    with interrupting() as interrupt:
        point = 0
        for point in itertools.count(1):
            interrupted = interrupt(lambda: locks.if_free(lock, lambda: made.append(point)), point)  # noqa: B023
            assert not locks.held_here(), interrupt.where
            if not interrupted:
                break
    assert point > 3 and made[-1] == point
    with lock:
        thread = threading.Thread(target=lambda: locks.if_free(lock, lambda: made.append(0)))
        thread.start()
        thread.join()
    assert 0 not in made


def test_a_lock_that_is_given_back_for_a_call() -> None:
    """It is held again afterwards, wherever that is interrupted."""
    lock, held = locks.reentrant(), list[bool]()
    with interrupting() as interrupt:
        point = 0
        for point in itertools.count(1):
            with lock:
                interrupted = interrupt(lambda: locks.without(lock, lambda: held.append(locks.held_here())), point)
                assert locks.held_here(), interrupt.where
            assert not locks.held_here(), interrupt.where
            if not interrupted:
                break
    assert point > 3 and not any(held)
