"""Spans open across `yield` and `await` that end in another context, task or thread, or never: where tracers that keep
the current span in a context variable raise, or go on under a span that is over."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from stepscope.runtime._core import span
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.journal.reader import JournalReader
from tests.integration.runtime.lifecycle.test_exit import run
from tests.support.killed_programs import open_names
from tests.support.nesting import journal_problems, journal_spans
from tests.support.recording import Log, recording
from tests.unit.runtime.annotations.test_task_tracks import check_rows
from tests.unit.runtime.core.test_stack import open_rows


async def stream(items: int = 3) -> AsyncGenerator[int]:
    """Holds a span for as long as it is iterated."""
    with span("stream"):
        for item in range(items):
            with span("item"):
                await asyncio.sleep(0)
            yield item


def plain_stream() -> Generator[int]:
    """The same, without a loop."""
    with span("stream"):
        yield 1
        yield 2


async def first_of(items: AsyncGenerator[int]) -> int:
    """Takes one item."""
    return await items.__anext__()


async def close(items: AsyncGenerator[int]) -> None:
    """Closes it."""
    await items.aclose()


def check_nothing_is_left(log: Log) -> None:
    """Fails if a span is still open, or another was drawn into it."""
    assert open_rows() == []
    assert log.span("stream").dur >= 0
    check_rows(log)


async def run_after(log: Log) -> None:
    """A span afterwards hangs on nothing that is over."""
    with span("after"):
        await asyncio.sleep(0)
    log.drain()
    assert log.span("after").parent == 0 and log.span("after").flags == Flag(0)


async def test_closed_in_another_task_while_the_first_goes_on() -> None:
    """The task that holds it is suspended in a span of its own meanwhile."""
    items = stream()
    gate = asyncio.Event()

    async def consumer() -> None:
        with span("consumer"):
            await first_of(items)
            with span("body"):
                await gate.wait()
            with span("rest"):
                await asyncio.sleep(0)

    with recording() as log:
        task = asyncio.create_task(consumer())
        for _ in range(4):
            await asyncio.sleep(0)
        await asyncio.create_task(close(items))
        gate.set()
        await task
        await run_after(log)
    assert log.span("stream").flags & Flag.ASYNC
    assert log.span("rest").parent == log.span("consumer").id
    check_nothing_is_left(log)


def test_finalised_when_the_loop_ends() -> None:
    """By `shutdown_asyncgens`, when its task is long gone: of two spans that do not nest, the first that ends is apart."""
    generators: list[AsyncGenerator[int]] = []

    async def main() -> None:
        generators.append(stream())
        with span("main"):
            await first_of(generators[0])

    with recording() as log:
        asyncio.run(main())
    generators.clear()
    assert log.span("main").flags == Flag.ASYNC
    check_nothing_is_left(log)


@pytest.mark.parametrize("how", ["thread", "collected"])
async def test_a_plain_generator_that_ends_elsewhere(how: str) -> None:
    """In another thread, or collected in the middle of another task."""
    items = plain_stream()

    async def begin() -> None:
        next(items)

    with recording() as log:
        await asyncio.create_task(begin())
        if how == "thread":
            thread = threading.Thread(target=items.close)
            thread.start()
            thread.join()
        else:
            del items
            gc.collect()
        await run_after(log)
    check_nothing_is_left(log)


async def test_iterated_by_turns_in_two_tasks() -> None:
    """Each turn in another task than the last: nothing raises, and spans of each task nest."""
    items = stream(6)

    async def turn() -> None:
        with span("turn"):
            await first_of(items)

    with recording() as log:
        for _ in range(6):
            await asyncio.create_task(turn())
        await items.aclose()
        await run_after(log)
    turns = log.events(Kind.SPAN, "turn")
    assert [row.flags for row in turns] == [Flag.ASYNC, *[Flag(0)] * 5]  # the generator's span outlives the first
    check_nothing_is_left(log)


def test_generators_that_are_open_when_the_interpreter_ends(tmp_path: Path) -> None:
    """The program ends as it would have; spans that a thread has open are written so, those of an ended task are counted."""
    run(
        """
import asyncio, stepscope as sc
def numbers():
    with sc.span("plain"):
        yield 1
async def letters():
    with sc.span("async"):
        yield "a"
async def main():
    global generator
    generator = letters()
    await generator.__anext__()
    loop = asyncio.get_running_loop()
    loop.shutdown_asyncgens = lambda: asyncio.sleep(0)
profiler = sc.trace(output_dir="run")
profiler.start()
items = numbers()
next(items)
asyncio.run(main())
import gc; gc.collect()
assert profiler.statistics().recorder.cut["spans_abandoned"] == 1
""",
        tmp_path,
    )
    with JournalReader(tmp_path / "run" / "journal") as reader:
        list(reader)
        assert not reader.damage and reader.end is not None
    assert "plain" in open_names(tmp_path / "run" / "journal")
    assert journal_problems(journal_spans(tmp_path / "run" / "journal")) == []
