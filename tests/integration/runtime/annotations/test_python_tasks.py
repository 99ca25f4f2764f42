"""Tasks of types of the program: given watched coroutines where a loop makes them, named in the report if not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

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


def run(main: Coroutine[Any, Any, Any], loop_factory: Any) -> None:
    """Runs it on a loop of its own."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main)


@pytest.mark.parametrize("kind", [PyTask, Foreign])
def test_a_factory_that_makes_them(kind: Any, output_dir: Path) -> None:
    """One that is there before the profiler starts is given coroutines that are watched, whatever it makes of them."""
    memory = sc.exporters.MemoryExporter()

    async def main() -> None:
        def factory(loop: Any, coroutine: Any, **options: Any) -> Any:
            return kind(coroutine, loop=loop)

        asyncio.get_running_loop().set_task_factory(factory)
        async with sc.trace(output_dir=output_dir, exporters=[memory]) as profiler:
            await asyncio.create_task(work())
        assert not any(note.startswith("tasks not watched") for note in profiler.diagnostics())

    run(main(), None)
    assert memory.names(kind=Kind.SPAN).count("suspended") >= 3


@pytest.mark.parametrize("kind", [Foreign, Bare])
def test_tasks_that_cannot_be_watched(kind: Any, output_dir: Path) -> None:
    """Are named once in the report of the profiler that met them, and in no other one's; they run as before."""
    reports: list[str] = []

    async def main() -> None:
        async with sc.trace(output_dir=output_dir / "before") as first:
            pass
        loop = asyncio.get_running_loop()
        async with sc.trace(output_dir=output_dir / "a") as second:
            await asyncio.gather(*[kind(work(), loop=loop) for _ in range(2)])
        async with sc.trace(output_dir=output_dir / "b") as third:
            pass
        reports.extend(str(profiler.report()) for profiler in (first, second, third))

    run(main(), None)
    said = f"tasks not watched: 2 of {kind.__module__}.{kind.__qualname__}"
    assert [report.count(said) for report in reports] == [0, 1, 0]


def test_a_task_that_is_there_when_a_profiler_starts(output_dir: Path) -> None:
    """Starting never fails for what a task of the program lacks."""

    async def main() -> None:
        task = Bare(work(), loop=asyncio.get_running_loop())
        async with sc.trace(output_dir=output_dir) as profiler:
            await task
        assert any("Bare" in note for note in profiler.diagnostics())

    run(main(), None)
