"""Objects of `stepscope.mxnet` that threads and tasks share: each `stop()` ends the caller's own start."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator

import pytest

from stepscope import mxnet
from stepscope.compat.mxnet.memory import MemoryBackend
from stepscope.runtime.threads.native_threads import Event
from tests.support.mxnets import begin, durations, load, statistics


class Worker:
    """A thread that carries out calls, one after the other."""

    def __init__(self) -> None:
        self._work: list[Callable[[], object] | None] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def do(self, work: Callable[[], object]) -> None:
        """Returns when it is done."""
        done = threading.Event()

        def one() -> None:
            work()
            done.set()

        with self._changed:
            self._work.append(one)
            self._changed.notify()
        assert done.wait(30)

    def end(self) -> None:
        with self._changed:
            self._work.append(None)
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work)
                work = self._work.pop(0)
            if work is None:
                return
            work()


@pytest.fixture
def other() -> Generator[Worker]:
    """Another thread."""
    worker = Worker()
    try:
        yield worker
    finally:
        worker.end()


@pytest.mark.parametrize("kind", ["new_task", "new_frame"])
def test_a_stop_in_a_pause_ends_the_start_of_its_own_thread(kind: str, other: Worker) -> None:
    """Not that of another thread, which waits for the end of the pause."""
    begin()
    shared = getattr(mxnet.Domain("d"), kind)("shared")
    other.do(shared.start)
    mxnet.pause()
    shared.start()
    other.do(shared.stop)
    mxnet.resume()
    time.sleep(0.02)
    shared.stop()
    shared.stop()  # there is no start left: nothing happens
    mxnet.dump()
    found = durations(load("profile.json"), "shared")
    assert len(found) == 2, found
    (row,) = (rows["shared"] for rows in statistics()["Time"].values() if "shared" in rows)
    assert row["Count"] == 2
    assert found[1] >= 20


def test_a_stop_of_another_thread_ends_the_latest_start(other: Worker) -> None:
    """Where that thread has none of its own; also one that waits."""
    begin()
    task = mxnet.Domain("d").new_task("handed over")
    task.start()
    other.do(task.stop)
    mxnet.pause()
    task.start()
    other.do(task.stop)
    mxnet.resume()
    mxnet.dump()
    assert len(durations(load("profile.json"), "handed over")) == 1


async def test_tasks_of_one_thread_end_their_own_starts() -> None:
    """They share the object and the thread, and are started and stopped crosswise around a pause."""
    begin()
    shared = mxnet.Domain("d").new_task("crosswise")
    paused, resumed = asyncio.Event(), asyncio.Event()

    async def before() -> None:
        shared.start()
        await paused.wait()
        shared.stop()

    async def within() -> None:
        await asyncio.sleep(0.01)
        mxnet.pause()
        shared.start()
        paused.set()
        await resumed.wait()
        shared.stop()

    async with asyncio.TaskGroup() as group:
        group.create_task(before())
        group.create_task(within())
        await asyncio.sleep(0.05)
        mxnet.resume()
        await asyncio.sleep(0.02)
        resumed.set()
    mxnet.dump()
    assert len(durations(load("profile.json"), "crosswise")) == 2


def test_memory_is_not_looked_at_while_nothing_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped or paused, the thread sleeps; it records again afterwards."""
    waits: list[float | None] = []
    wait = Event.wait

    def waiting(event: Event, timeout: float | None = None) -> bool:
        if threading.current_thread().name == "stepscope mxnet memory":
            waits.append(timeout)
        return wait(event, timeout)

    monkeypatch.setattr(Event, "wait", waiting)
    assert MemoryBackend().name == "mxnet memory"
    mxnet.set_config(aggregate_stats=True)
    mxnet.set_state("run")

    def grows() -> None:
        count, ending = len(waits), time.monotonic() + 30
        while len(waits) < count + 3 and time.monotonic() < ending:
            time.sleep(0.01)
        assert len(waits) >= count + 3

    def rests() -> None:
        ending = time.monotonic() + 30
        while waits[-1] is not None and time.monotonic() < ending:
            time.sleep(0.01)
        count = len(waits)
        time.sleep(0.3)
        assert len(waits) == count and waits[-1] is None

    grows()
    mxnet.pause()
    rests()
    mxnet.resume()
    grows()
    mxnet.set_state("stop")
    rests()
    mxnet.set_state("run")
    grows()
    mxnet.pause()
    rests()
    mxnet.set_state("stop")
    mxnet.set_state("run")
    grows()
