"""The cost of watching a task: its steps, with and without an open span, and its creation."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks.cases.tools.session import session, signals
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

SLICES = 8
"""Turns of watched and unwatched tasks by which a round measures both; the fastest of each count."""

Work = Callable[[int], Coroutine[Any, Any, None]]


async def _steps(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def _tasks(n: int) -> None:
    async def nothing() -> None: ...

    for _ in range(n):
        await asyncio.create_task(nothing())


def _took(work: Work, n: int, around: Callable[[], AbstractContextManager[Any]], watched: bool) -> float:
    """Nanoseconds per turn, in a task of a loop whose tasks are watched or not."""
    from stepscope.runtime.annotations import tasks

    tasks.watch() if watched else tasks.release()

    async def timed() -> float:
        with around():
            start = time.perf_counter_ns()
            await work(n)
            return (time.perf_counter_ns() - start) / n

    async def main() -> float:
        return await asyncio.create_task(timed())

    return asyncio.run(main())


def _beyond_plain(work: Work, *, span: bool = False, recorded: bool = False) -> Probe:
    """The time that watching adds to each turn.

    Args:
        work: of a task.
        span: whether the task holds a span.
        recorded: whether each task is recorded, by the signal `tasks`.
    """

    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        import stepscope

        def opened() -> AbstractContextManager[Any]:
            return stepscope.span("held")

        with signals("tasks" if recorded else "none"), session() as profiler:
            n = max(scale.calls // (4 * SLICES), 1)

            def once() -> Sample:
                plain: list[float] = []
                watched: list[float] = []
                for _ in range(SLICES):
                    profiler.flush()
                    plain.append(_took(work, n, contextlib.nullcontext, False))
                    watched.append(_took(work, n, opened if span else contextlib.nullcontext, True))
                return Sample(min(watched) - min(plain), min(plain))

            yield once

    return probe


ROWS = (
    Row(
        key="task.step",
        what="a step of an asyncio task without an open span, while recording",
        unit="ns",
        budget=50,
        contenders=(Contender(Tool.STEPSCOPE, "asyncio.sleep(0)", _beyond_plain(_steps)),),
    ),
    Row(
        key="task.suspended",
        what="a step of an asyncio task that holds a span: `suspended` is recorded",
        unit="ns",
        budget=250,
        contenders=(Contender(Tool.STEPSCOPE, "asyncio.sleep(0)", _beyond_plain(_steps, span=True)),),
    ),
    Row(
        key="task.recorded",
        what="a step of an asyncio task while each task is recorded (the signal `tasks`)",
        unit="ns",
        contenders=(Contender(Tool.STEPSCOPE, "asyncio.sleep(0)", _beyond_plain(_steps, recorded=True)),),
    ),
    Row(
        key="task.made",
        what="an asyncio task that is made and awaited, while recording",
        unit="ns",
        contenders=(Contender(Tool.STEPSCOPE, "asyncio.create_task", _beyond_plain(_tasks)),),
    ),
)
