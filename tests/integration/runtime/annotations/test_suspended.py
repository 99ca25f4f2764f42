"""Suspended time: what a task does not run is a span of its own, and nobody's self time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stepscope.runtime._core import instant, span
from stepscope.runtime.annotations import asyncio_tasks
from stepscope.runtime.events.record import Flag, Kind
from tests.support.recording import Log, Row, check_self_times, recording
from tests.unit.runtime.core.test_stack import open_rows


def suspensions(log: Log, of: Row) -> list[Row]:
    """The suspended times right below a span."""
    return [row for row in log.events(Kind.SPAN, "suspended") if row.parent == of.id]


async def test_each_suspension_is_a_span() -> None:
    """It lies in the innermost open span, on the task's track, and the self times around it are what ran."""

    async def work() -> None:
        with span("outer"):
            await asyncio.sleep(0)
            with span("inner"):
                await asyncio.sleep(0)
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)

    with recording() as log:
        await asyncio.create_task(work())
    outer, inner = log.span("outer"), log.span("inner")
    assert [len(suspensions(log, row)) for row in (outer, inner)] == [2, 2]
    found = log.events(Kind.SPAN, "suspended")
    assert {(row.track, row.category, row.flags) for row in found} == {(outer.track, "task", Flag(0))}
    check_self_times(log.of(Kind.SPAN))


async def test_tasks_without_open_spans_record_nothing() -> None:
    """Nor do those that finish within a step."""

    async def quiet() -> None:
        await asyncio.sleep(0)
        instant("mark")
        await asyncio.sleep(0)
        with span("whole"):
            pass
        await asyncio.sleep(0)

    with recording() as log:
        await asyncio.create_task(quiet())
    assert log.events(Kind.SPAN, "suspended") == []


def test_tasks_made_before_the_profiler_started() -> None:
    """They are not watched: the time in which they are suspended counts as their own. They count as unwatched, except for the one that
    starts the profiler."""

    async def work(gate: asyncio.Event) -> None:
        await gate.wait()
        with span("work"):
            await asyncio.sleep(0)

    async def main() -> Log:
        gate = asyncio.Event()
        old = [asyncio.create_task(work(gate)) for _ in range(3)]
        await asyncio.sleep(0)
        before = asyncio_tasks.unwatched.get("_asyncio.Task", 0)
        with recording() as log, span("main"):
            gate.set()
            await asyncio.gather(*old)
        assert asyncio_tasks.unwatched["_asyncio.Task"] - before == 3
        return log

    log = asyncio.run(main())
    assert log.events(Kind.SPAN, "suspended") == []
    assert all(row.self_dur == row.dur for row in log.events(Kind.SPAN, "work"))


def run_for_ever(main: Coroutine[Any, Any, None]) -> None:
    """As services do that make their tasks in callbacks."""
    loop = asyncio.SelectorEventLoop()

    def begin() -> None:
        loop.create_task(main).add_done_callback(lambda _: loop.stop())

    loop.call_soon(begin)
    loop.run_forever()
    loop.close()


@pytest.mark.parametrize("run", [asyncio.run, run_for_ever])
def test_a_loop_that_begins_after_the_profiler(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """All of its tasks are watched, the first one included."""

    async def main() -> None:
        with span("main"):
            await asyncio.sleep(0)

    with recording() as log:
        run(main())
    assert len(suspensions(log, log.span("main"))) == 1
    check_self_times(log.of(Kind.SPAN))


async def test_cancelled_while_suspended() -> None:
    """The suspension ends where the exception is thrown in; the span says that it was left by one."""
    with recording() as log:

        async def work() -> None:
            with span("work"):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        assert [row.name for row in open_rows()] == ["work", "suspended"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    work_row = log.span("work")
    (wait,) = suspensions(log, work_row)
    assert work_row.flags == Flag.ERROR and wait.flags == Flag(0) and wait.end <= work_row.end
    check_self_times(log.of(Kind.SPAN))


async def test_recording_that_changes_while_suspended() -> None:
    """A suspension that was begun is ended; one whose begin was not recorded is left out."""
    go_on = asyncio.Event()

    async def work() -> None:
        with span("work"):
            await go_on.wait()
            log.record(True)
            await asyncio.sleep(0)
            log.record(False)
            await asyncio.sleep(0)
            log.record(True)

    with recording() as log:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        log.record(False)
        go_on.set()
        await task
    assert len(suspensions(log, log.span("work"))) == 2
    check_self_times(log.of(Kind.SPAN))
    assert open_rows() == []
