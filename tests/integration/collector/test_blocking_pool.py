"""What may wait for the disk is done by threads, few of them, and is given up or waited for within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from stepscope.collector import audit
from stepscope.collector.app import Collector
from stepscope.collector.audit import Audit
from stepscope.collector.errors import FullError, StuckError
from stepscope.collector.files import blocking_pool
from stepscope.collector.files.blocking_pool import BlockingPool
from stepscope.collector.files.store import Store
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.specimens import run_in
from stepscope.exporters.stream import protocol
from stepscope.runtime.journal.records import run_record
from tests.support.basics import poll
from tests.support.collecting import ask, until
from tests.support.messages import refused
from tests.support.streams import STREAM, SYNC


class Hanging:
    """Work that waits until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.threads: set[int] = set()
        self.undone: list[str] = []

    def work(self) -> str:
        """Waits, on whichever thread."""
        self.threads.add(threading.get_ident())
        self.begun.release()
        assert self.go.wait(30)
        return "done"


@contextlib.contextmanager
def hanging() -> Generator[Hanging]:
    """Work that hangs until the end of the block at most."""
    one = Hanging()
    try:
        yield one
    finally:
        one.go.set()


async def test_it_takes_so_many_threads_and_no_more() -> None:
    """Whatever hangs; all is done in the end, and the threads are gone. The loop goes on meanwhile."""
    few = BlockingPool(3)
    with hanging() as one:
        calls = [asyncio.create_task(few.run(one.work)) for _ in range(50)]
        await poll(lambda: few.waiting == 47)
        one.go.set()
        assert await asyncio.gather(*calls) == ["done"] * 50
        assert len(one.threads) == 3
    await poll(lambda: not any(thread.name == "stepscope disk" for thread in threading.enumerate()))


async def test_who_asks_is_answered_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by that it hangs; further ones at once when many wait. What is made after all is undone, what never began is not."""
    monkeypatch.setattr(blocking_pool, "PATIENCE", 0.2)
    monkeypatch.setattr(blocking_pool, "WAITING", 2)
    asked = BlockingPool(1)
    with hanging() as one:
        calls = [asyncio.create_task(asked.ask(one.work, one.undone.append)) for _ in range(3)]
        await poll(lambda: asked.waiting == 2)
        with refused(StuckError):
            await asked.ask(one.work)
        for call in calls:
            with refused(StuckError):
                await call
        one.go.set()
        await poll(lambda: one.undone)
        assert await asked.ask(lambda: "fine", one.undone.append) == "fine"
        assert one.undone == ["done"]


async def test_who_is_cancelled_waits_for_what_it_has_begun() -> None:
    """And it is undone, on a thread: a file that was opened is closed before anybody else may have it."""
    asked = BlockingPool(1)
    with hanging() as one:
        undone: list[threading.Thread] = []
        call = asyncio.create_task(asked.run(one.work, lambda _: undone.append(threading.current_thread())))
        await poll(lambda: one.threads)
        call.cancel()
        await asyncio.sleep(0)
        assert not call.done()
        one.go.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert [thread.name for thread in undone] == ["stepscope disk"]


async def test_what_a_thread_raises_comes_out() -> None:
    """However it is asked for; also that a server of files did not answer it."""

    def fails() -> None:
        raise TimeoutError("ETIMEDOUT")

    for asked in (BlockingPool(1).run, BlockingPool(1).ask):
        with pytest.raises(TimeoutError, match="ETIMEDOUT"):
            await asked(fails)


async def test_lines_of_the_audit_that_find_no_room_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is one that nobody reads, so that writing hangs; those that wait are written when it does not any more."""
    monkeypatch.setattr(audit, "MOST_WAITING", 3)
    os.mkfifo(tmp_path / "audit.jsonl")
    lines = Audit(tmp_path)
    lines.line("first", "")
    await poll(lambda: not lines._disk.waiting)  # pyright: ignore[reportPrivateUsage]
    for number in range(10):
        lines.line("more", "", number=number)
    assert lines.failed == 7
    assert not await lines.flush(0.05)
    reading = os.open(tmp_path / "audit.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert await lines.flush(30)
        written = os.read(reading, 10_000).decode().splitlines()
    finally:
        os.close(reading)
    assert [line.partition('"action":"')[2].partition('"')[0] for line in written] == ["first", "more", "more", "more"]
    assert [f'"number":{number}' in line for number, line in enumerate(written[1:])] == [True] * 3


async def test_lines_that_cannot_be_written_are_reported(tmp_path: Path) -> None:
    """By the page's state and to Prometheus; and a collector whose audit hangs ends all the same."""
    (tmp_path / "audit.jsonl").mkdir()
    async with Collector(CollectorSettings(directory=tmp_path, port=0)).serving() as url:

        def unwritten() -> int:
            return int(ask(f"{url}/v1/job").json()["unwritten_lines"])

        await asyncio.to_thread(until, lambda: unwritten() == 1)
        text = (await asyncio.to_thread(ask, f"{url}/metrics")).body.decode()
        assert "stepscope_unwritten_audit_lines_total 1.0" in text
    (tmp_path / "audit.jsonl").rmdir()
    os.mkfifo(tmp_path / "audit.jsonl")
    async with Collector(CollectorSettings(directory=tmp_path, port=0)).serving() as url:
        assert (await asyncio.to_thread(ask, f"{url}/healthz")).status == 200
    reading = os.open(tmp_path / "audit.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    await poll(lambda: not any(thread.name == "stepscope disk" for thread in threading.enumerate()))
    os.close(reading)


async def test_a_stream_that_is_being_deleted_is_not_opened(tmp_path: Path) -> None:
    """The loop does not wait for the disk that deletes it: the exporter is told to come again."""
    store = Store(CollectorSettings(directory=tmp_path))
    hello = protocol.Hello(STREAM, SYNC, 0, run_record(run_in(tmp_path), 0))
    async with store.stream(hello, lambda: None):
        assert not store.remove(STREAM), "it is open"
    store._removing.add(STREAM)  # pyright: ignore[reportPrivateUsage]
    with refused(FullError):
        async with store.stream(hello, lambda: None):
            pass
    store._removing.clear()  # pyright: ignore[reportPrivateUsage]
    assert store.remove(STREAM) and not store.path(STREAM).exists()
    async with store.stream(hello, lambda: None) as file:
        assert file.next == 0
