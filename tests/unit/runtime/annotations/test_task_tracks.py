"""Rows of tasks: used again when a task has ended, never shared by two that live."""

from __future__ import annotations

import asyncio
import contextvars

from stepscope.runtime._core import span
from stepscope.runtime.annotations import tasks
from stepscope.runtime.events import tracks
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.events.tracks import TrackKind
from tests.support.nesting import overlaps
from tests.support.recording import Log, check_self_times, recording, run_program


def check_rows(log: Log) -> None:
    """Spans nest on every track."""
    rows: dict[int, list[tuple[int, int]]] = {}
    for row in log.of(Kind.SPAN):
        if not row.flags & Flag.ASYNC:
            rows.setdefault(row.track, []).append((row.ts, row.end))
    assert [wrong for spans in rows.values() for wrong in overlaps(spans)] == []


async def work() -> None:
    """A span that is suspended once."""
    with span("work"):
        await asyncio.sleep(0)


def test_a_server_with_many_tasks_has_few_rows() -> None:
    """As many as tasks lived at a time; tasks that asyncio named share the name of their function."""

    async def main() -> None:
        tasks.watch()
        for _ in range(200):
            await asyncio.gather(*(work() for _ in range(10)))

    with recording() as log:
        asyncio.run(main())
    used = {row.track for row in log.events(Kind.SPAN, "work")}
    assert len(log.events(Kind.SPAN, "work")) == 2000 and len(used) == 10
    found = [track for track in map(tracks.get, used) if track is not None]
    assert {(track.kind, track.name) for track in found} == {(TrackKind.TASK, "work")}
    assert len({track.tid for track in found}) == 10
    check_rows(log)


def test_tasks_that_do_not_share_rows() -> None:
    """Those of other names, as a row has one; and those that live at a time, also in one context that all of them share."""

    async def main() -> None:
        tasks.watch()
        for name in ("a", "b", "a"):
            await asyncio.create_task(work(), name=name)
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.create_task(work(), context=context, name="c") for _ in range(5)))

    with recording() as log:
        asyncio.run(main())
    found = log.events(Kind.SPAN, "work")
    rows = [track for row in found if (track := tracks.get(row.track)) is not None]
    assert [track.name for track in rows] == ["a", "b", "a", *"ccccc"] and len({row.track for row in found[3:]}) == 5
    assert not any(row.flags or row.parent for row in found)
    check_rows(log)
    check_self_times(log.of(Kind.SPAN))


def test_a_task_does_not_follow_its_parent_on_one_row() -> None:
    """A child that records when its parent has ended: a parent on the same row would seem to enclose it."""

    async def maker(children: list[asyncio.Task[None]]) -> None:
        with span("maker"):
            children.append(asyncio.create_task(later(), name="same"))

    async def later() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await work()

    async def main() -> None:
        tasks.watch()
        children: list[asyncio.Task[None]] = []
        await asyncio.create_task(maker(children), name="same")
        await children[0]

    with recording() as log:
        asyncio.run(main())
    assert log.span("work").parent == log.span("maker").id
    assert log.span("work").track != log.span("maker").track


def test_tasks_with_a_name_each_run_out_of_rows_slowly() -> None:
    """After some thousand names, further tasks are on rows named `task`, and no further name is stored."""
    (outcome,) = run_program("""
        import asyncio
        from stepscope.runtime.annotations import tasks
        from stepscope.runtime.events import tracks
        async def work():
            with span("work"):
                await asyncio.sleep(0)
        async def main():
            tasks.watch()
            for number in range(16_500):
                await asyncio.create_task(work(), name=f"request {number}")
                if number % 1000 == 0:
                    log.drain()
        asyncio.run(main())
        log.drain()
        found = [track for track in tracks.since(1) if track.kind == tracks.TrackKind.TASK]
        print_json([len(found), found[-1].name, len(log.events(Kind.SPAN, "work")), _core.strings_count() < 18_000])
    """)
    assert outcome == [(1 << 14) + 1, "task", 16_500, True]


def test_tasks_when_the_table_of_rows_is_full() -> None:
    """They share the last row, and go on; each that is released is released once, so that looking for a row ends."""
    (outcome,) = run_program("""
        import asyncio
        from stepscope.runtime.annotations import tasks
        names = {_core.intern(f"n{number}"): number for number in range(3000)}
        async def hold(gate, ready):
            with span("held"):
                ready.append(1)
                await gate.wait()
        async def together(numbers):
            gate, ready = asyncio.Event(), []
            made = [asyncio.create_task(hold(gate, ready), name=f"n{number}") for number in numbers]
            while len(ready) < len(made):
                await asyncio.sleep(0)
            gate.set()
            await asyncio.gather(*made)
        async def main():
            tasks.watch()
            with span("main"):
                number = 0
                while _core.track(4, 1, number, "filler", 0) < _core.MAX_TRACKS - 1:
                    number += 1
                await together(range(10, 14))
                # Of other names, whose rows are looked for where those of the first are: tracks have 1024 lists.
                for number in range(10, 14):
                    other = names.get(_core.intern(f"n{number}") + 1024)
                    await together([other] * 2)
        asyncio.run(main())
        log.drain()
        print_json(len(log.events(Kind.SPAN, "held")))
    """)
    assert outcome == 4 + 8
