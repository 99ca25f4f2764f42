"""Parents: what a span starts hangs on it, in whatever task or thread it runs, also if it runs later."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import stepscope as sc
from stepscope.runtime._core import span
from stepscope.runtime.annotations import tasks
from stepscope.runtime.events.record import Kind
from tests.support.recording import check_self_times, recording


@pytest.fixture(autouse=True)
def watching() -> None:
    """The program's tasks are watched, as by an open profiler."""
    tasks.watch()


def work(name: str = "work") -> None:
    """Does nothing, within a span."""
    with span(name):
        pass


async def work_later(turns: int = 1) -> None:
    """A span that begins some turns of the loop later."""
    for _ in range(turns):
        await asyncio.sleep(0)
    work()


def after_watching(body: Callable[[], Any]) -> None:
    """Runs a coroutine function on a loop that is watched from the beginning."""

    async def main() -> None:
        tasks.watch()
        await body()

    asyncio.run(main())


def test_the_parent_of_a_task_is_the_span_in_which_it_was_made() -> None:
    """Also if that has ended when the task records for the first time, and if it is another span by then."""

    async def body() -> None:
        with span("maker"):
            task = asyncio.create_task(work_later(3))
        with span("later"):
            await task

    with recording() as log:
        after_watching(body)
    assert log.span("work").parent == log.span("maker").id
    assert log.span("later").parent == 0


def test_parents_reach_through_tasks_that_record_nothing() -> None:
    """A task's child hangs on what the task itself hangs on."""

    async def middle() -> None:
        await asyncio.sleep(0)
        await asyncio.gather(work_later(), work_later(2))

    async def body() -> None:
        with span("maker"):
            task = asyncio.create_task(middle())
        await task

    with recording() as log:
        after_watching(body)
    assert [row.parent for row in log.events(Kind.SPAN, "work")] == [log.span("maker").id] * 2


def test_suspended_time_is_nobodys_parent() -> None:
    """A callback of a task that is suspended hangs on the span in which the task is suspended."""

    async def body() -> None:
        with span("outer"):
            asyncio.get_running_loop().call_soon(work, "callback")
            await asyncio.sleep(0.001)

    with recording() as log:
        after_watching(body)
    callback, outer = log.span("callback"), log.span("outer")
    assert callback.parent == outer.id and callback.track != outer.track


@pytest.mark.checklist("F18")
@pytest.mark.parametrize("backend", ["asyncio", "asyncio+uvloop", "trio"])
def test_anyio(backend: str) -> None:
    """Task groups and worker threads, on every loop that anyio has."""

    async def child() -> None:
        with span("child"):
            await anyio.lowlevel.checkpoint()
            await anyio.to_thread.run_sync(work)

    async def main() -> None:
        tasks.watch()
        with span("main"):
            async with anyio.create_task_group() as group:
                group.start_soon(child)
                group.start_soon(child)

    name, _, uvloop = backend.partition("+")
    with recording() as log, span("around"):
        anyio.run(main, backend=name, backend_options={"use_uvloop": True} if uvloop else {})
    children = log.events(Kind.SPAN, "child")
    assert log.span("main").parent == log.span("around").id
    assert {row.parent for row in children} == {log.span("main").id}
    assert {row.parent for row in log.events(Kind.SPAN, "work")} == {row.id for row in children}
    assert len({row.track for row in log.spans}) >= 4
    for row in [log.span("main"), *children]:
        assert any(wait.parent == row.id for wait in log.events(Kind.SPAN, "suspended"))
    check_self_times(log.of(Kind.SPAN))


def test_thread_pools() -> None:
    """Submitted work hangs on the span that is open at the call; without one, on nothing."""
    with ThreadPoolExecutor(1) as pool:
        with recording() as log:
            with span("first"):
                pool.submit(work, name="of first")
                first = pool.submit(threading.get_ident)
            with span("second"):
                done = pool.submit(work, "of second")
            done.result()
            pool.submit(work, "of none").result()
        assert first.result() != threading.get_ident()
    assert log.span("of first").parent == log.span("first").id
    assert log.span("of second").parent == log.span("second").id
    assert log.span("of none").parent == 0


async def test_run_in_executor_and_to_thread() -> None:
    """With and without a copied context, and deeper in the worker."""

    def nested() -> None:
        with span("deep"):
            contextvars.Context().run(work)

    loop = asyncio.get_running_loop()
    with recording() as log, span("test"):
        await loop.run_in_executor(None, work, "plain")
        await loop.run_in_executor(None, partial(contextvars.copy_context().run, work, "copied"))
        await asyncio.to_thread(work, "to_thread")
        await loop.run_in_executor(None, nested)
    test = log.span("test").id
    assert [log.span(name).parent for name in ("plain", "copied", "to_thread", "deep")] == [test] * 4
    assert log.span("work").parent == log.span("deep").id


def test_a_loop_in_a_worker() -> None:
    """The tasks of an event loop that a worker runs hang on what the worker hangs on."""
    with recording() as log, ThreadPoolExecutor(1) as pool, span("test"):
        pool.submit(asyncio.run, work_later()).result()
    assert log.span("work").parent == log.span("test").id


def test_threads_stand_alone_unless_they_are_tied() -> None:
    """A thread may serve many: only `propagate` says that it belongs to a span."""
    with recording() as log:
        with span("starter"):
            alone = threading.Thread(target=work, args=("alone",))
            tied = threading.Thread(target=sc.propagate(work), kwargs={"name": "tied"})
        for thread in (alone, tied):
            thread.start()
            thread.join()
    assert log.span("alone").parent == 0
    assert log.span("tied").parent == log.span("starter").id


def test_propagate_changes_nothing_else() -> None:
    """Arguments, results, exceptions and the function's name come through; without a span it is the function."""
    assert sc.propagate(work) is work
    with recording(), span("open"):
        tied: Callable[..., Any] = sc.propagate(divmod)
        assert tied(7, 2) == (3, 1) and tied.__name__ == "divmod"
        with pytest.raises(ZeroDivisionError):
            tied(1, 0)


def test_submit_is_put_back() -> None:
    """Also where somebody else has replaced it meanwhile, whose replacement stays."""
    ours = ThreadPoolExecutor.submit
    tasks.release()
    original = ThreadPoolExecutor.submit
    assert ours is not original and original.__module__ == "concurrent.futures.thread"
    tasks.watch()
    tasks.watch()
    replaced: Any = ThreadPoolExecutor.submit

    def theirs(self: ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return replaced(self, fn, *args, **kwargs)

    setattr(ThreadPoolExecutor, "submit", theirs)  # noqa: B010
    try:
        tasks.release()
        assert ThreadPoolExecutor.submit is theirs
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(pow, 2, 3).result() == 8
    finally:
        setattr(ThreadPoolExecutor, "submit", original)  # noqa: B010
