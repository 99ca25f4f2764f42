"""The worker of a backend: order, one thread, what ends with it, and a system that has no thread or loop for it."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import anyio
import pytest

from stepscope.runtime.sources.backend_worker import BackendWorker
from stepscope.runtime.threads.native_threads import Thread
from tests.support.basics import poll

SET: ContextVar[str] = ContextVar("set", default="")


async def nothing() -> None:
    """As a backend that has nothing to close."""


def worker(failures: list[BaseException] | None = None) -> BackendWorker:
    """A worker whose calls see a context variable."""
    return BackendWorker("mine", lambda: SET.set("yes"), (failures if failures is not None else []).append)


async def test_calls_come_in_order_on_one_thread() -> None:
    """Coroutines run on the same, and so does the last call; all see the context, and then the thread ends."""
    mine, seen = worker(), list[tuple[object, str, str]]()

    def note(what: object) -> None:
        seen.append((what, threading.current_thread().name, SET.get()))

    async def work() -> None:
        note("work")

    async def close() -> None:
        note("close")

    for number in range(3):
        assert mine.call(lambda number=number: note(number))  # type: ignore[misc]
    mine.spawn(work)
    await poll(lambda: len(seen) == 4)
    with anyio.fail_after(30):
        await mine.close(close)
    assert not mine.call(lambda: note("too late"))
    assert seen == [(what, "stepscope mine", "yes") for what in (0, 1, 2, "work", "close")]
    assert (mine.waiting, SET.get()) == (0, "")
    mine.join(30)
    assert not any(thread.name == "stepscope mine" for thread in threading.enumerate())


async def test_tasks_that_run_after_closing_are_cancelled() -> None:
    mine, ended = worker(), list[type[BaseException]]()
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        except BaseException as error:
            ended.append(type(error))
            raise

    mine.spawn(endless)
    await asyncio.to_thread(begun.wait, 30)
    await mine.close(nothing)
    mine.join(30)
    assert ended == [asyncio.CancelledError]


async def test_a_backend_that_blocks_may_close_later() -> None:
    """It is named meanwhile, and what waits for it is counted."""
    mine, free, closed = worker(), threading.Event(), threading.Event()
    mine.call(lambda: free.wait(60))
    mine.call(lambda: None)

    async def close() -> None:
        await asyncio.sleep(0)
        closed.set()

    try:
        with anyio.move_on_after(0.01) as waited:
            await mine.close(close)
        assert waited.cancelled_caught and not mine.closed
        assert mine.waiting >= 2
        assert "<lambda>() at" in await mine.cancel() and not closed.is_set()
    finally:
        free.set()
    assert await asyncio.to_thread(closed.wait, 30)
    await poll(lambda: mine.closed)
    mine.join(30)


async def without_thread(monkeypatch: pytest.MonkeyPatch, begin: Callable[[], Awaitable[None]]) -> str:
    """The system gives no thread."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", start)
    await begin()
    monkeypatch.undo()
    return "can't start new thread"


async def without_loop(monkeypatch: pytest.MonkeyPatch, begin: Callable[[], Awaitable[None]]) -> str:
    """The system gives no descriptors for a loop."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        await begin()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    return "open files"


@pytest.mark.parametrize("lacking", [without_thread, without_loop])
async def test_a_system_that_has_none(
    lacking: Callable[[pytest.MonkeyPatch, Callable[[], Awaitable[None]]], Awaitable[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reason is reported, nobody waits, and a later call begins anew."""
    failures, called = list[BaseException](), list[int]()
    mine = worker(failures)

    async def begin() -> None:
        mine.call(lambda: called.append(1))
        await poll(lambda: failures)

    why = await lacking(monkeypatch, begin)
    assert mine.closed and not called
    assert why in str(failures[0])
    assert mine.call(lambda: called.append(2))
    with anyio.fail_after(30):
        await mine.close(nothing)
    assert called == [2]
    mine.join(30)
