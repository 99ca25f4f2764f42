"""Stacks of open spans: what is open at a moment, and that stacks of ended threads and tasks are used again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from stepscope.runtime import _core
from stepscope.runtime._core import span
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.options import Options
from stepscope.runtime.recording.recorder import current, recorder
from tests.support.native import require_compiler
from tests.support.recording import Row, recording, rows_of, run_program

PAGE = 4096
"""Bytes of one stack."""


def open_rows() -> list[Row]:
    """The spans that are open now."""
    return rows_of((current() or recorder(Options())).open_spans(), b"")


def stacks() -> int:
    """How many stacks the session's file holds."""
    return (recorder(Options()).directory / "stacks").stat().st_size // PAGE


def test_open_spans_of_a_thread() -> None:
    """Outermost first, flagged, with what they took so far and what of that was their own."""
    with recording() as log:
        with span("outer", category="c"):
            with span("finished"):
                pass
            with span("inner"):
                rows = open_rows()
            between = open_rows()
        assert open_rows() == []
    outer, inner = rows
    assert [(row.name, row.category, row.flags) for row in rows] == [
        ("outer", "c", Flag.OPEN), ("inner", "user_annotation", Flag.OPEN)
    ]  # fmt: skip
    assert (outer.parent, inner.parent) == (0, outer.id)
    assert (outer.id, outer.ts, inner.id) == (log.span("outer").id, log.span("outer").ts, log.span("inner").id)
    assert outer.end == inner.end
    assert outer.self_dur == outer.dur - inner.dur - log.span("finished").dur and inner.self_dur == inner.dur
    assert [row.name for row in between] == ["outer"]
    assert between[0].self_dur == between[0].dur - log.span("finished").dur - log.span("inner").dur


def test_open_spans_of_many_threads() -> None:
    """Each of 200 threads shows its own."""
    together = threading.Barrier(201)

    def work(number: int) -> None:
        with span(f"outer {number}"), span(f"inner {number}"):
            together.wait()
            together.wait()

    with recording():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(200)]
        for thread in threads:
            thread.start()
        together.wait()
        rows = open_rows()
        together.wait()
        for thread in threads:
            thread.join()
    assert open_rows() == []
    by_name = {row.name: row for row in rows}
    assert len(rows) == len(by_name) == 400
    assert all(by_name[f"inner {number}"].parent == by_name[f"outer {number}"].id for number in range(200))
    assert len({row.track for row in rows}) == 200


def test_spans_left_out_of_order_are_not_shown() -> None:
    """A span that has ended is not open, though its frame is still below another."""
    below, above = span("below"), span("above")
    with recording():
        below.__enter__()
        above.__enter__()
        below.__exit__()
        assert [row.name for row in open_rows()] == ["above"]
        above.__exit__()
    assert open_rows() == []


def one_after_another(number: int) -> None:
    """Threads of which each runs an event loop."""
    for _ in range(number):
        thread = threading.Thread(target=lambda: asyncio.run(task()))
        thread.start()
        thread.join()


def in_one_loop(number: int) -> None:
    """Tasks, ten of them at once."""

    async def main() -> None:
        for _ in range(number // 10):
            await asyncio.gather(*(task() for _ in range(10)))

    asyncio.run(main())


async def task() -> None:
    with span("in a task"):
        await asyncio.sleep(0)


@pytest.mark.parametrize("run", [one_after_another, in_one_loop])
def test_stacks_of_ended_threads_and_tasks_are_used_again(run: Callable[[int], None]) -> None:
    """Any number of them leaves nothing behind, also threads whose last spans were a task's."""
    with recording() as log:
        run(10)
        before = stacks()
        run(300)
    assert stacks() <= before + 64
    assert len(log.spans) == 310


def test_a_thread_that_ends_with_open_spans() -> None:
    """They are counted, are open no more, and may still be left by another thread."""
    abandoned = _core.counts()["spans_abandoned"]
    left_open = [span("first"), span("second")]
    with recording() as log:
        thread = threading.Thread(target=lambda: [one.__enter__() for one in left_open])
        thread.start()
        thread.join()
        while open_rows():  # join() returns before the thread has ended for the system
            pass
        other = threading.Thread(target=check_nesting)
        other.start()
        other.join()
        for one in left_open:
            one.__exit__()
    assert _core.counts()["spans_abandoned"] == abandoned + 2
    assert [(row.name, row.flags) for row in log.events(Kind.SPAN, "first", "second")] == [
        ("first", Flag.ASYNC), ("second", Flag.ASYNC)
    ]  # fmt: skip
    assert log.span("probe").parent == 0


def check_nesting() -> None:
    """A span on a stack that may have been another thread's."""
    with span("probe"):
        assert [row.name for row in open_rows()] == ["probe"]


def test_reading_while_native_threads_push_and_pop() -> None:
    """Frames that change while they are read are read again: no row is a mixture of two spans."""
    require_compiler()
    (outcome,) = run_program("""
        from tests.support.native import Native
        native = Native()
        rows = []
        for _ in range(50):  # a busy machine may not let this thread run before the others are done
            writers = threading.Thread(target=native.run, args=(2, 150_000))
            writers.start()
            while writers.is_alive():
                rows += recorder.open_spans().tolist()
                recorder.drain()
            if rows:
                break
        spans = [dict(zip(recorder.open_spans().dtype.names, row)) for row in rows]
        now = _core.now()
        wrong = [row for row in spans if row["id"] == 0 or not 0 < row["ts"] <= now or not row["track"]]
        names = {_core.text(row["name"]) for row in spans} | {_core.text(row["category"]) for row in spans}
        print_json([len(spans) > 0, len(wrong), sorted(names)])
    """)
    assert outcome == [True, 0, ["aten::add", "cpu_op"]]
