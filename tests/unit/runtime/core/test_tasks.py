"""Tasks: each has a stack and a track of its own, and its spans hang on the span in which it was made. Contexts (contextvars) that
are run by hand or move to another thread: whose stack their spans go to."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from stepscope.runtime import _core
from stepscope.runtime._core import counter, flow, instant, span
from stepscope.runtime.events import tracks
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.events.tracks import Track, TrackKind
from tests.support.recording import Row, check_self_times, recording


def track_of(row: Row) -> Track:
    """Where an event is drawn."""
    track = tracks.get(row.track)
    assert track is not None
    return track


async def pause(turns: int = 1) -> None:
    """Lets other tasks run."""
    for _ in range(turns):
        await asyncio.sleep(0)


@pytest.mark.checklist("F18")
async def test_interleaved_tasks_do_not_mix() -> None:
    """Fifty tasks that give way inside their spans: self times and parents are exact in each."""

    async def work(number: int) -> None:
        with span(f"outer {number}"):
            await pause(number % 3)
            with span(f"inner {number}"):
                await pause(2)
            instant(f"instant {number}")
            await pause()

    with recording() as log:
        await asyncio.gather(*(asyncio.create_task(work(number), name=f"worker {number}") for number in range(50)))
    assert not any(row.flags for row in log.spans)
    check_self_times(log.of(Kind.SPAN))
    for number in range(50):
        outer, inner = log.span(f"outer {number}"), log.span(f"inner {number}")
        (mark,) = log.events(Kind.INSTANT, f"instant {number}")
        assert inner.parent == outer.id == mark.parent
        assert outer.track == inner.track == mark.track
        track = track_of(outer)
        assert (track.kind, track.name) == (TrackKind.TASK, f"worker {number}")
        thread = tracks.get(track.parent)
        assert thread is not None and thread.kind is TrackKind.THREAD and thread.pid == track.pid
    assert len({row.track for row in log.spans}) == 50


async def test_every_kind_of_event_lies_on_the_track_of_its_task() -> None:
    """Instants, counters, flows and step marks as well."""
    steps = _core.StepCounter()
    steps.next_change, steps.live = 1 << 60, True

    async def child() -> None:
        with span("span"):
            instant("instant")
            counter("counter", 1)
            flow("flow", 1, "start")
            steps.step()

    with recording() as log:
        await asyncio.create_task(child())
    assert len(log.rows) == 5 and len({row.track for row in log.rows}) == 1
    assert {row.parent for row in log.rows if row.kind is not Kind.SPAN} == {log.span("span").id}


async def test_tasks_that_die_with_open_spans() -> None:
    """Their open spans are counted and gone; the loop's other tasks are not disturbed."""
    abandoned = _core.counts()["spans_abandoned"]

    async def careless() -> None:
        open_spans.append(span("careless"))
        open_spans[-1].__enter__()
        await asyncio.Event().wait()

    async def careful() -> None:
        with span("careful"):
            await pause(4)

    open_spans: list[span] = []
    with recording() as log:
        doomed = [asyncio.create_task(careless()) for _ in range(3)]
        steady = asyncio.create_task(careful())
        await pause(2)
        cancelled = [task.cancel() for task in doomed]
        await asyncio.gather(*doomed, return_exceptions=True)
        doomed.clear()
        assert all(cancelled)
        await steady
        await asyncio.create_task(careful())
    assert [(row.flags, row.parent) for row in log.events(Kind.SPAN, "careful")] == [(Flag(0), 0)] * 2
    open_spans.clear()
    assert _core.counts()["spans_abandoned"] >= abandoned + 3


async def test_a_name_that_cannot_be_had_is_counted() -> None:
    """A task whose name is no text gets no track; its spans go to the thread."""
    failed = _core.counts()["lookups_failed"]

    class Nameless(asyncio.Task[None]):
        def get_name(self) -> str:
            raise ValueError("no name")

    async def child() -> None:
        with span("nameless"):
            pass

    with recording() as log:
        await Nameless(child(), loop=asyncio.get_running_loop())
    assert track_of(log.span("nameless")).kind is TrackKind.THREAD
    assert _core.counts()["lookups_failed"] == failed + 1


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
