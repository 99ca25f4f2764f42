"""Tasks and threads that do everything to a span that Python lets them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import uvloop

import stepscope as sc
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, EventBatch, Kind
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.windows.router import RECORDER
from stepscope.runtime.windows.window import Window
from tests.stress.torture.fault import Fault, Outcome
from tests.support.nesting import CUT, chrome_problems, journal_problems, journal_spans
from tests.support.random_programs import Program, Runner, random_program


class Made(msgspec.Struct, frozen=True):
    """The number of events that a program has recorded."""

    spans: int
    """Spans whose exit had returned."""
    others: int | None = None
    """Instants, and times that tasks waited for inside of spans; unknown of random programs."""


def _recorded(directory: Path, body: Callable[[], Made], *, name: str) -> Outcome:
    """Records what `body` does and counts its spans of this name."""
    chrome = directory / "trace.json"
    profiler = sc.trace(output_dir=directory, exporters=[sc.ChromeTraceExporter(chrome)])
    with profiler:
        made = body()
        closing = time.perf_counter_ns()
    shutdown = time.perf_counter_ns() - closing
    profiler.raise_errors()
    spans: Block = journal_spans(directory / "journal")
    of_body = spans[spans["name"] == strings.intern(name)]
    others, dropped = _accounts(directory / "journal")
    if made.others is not None:
        # Accounts are of events of any kind; what is missing of the others is none of the spans. One is the first step's mark.
        dropped -= made.others + 1 - others
    twice = len(of_body) - len(np.unique(of_body["id"]))
    problems = [*journal_problems(spans), *chrome_problems(chrome)]
    if twice:
        problems.append(f"{twice} spans were written twice")
    return Outcome(
        produced=made.spans,
        exported=len(of_body),
        dropped=dropped,
        shutdown_ns=shutdown,
        problems=tuple(problems[:4]),
    )


def _accounts(journal: Path) -> tuple[int, int]:
    """Marks, instants and waits in the journal, and events of any kind that it says are missing.

    Neither other spans count nor waits that are cut: an earlier random program has left some that are still open.
    """
    others = dropped = 0
    with JournalReader(journal) as reader:
        for item in reader:
            if isinstance(item, EventBatch) and item.source == RECORDER:
                kind = item.events["kind"]
                waits = (item.events["name"] == strings.intern("suspended")) & (item.events["flags"] & CUT == 0)
                others += int((waits | np.isin(kind, [int(Kind.STEP), int(Kind.INSTANT)])).sum())
            elif isinstance(item, Window):
                dropped += item.ledger.dropped() + sum(item.ledger.outputs["journal"].dropped.values())
    return others, dropped


def random_tasks(directory: Path, seed: int) -> Outcome:
    """A random program, on asyncio's loop and on uvloop's by turns."""
    random = Random(seed)
    program: list[Program] = [("spawn", random_program(random, 4)) for _ in range(6)]
    program += random_program(random, 4)

    def body() -> Made:
        runner = Runner()
        runner.run(program, uvloop.new_event_loop if seed % 2 else asyncio.SelectorEventLoop)
        return Made(len(runner.ended))

    return _recorded(directory, body, name="s")


def many_tasks(directory: Path, seed: int) -> Outcome:
    """A server: requests come and go, each a task with spans that it holds while it waits, some are cancelled."""
    random = Random(seed)
    ended = waits = 0

    async def wait() -> None:
        nonlocal waits
        try:
            await asyncio.sleep(0)
        finally:
            waits += 1

    async def request() -> None:
        nonlocal ended
        try:
            with sc.span("request"):
                for _ in range(random.randint(0, 3)):
                    await wait()
        finally:
            ended += 1

    async def serve() -> None:
        for _ in range(100):
            tasks = [asyncio.create_task(request()) for _ in range(100)]
            await asyncio.sleep(0)
            for task in random.sample(tasks, 10):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def body() -> Made:
        asyncio.run(serve())
        return Made(ended, waits)

    return _recorded(directory, body, name="request")


def _in_threads(work: Callable[[], None], threads: int, at_once: int) -> None:
    for start in range(0, threads, at_once):
        group = [threading.Thread(target=work) for _ in range(min(at_once, threads - start))]
        for thread in group:
            thread.start()
        for thread in group:
            thread.join()


def many_threads(directory: Path, seed: int) -> Outcome:
    """64 threads that record at once."""
    each = 1000

    def work() -> None:
        for _ in range(each):
            with sc.span("work"):
                sc.instant("mark")

    def body() -> Made:
        _in_threads(work, 64, 64)
        return Made(64 * each, 64 * each)

    return _recorded(directory, body, name="work")


def thread_storm(directory: Path, seed: int) -> Outcome:
    """Thousands of threads, each of which records one span and dies."""

    def work() -> None:
        with sc.span("short"):
            pass

    def body() -> Made:
        _in_threads(work, 5000, 100)
        return Made(5000, 0)

    return _recorded(directory, body, name="short")


FAULTS: tuple[Fault, ...] = (
    Fault(
        family="tasks", name="random tasks, threads and generators", trial=random_tasks, trials=200, short=10, least=50
    ),
    Fault(family="tasks", name="10,000 tasks that come, go and are cancelled", trial=many_tasks, trials=4),
    Fault(family="tasks", name="64 threads at once", trial=many_threads, trials=4),
    Fault(family="tasks", name="5,000 threads of one span each", trial=thread_storm, trials=3),
)
