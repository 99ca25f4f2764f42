"""`async with trace(...)` where the program uses all that closing could need."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import stepscope as sc
from stepscope.runtime.threads import background_call
from tests.support.basics import poll, require
from tests.support.killed_programs import names


async def close_with_blocked_threads(output_dir: Path) -> None:
    """Threads that the program keeps busy, all that its limiter allows, are let go only after the end."""
    free = threading.Event()

    async def busy() -> None:
        await anyio.to_thread.run_sync(free.wait)

    limiter = anyio.to_thread.current_default_thread_limiter()
    async with anyio.create_task_group() as tasks:
        for _ in range(int(limiter.total_tokens)):
            tasks.start_soon(busy)
        await poll(lambda: not limiter.available_tokens)
        try:
            async with sc.trace(output_dir=output_dir) as profiler:
                with sc.span("work"):
                    pass
                profiler.step()
        finally:
            free.set()
    assert names(output_dir / "journal")["work"] == 1


async def test_the_programs_jobs_hold_up_nothing(tmp_path: Path) -> None:
    """On asyncio's loop and on uvloop's."""
    await close_with_blocked_threads(tmp_path)


def test_the_programs_jobs_hold_up_nothing_on_trio(tmp_path: Path) -> None:
    """Its worker threads and limiter are its own."""
    require("trio")
    anyio.run(partial(close_with_blocked_threads, tmp_path), backend="trio")


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed before"])
async def test_no_thread_can_be_started(closed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing blocks the loop then, and is done all the same; the program hears nothing of it."""
    start = background_call.start

    def none(thread: threading.Thread, seconds: float | None = None) -> None:
        monkeypatch.setattr(background_call, "start", start)  # there is one for what comes later
        raise RuntimeError("can't start new thread")

    async with sc.trace(output_dir=tmp_path) as profiler:
        with sc.span("work"):
            pass
        profiler.step()
        if closed:
            profiler.close()
        monkeypatch.setattr(background_call, "start", none)
    assert profiler.statistics().state == "closed"
    assert names(tmp_path / "journal")["work"] == 1
