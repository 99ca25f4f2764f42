"""Tasks as programs make them: of types of their own, and in groups, which run in the same order as without a profiler."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvloop

import stepscope as sc
from stepscope.runtime._core import span
from stepscope.runtime.events.record import Kind

PyTask: Any = getattr(asyncio.tasks, "_PyTask")  # noqa: B009 - asyncio's own, without its C half


class Foreign(asyncio.Future[Any]):
    """A task that shares nothing with asyncio's; its coroutine is in a list."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, loop: asyncio.AbstractEventLoop, **_: Any) -> None:
        super().__init__(loop=loop)
        self.hidden = [coroutine]
        asyncio.tasks._register_task(self)  # type: ignore[arg-type]  # pyright: ignore
        loop.call_soon(self.advance)

    def get_name(self) -> str:
        return "foreign"

    def set_name(self, name: object) -> None:
        """Loops of some versions of Python name what their factories make."""

    def get_coro(self) -> Any:
        return self.hidden[0]

    def advance(self, waited: object = None) -> None:
        """Runs a step of it."""
        loop: Any = self.get_loop()
        asyncio.tasks._enter_task(loop, self)  # type: ignore[arg-type]  # pyright: ignore
        try:
            waiting = self.hidden[0].send(None)
        except StopIteration as stop:
            self.set_result(stop.value)
        else:
            if waiting is None:
                loop.call_soon(self.advance)
            else:
                waiting._asyncio_future_blocking = False
                waiting.add_done_callback(self.advance)
        finally:
            asyncio.tasks._leave_task(loop, self)  # type: ignore[arg-type]  # pyright: ignore


class Bare(Foreign):
    """Says nothing about itself."""

    get_coro: Any = property()


async def work() -> None:
    """Is suspended three times within spans."""
    await asyncio.sleep(0)
    with span("outer"):
        await asyncio.sleep(0)
        with span("inner"):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", [PyTask, Foreign])
def test_a_factory_that_makes_them(kind: Any, output_dir: Path) -> None:
    """One that is there before the profiler starts gets coroutines that are watched, whatever it does with them."""
    memory = sc.exporters.MemoryExporter()

    async def main() -> None:
        def factory(loop: Any, coroutine: Any, **options: Any) -> Any:
            return kind(coroutine, loop=loop)

        asyncio.get_running_loop().set_task_factory(factory)
        async with sc.trace(output_dir=output_dir, exporters=[memory]) as profiler:
            await asyncio.create_task(work())
        assert not any(note.startswith("tasks not watched") for note in profiler.diagnostics())

    asyncio.run(main())
    assert memory.names(kind=Kind.SPAN).count("suspended") >= 3


@pytest.mark.parametrize("kind", [Foreign, Bare])
def test_tasks_that_cannot_be_watched(kind: Any, output_dir: Path) -> None:
    """Are named once in the report of the profiler that met them, made before it started or later, and in no other one's."""
    reports: list[str] = []

    async def main() -> None:
        async with sc.trace(output_dir=output_dir / "before") as first:
            pass
        loop = asyncio.get_running_loop()
        early = kind(work(), loop=loop)
        async with sc.trace(output_dir=output_dir / "a") as second:
            await asyncio.gather(early, kind(work(), loop=loop))
        async with sc.trace(output_dir=output_dir / "b") as third:
            pass
        reports.extend(str(profiler.report()) for profiler in (first, second, third))

    asyncio.run(main())
    text = f"tasks not watched: 2 of {kind.__module__}.{kind.__qualname__}"
    assert [report.count(text) for report in reports] == [0, 1, 0]


class Special(asyncio.Task[Any]):
    """A type of the program's own."""


def none(loop: Any) -> None:
    """asyncio's own tasks."""


def own(loop: Any) -> None:
    """A factory of the program."""

    def factory(loop: Any, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
        return Special(coroutine, loop=loop, **options)

    loop.set_task_factory(factory)


def eager(loop: Any) -> None:
    """Tasks begin at once."""
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - Python 3.12


def own_eager(loop: Any) -> None:
    """The same, of the program's own type."""
    loop.set_task_factory(getattr(asyncio, "create_eager_task_factory")(Special))  # noqa: B009


async def child(order: list[str]) -> None:
    """Is cancelled, or ends."""
    order.append("child begins")
    with anyio.CancelScope(), sc.span("child"):
        await anyio.sleep(0.001)
    order.append("child ends")


async def of_anyio(order: list[str]) -> None:
    """Two groups, one of which is cancelled."""
    async with anyio.create_task_group() as group:
        group.start_soon(child, order)
        order.append("started")
    order.append("group is done")
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 10)
        group.cancel_scope.cancel()
    order.append("cancelled group is done")


async def of_asyncio(order: list[str]) -> None:
    """Two groups, one of which fails."""
    async with asyncio.TaskGroup() as group:
        group.create_task(child(order))
        order.append("started")
    order.append("group is done")

    async def fail() -> None:
        raise ValueError

    try:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(10))
            group.create_task(fail())
            await asyncio.sleep(10)
    except* ValueError:
        order.append("failed group is done")


@pytest.mark.parametrize("factory", [none, own, eager, own_eager])
@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_task_groups_run_in_the_same_order(factory: Callable[[Any], None], loop_factory: Any, output_dir: Path) -> None:
    """Those of asyncio and anyio, with a profiler that is opened before the loop, or in it, or none."""
    if factory in (eager, own_eager):
        if sys.version_info < (3, 12):
            pytest.skip("eager tasks came with Python 3.12")
        if loop_factory is uvloop.new_event_loop and sys.version_info[:3] == (3, 13, 0):
            pytest.skip("uvloop's loop has no eager tasks in Python 3.13.0")

    def run(where: str) -> list[str]:
        order: list[str] = []

        async def main() -> None:
            factory(asyncio.get_running_loop())
            inside: Any = sc.trace(output_dir=output_dir / where) if where == "inside" else contextlib.nullcontext()
            async with inside:
                await of_anyio(order)
                await of_asyncio(order)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            around: Any = sc.trace(output_dir=output_dir / where) if where == "around" else contextlib.nullcontext()
            with around:
                runner.run(main())
        return order

    expected = run("nowhere")
    assert run("inside") == run("around") == expected and len(expected) >= 8
