"""A span inside an asyncio task and one without a task: the ratio of their costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from benchmarks.cases.tools import loops
from benchmarks.cases.tools.session import Accounts, session
from benchmarks.cases.tools.timing import Loop, empty, took
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

SLICES = 8
"""Turns with a task and without by which a round measures both; the fastest of each count."""
BUDGET = 1.5


def _outside(span: Any, n: int) -> tuple[float, float]:
    """Nanoseconds per span, and per turn of the loop around it."""
    return took(loops.spans(span), n), took(empty, n)


def _inside(span: Any, tasks: int, turn: int, n: int) -> tuple[float, float]:
    """The same in tasks that are watched, of which each records `turn` spans and lets the next one go on.

    The time to wait and to go on is left out, and so is the first turn of each, in which it gets its track; what the
    first span of any other turn takes more is not.
    """
    turns = max(n // (tasks * turn), 4)

    async def task(work: Loop) -> int:
        work(turn)
        await asyncio.sleep(0)
        spent = 0
        for _ in range(turns):
            start = time.perf_counter_ns()
            work(turn)
            spent += time.perf_counter_ns() - start
            await asyncio.sleep(0)
        return spent

    async def main() -> tuple[float, float]:
        from stepscope.runtime.annotations import tasks as watching

        watching.watch()
        per_span: list[float] = []
        for work in (loops.spans(span), empty):
            spent = await asyncio.gather(*(asyncio.create_task(task(work)) for _ in range(tasks)))
            per_span.append(sum(spent) / (tasks * turns * turn))
        return per_span[0], per_span[1]

    return asyncio.run(main())


def _least(turns: list[tuple[float, float]]) -> float:
    """The time of a span beyond the loop, by the fastest turn of each."""
    return min(spans for spans, _ in turns) - min(loop for _, loop in turns)


def _ratio(tasks: int, turn: int) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        import stepscope

        with session() as profiler:
            n = max(scale.calls // SLICES, 1)

            def once() -> Sample:
                outside: list[tuple[float, float]] = []
                inside: list[tuple[float, float]] = []
                accounts = Accounts(profiler)
                for _ in range(SLICES):
                    profiler.flush()
                    outside.append(_outside(stepscope.span, n))
                    inside.append(_inside(stepscope.span, tasks, turn, n))
                without, within = _least(outside), _least(inside)
                facts = {"outside, ns": without, "inside, ns": within, **accounts.facts()}
                return Sample(within / without, facts=facts)

            yield once

    return probe


def _row(key: str, what: str, tasks: int, turn: int, budget: float | None = BUDGET) -> Row:
    contender = Contender(Tool.STEPSCOPE, "inside / outside", _ratio(tasks, turn))
    return Row(key=f"span.{key}", what=what, unit="x", budget=budget, contenders=(contender,))


ROWS = (
    _row("in_task", "a span in a watched task, as a multiple of one outside", 1, 1000),
    _row("in_tasks", "the same in 100 tasks that take turns after ten spans each", 100, 10),
    # Hardly a span any more, but the look at whose turn it is.
    _row("in_turns", "the same in 100 tasks that take turns after every span", 100, 1),
)
