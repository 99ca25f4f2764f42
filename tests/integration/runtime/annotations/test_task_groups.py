"""Task groups, of asyncio and anyio, run in the same order as without a profiler, whatever makes the loop's tasks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvloop

import stepscope as sc


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


@pytest.mark.parametrize("program", [of_anyio, of_asyncio])
@pytest.mark.parametrize("factory", [none, own, eager, own_eager])
@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_the_same_order(
    program: Callable[[list[str]], Any], factory: Callable[[Any], None], loop_factory: Any, output_dir: Path
) -> None:
    """With a profiler that is opened before the loop, or in it, or none."""
    if factory in (eager, own_eager):
        if sys.version_info < (3, 12):
            pytest.skip("eager tasks came with Python 3.12")
        if loop_factory is uvloop.new_event_loop and sys.version_info[:3] == (3, 13, 0):
            pytest.skip("uvloop's loop has no eager tasks in Python 3.13.0")

    def run(where: str) -> list[str]:
        order: list[str] = []

        async def main() -> None:
            factory(asyncio.get_running_loop())
            if where == "inside":
                async with sc.trace(output_dir=output_dir / where):
                    await program(order)
            else:
                await program(order)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            if where == "around":
                with sc.trace(output_dir=output_dir / where):
                    runner.run(main())
            else:
                runner.run(main())
        return order

    expected = run("nowhere")
    assert run("inside") == run("around") == expected and len(expected) >= 4
