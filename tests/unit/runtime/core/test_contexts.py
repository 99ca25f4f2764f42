"""Contexts (contextvars) that are run by hand or move to another thread: whose stack their spans go to."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

from stepscope.runtime._core import span
from stepscope.runtime.events.record import Kind
from tests.support.recording import check_self_times, recording


async def test_contexts_run_by_hand_inside_a_task() -> None:
    """They belong to the task, an empty one as well: same stack, same track, exact self time."""

    async def work() -> None:
        with span("outer"):
            for _ in range(3):
                contextvars.copy_context().run(lambda: span("copied").__enter__().__exit__())
            context = contextvars.copy_context()
            context.run(lambda: context.copy().run(lambda: span("copied").__enter__().__exit__()))
            contextvars.Context().run(lambda: span("copied").__enter__().__exit__())

    with recording() as log:
        await asyncio.create_task(work())
    outer = log.span("outer")
    copied = log.events(Kind.SPAN, "copied")
    assert len(copied) == 5 and {(row.parent, row.track) for row in copied} == {(outer.id, outer.track)}
    check_self_times(log.of(Kind.SPAN))


def test_contexts_run_by_hand_in_a_thread() -> None:
    """Without a task they nest in what is open on the thread."""
    with recording() as log, span("outer"):
        for context in (contextvars.copy_context(), contextvars.Context()):
            context.run(lambda: span("inner").__enter__().__exit__())
    assert {row.parent for row in log.events(Kind.SPAN, "inner")} == {log.span("outer").id}
    check_self_times(log.of(Kind.SPAN))


def test_a_task_that_goes_on_in_another_thread() -> None:
    """Its stack goes with it."""
    with recording() as log:
        loop = asyncio.SelectorEventLoop()
        gate = asyncio.Event()

        async def work() -> None:
            with span("outer"):
                with span("before"):
                    await gate.wait()
                with span("after"):
                    await asyncio.sleep(0)

        async def finish() -> None:
            await task

        task = loop.create_task(work())
        loop.run_until_complete(asyncio.sleep(0))
        gate.set()
        thread = threading.Thread(target=lambda: loop.run_until_complete(finish()))
        thread.start()
        thread.join()
        loop.close()
    assert [row.name for row in log.spans] == ["before", "after", "outer"]
    assert not any(row.flags for row in log.spans) and len({row.track for row in log.spans}) == 1
    check_self_times(log.of(Kind.SPAN))


def test_a_context_that_runs_in_two_threads_by_turns() -> None:
    """Spans go to the stack of the thread in which the context runs at that moment."""
    context = contextvars.copy_context()

    def enter(name: str) -> Any:
        one = span(name)
        one.__enter__()
        return one

    def there(turn: int) -> None:
        context.run(enter, f"there {turn}").__exit__()

    with recording() as log:
        for turn in range(4):
            one = context.run(enter, f"here {turn}")
            thread = threading.Thread(target=there, args=(turn,))
            thread.start()
            thread.join()
            context.run(one.__exit__)
    mine = [row for row in log.spans if row.name.startswith("here")]
    others = [row for row in log.spans if row.name.startswith("there")]
    assert len({row.track for row in mine}) == 1 and len({row.track for row in others}) == 4
    assert not any(row.flags or row.parent for row in [*mine, *others])
