"""A program notices nothing of the tasks that are watched, and loops get back their own factory."""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import sys
import weakref
from collections.abc import Awaitable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from types import CoroutineType
from typing import Any

import pytest
import uvloop

import stepscope as sc
from stepscope.runtime import _core
from stepscope.runtime._core import span
from stepscope.runtime.annotations import tasks
from stepscope.runtime.events.record import Flag, Kind
from tests.support.recording import check_self_times, recording


@contextmanager
def watching() -> Generator[None]:
    """Watches tasks as an open profiler does."""
    tasks.watch()
    try:
        yield
    finally:
        tasks.release()


def watched(task: asyncio.Task[Any]) -> bool:
    """Whether its coroutine is a proxy."""
    coroutine: Any = task.get_coro()
    return type(coroutine) is _core.Coroutine


async def wait(value: int = 0) -> int:
    """A coroutine that is suspended once."""
    await asyncio.sleep(0)
    return value


async def test_a_task_looks_as_before() -> None:
    """Its coroutine, stack and description are those of the function."""
    with watching():
        task = asyncio.create_task(wait(3), name="named")
        coroutine: Any = task.get_coro()
        assert type(coroutine) is _core.Coroutine
        assert (
            inspect.iscoroutine(coroutine) and asyncio.iscoroutine(coroutine) and isinstance(coroutine, CoroutineType)
        )
        assert isinstance(coroutine, Coroutine) and isinstance(coroutine, Awaitable)
        assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
        assert "wait() running at" in repr(task) and "named" in repr(task)
        await asyncio.sleep(0)
        assert inspect.getcoroutinestate(coroutine) == inspect.CORO_SUSPENDED
        assert [frame.f_code.co_name for frame in task.get_stack()] == ["wait"]
        out = io.StringIO()
        task.print_stack(file=out)
        assert "await asyncio.sleep(0)" in out.getvalue()
        assert (coroutine.__name__, coroutine.__qualname__, coroutine.cr_code) == ("wait", "wait", wait.__code__)
        coroutine.__name__ = "other"
        assert coroutine.__name__ == "other"
        assert await task == 3
        wrong: Any = 3
        with pytest.raises(TypeError, match="a coroutine was expected"):
            asyncio.create_task(wrong)


async def test_equality_and_references() -> None:
    """The proxy equals what it stands for, and both go when the task goes."""
    inner = wait(1)
    proxy: Any = _core.Coroutine(inner)
    for same in (inner, _core.Coroutine(inner)):
        assert proxy == same and hash(proxy) == hash(same)
    assert proxy != "another"
    assert repr(proxy) == repr(inner) and _core.Coroutine(proxy) is proxy
    references = weakref.ref(inner), weakref.ref(proxy)
    task: Any = asyncio.get_running_loop().create_task(proxy)
    assert await task == 1
    del task, inner, proxy, same
    await asyncio.sleep(0)  # the step above got the task that it waited for
    gc.collect()
    assert [reference() for reference in references] == [None, None]


async def test_a_proxy_can_be_driven_by_hand() -> None:
    """Values, exceptions and misuse come through; spans go to a row of its own, not to who drives it."""

    async def echo() -> tuple[int, ...]:
        with span("echo"):
            return await Echo(), await Echo()

    class Echo:
        def __await__(self) -> Generator[str, int, int]:
            try:
                return (yield "more")
            except KeyError:
                return -1

    async def driver() -> None:
        with span("driver"):
            proxy = _core.Coroutine(echo())
            assert proxy.send(None) == "more"
            with span("between"):
                pass
            assert proxy.throw(KeyError()) == "more"
            with pytest.raises(StopIteration) as stop:
                proxy.send(5)
            assert stop.value.value == (-1, 5)
            with pytest.raises(RuntimeError, match="already awaited"):
                proxy.send(None)

    with recording() as log:
        await asyncio.create_task(driver())
    assert log.span("between").parent == log.span("driver").id == log.span("echo").parent
    assert log.span("echo").track != log.span("driver").track
    assert [row.flags for row in log.of(Kind.SPAN)] == [Flag(0)] * 5
    check_self_times(log.of(Kind.SPAN))
    with recording() as log:
        left = _core.Coroutine(echo())
        left.send(None)
        left.close()
        left.close()
        assert await _core.Coroutine(wait(2)) == 2
    assert log.span("echo").flags == Flag.ERROR


async def test_entering_a_coroutine_twice_is_refused() -> None:
    """And does not end it."""

    async def greedy() -> None:
        with span("greedy"):
            with pytest.raises(ValueError, match="already executing"):
                proxy.send(None)
            await asyncio.sleep(0)

    with recording() as log:
        proxy: Any = _core.Coroutine(greedy())
        await asyncio.get_running_loop().create_task(proxy)
    assert log.span("greedy").flags == Flag(0)
    check_self_times(log.of(Kind.SPAN))


def test_never_awaited_is_still_reported() -> None:
    """Python's warning about a forgotten coroutine names the coroutine."""
    with pytest.warns(RuntimeWarning, match="coroutine 'wait' was never awaited"):
        _core.Coroutine(wait())


async def test_another_librarys_create_task_stays_or_is_restored() -> None:
    """Before us: it is put back. After us: it stays, and ours under it watches nothing any more."""
    loop: Any = asyncio.get_running_loop()
    made: list[str] = []
    method = loop.create_task

    def theirs(coroutine: Any, **options: Any) -> Any:
        made.append("theirs")
        return method(coroutine, **options)

    loop.create_task = theirs
    with watching():
        assert loop.create_task is not theirs
        task = asyncio.create_task(wait(8), name="named")
        assert watched(task) and await task == 8 and task.get_name() == "named" and made == ["theirs"]
    assert loop.create_task is theirs
    del loop.create_task
    tasks.watch()
    ours = loop.create_task

    def later(coroutine: Any, **options: Any) -> Any:
        return ours(coroutine, **options)

    loop.create_task = later
    try:
        tasks.release()
        assert loop.create_task is later
        task = asyncio.create_task(wait(9))
        assert type(task.get_coro()) is CoroutineType and await task == 9
    finally:
        del loop.create_task


@pytest.mark.parametrize("kind", ["none", "own", "eager"])
def test_the_loop_returns_the_task_factory_of_the_program(kind: str) -> None:
    """Also while it is recorded: libraries look at it. It gets an object that can pass for the coroutine, which is watched."""
    if kind == "eager" and sys.version_info < (3, 12):
        pytest.skip("eager tasks came with Python 3.12")

    def own(loop: Any, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
        assert inspect.iscoroutine(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    factory: Any = {"none": None, "own": own, "eager": getattr(asyncio, "eager_task_factory", None)}[kind]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        with watching():
            assert loop.get_task_factory() is factory
            assert await asyncio.create_task(wait(3), context=copy_context()) == 3
            loop.set_task_factory(own)
            assert watched(asyncio.create_task(wait(4)))
        assert loop.get_task_factory() is own

    with asyncio.Runner(
        loop_factory=asyncio.SelectorEventLoop
    ) as runner:  # uvloop's has no eager tasks in Python 3.13.0
        runner.run(main())


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_a_loop_that_is_watched_ends_with_its_last_reference(loop_factory: Any) -> None:
    """The replacement of its method does not keep the loop alive."""
    loop = loop_factory()

    async def main() -> None:
        tasks.watch()
        await asyncio.create_task(wait())

    gc.disable()
    try:
        loop.run_until_complete(main())
        loop.close()
        reference = weakref.ref(loop)
        del loop
        assert reference() is None
    finally:
        gc.enable()
        tasks.release()


@pytest.mark.parametrize("loop_factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_a_profiler_watches_while_it_is_open(loop_factory: Any, output_dir: Path) -> None:
    """From `start()` on, until the last one is closed."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with sc.trace(output_dir=output_dir / "a"):
            async with sc.trace(output_dir=output_dir / "b"):
                assert watched(asyncio.create_task(wait()))
        assert "create_task" not in vars(loop)
        assert type(asyncio.create_task(wait()).get_coro()) is CoroutineType

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks() -> None:
    """Their first step runs within who makes them: on a row of their own, with that as the parent."""

    async def work(turns: int) -> None:
        with span(f"work {turns}"):
            for _ in range(turns):
                await asyncio.sleep(0)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
        with watching(), span("main"):
            first = asyncio.create_task(work(0))
            assert first.done()
            second = asyncio.create_task(work(2))
            with span("between"):
                pass
            await second

    with recording() as log:
        asyncio.run(main())
    of_main = log.span("main").id
    assert {log.span(name).parent for name in ("work 0", "work 2", "between")} == {of_main}
    assert len([row for row in log.events(Kind.SPAN, "suspended") if row.parent == log.span("work 2").id]) == 2
    assert not any(row.flags for row in log.of(Kind.SPAN))
    check_self_times(log.of(Kind.SPAN))
