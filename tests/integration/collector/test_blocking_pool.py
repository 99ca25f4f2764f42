"""A few threads wait for the disk, within bounds; a stream belongs to nobody else while one of them has its file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from stepscope.collector import audit
from stepscope.collector.app import Collector
from stepscope.collector.audit import Audit
from stepscope.collector.errors import DirectoryInUseError, FullError, StuckError
from stepscope.collector.files import blocking_pool
from stepscope.collector.files.blocking_pool import BlockingPool
from stepscope.collector.files.disk import DirectoryLock
from stepscope.collector.files.store import Store
from stepscope.collector.files.stream_file import StreamFile
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web import server
from stepscope.exporters.specimens import run_in
from stepscope.exporters.stream import protocol
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import WindowOpened, encode_record, run_record
from tests.support.basics import poll
from tests.support.collecting import send_request, wait_until
from tests.support.collectors import answer, collecting, connected, send_frames
from tests.support.messages import refused
from tests.support.streams import STREAM, SYNC, frames, frames_header, hello
from tests.support.window_streams import START, closed, encoded, events, run_of


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


async def test_the_pool_is_bounded() -> None:
    """Calls that hang block only their own threads; all are done in the end, and the threads end. The loop goes on meanwhile."""
    few = BlockingPool(3)
    with hanging() as one:
        calls = [asyncio.create_task(few.run(one.work)) for _ in range(50)]
        await poll(lambda: few.waiting == 47)
        one.go.set()
        assert await asyncio.gather(*calls) == ["done"] * 50
        assert len(one.threads) == 3
    await poll(lambda: not any(thread.name == "stepscope disk" for thread in threading.enumerate()))


async def test_callers_are_answered_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer says that the call hangs; further ones come at once when many wait. A late result is undone."""
    monkeypatch.setattr(blocking_pool, "PATIENCE", 0.2)
    monkeypatch.setattr(blocking_pool, "WAITING", 2)
    pool = BlockingPool(1)
    with hanging() as one:
        calls = [asyncio.create_task(pool.try_run(one.work, one.undone.append)) for _ in range(3)]
        await poll(lambda: pool.waiting == 2)
        with refused(StuckError):
            await pool.try_run(one.work)
        for call in calls:
            with refused(StuckError):
                await call
        one.go.set()
        await poll(lambda: one.undone)
        assert await pool.try_run(lambda: "fine", one.undone.append) == "fine"
        assert one.undone == ["done"]


async def test_a_cancelled_caller_waits_for_its_work() -> None:
    """And it is undone, on a thread: a file that was opened is closed before anybody else may have it."""
    pool = BlockingPool(1)
    with hanging() as one:
        undone: list[threading.Thread] = []
        call = asyncio.create_task(pool.run(one.work, lambda _: undone.append(threading.current_thread())))
        await poll(lambda: one.threads)
        call.cancel()
        await asyncio.sleep(0)
        assert not call.done()
        one.go.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert [thread.name for thread in undone] == ["stepscope disk"]


async def test_exceptions_of_a_thread_come_out() -> None:
    """By both methods; also an error of a file server that did not answer."""

    def fails() -> None:
        raise TimeoutError("ETIMEDOUT")

    for call in (BlockingPool(1).run, BlockingPool(1).try_run):
        with pytest.raises(TimeoutError, match="ETIMEDOUT"):
            await call(fails)


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
            return int(send_request(f"{url}/v1/job").json()["unwritten_lines"])

        await asyncio.to_thread(wait_until, lambda: unwritten() == 1)
        text = (await asyncio.to_thread(send_request, f"{url}/metrics")).body.decode()
        assert "stepscope_unwritten_audit_lines_total 1.0" in text
    (tmp_path / "audit.jsonl").rmdir()
    os.mkfifo(tmp_path / "audit.jsonl")
    async with Collector(CollectorSettings(directory=tmp_path, port=0)).serving() as url:
        assert (await asyncio.to_thread(send_request, f"{url}/healthz")).status == 200
    reading = os.open(tmp_path / "audit.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    await poll(lambda: not any(thread.name == "stepscope disk" for thread in threading.enumerate()))
    os.close(reading)


async def test_a_stream_that_is_being_deleted_is_not_opened(tmp_path: Path) -> None:
    """The loop does not wait for the disk that deletes it: the exporter gets the status to come again."""
    store = Store(CollectorSettings(directory=tmp_path))
    hello = protocol.Hello(STREAM, SYNC, run_record(run_in(tmp_path), 0))
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


class HangingCall:
    """The first call of a method of a stream's file from now on waits in its thread until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, *, behind: bool = False) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        real = getattr(StreamFile, method)

        def call(*arguments: Any) -> Any:
            first = not self.begun.is_set()
            self.begun.set()
            if behind:
                found = real(*arguments)
                assert not first or self.go.wait(30)
                return found
            assert not first or self.go.wait(30)
            return real(*arguments)

        monkeypatch.setattr(StreamFile, method, call)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for long for what hangs."""
    monkeypatch.setattr(blocking_pool, "PATIENCE", 0.05)


async def begun(url: str) -> None:
    """A stream of five frames is there, and was left."""
    async with connected(url) as one:
        await one.send(hello())
        assert isinstance(await answer(one), protocol.Welcome)
        assert await send_frames(one, 0, 5) == protocol.Ack(5)


@pytest.mark.parametrize("what", ["_open_last", "write", "close"])
@pytest.mark.usefixtures("impatient")
async def test_an_exporter_comes_again_while_its_stream_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Frames that are confirmed to it afterwards stay: no thread cuts, or writes, the file of another connection."""
    async with collecting(tmp_path) as running:
        await begun(running.url)
        await poll(lambda: not running.collector.store.connected(STREAM))
        hanging = HangingCall(monkeypatch, what, behind=what == "_open_last")
        try:
            async with connected(running.url) as old, connected(running.url) as new:
                await old.send(hello())
                if what != "_open_last":
                    assert isinstance(await answer(old), protocol.Welcome)
                if what == "write":
                    await old.send(protocol.encode(frames_header(5, 2), frames(5, 2)))
                if what == "close":
                    await old.close()
                await poll(hanging.begun.is_set)
                await new.send(hello())
                asyncio.get_running_loop().call_later(0.5, hanging.go.set)
                assert isinstance(welcome := await answer(new), protocol.Welcome)
                assert hanging.go.is_set(), "a thread had the file"
                assert welcome.next == (7 if what == "write" else 5)
                assert await send_frames(new, welcome.next, 20) == protocol.Ack(welcome.next + 20)
        finally:
            hanging.go.set()
    written = running.journal().read_bytes()
    assert written == fmt.encode_file_header(SYNC) + frames(0, welcome.next + 20)
    stream = running.collector.streams.all[STREAM]
    assert (stream.next, stream.bytes, stream.missing) == (welcome.next + 20, len(written), 0)


@pytest.mark.usefixtures("impatient")
async def test_written_frames_count_though_their_connection_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events, the end of its window, and what is missing before it: nobody reports them again."""
    opened = int(fmt.FrameType.WINDOW_OPENED), 0, encode_record(WindowOpened(index=0, at_ns=START))
    first = [run_of(), opened]
    second = [events(0, 6400, 0), closed(0, 0, 0)]
    async with collecting(tmp_path) as running, connected(running.url) as old, connected(running.url) as new:
        await old.send(hello())
        assert isinstance(await answer(old), protocol.Welcome)
        await old.send(protocol.encode(frames_header(0, 2), encoded(first)))
        assert await answer(old) == protocol.Ack(2)
        hanging = HangingCall(monkeypatch, "write")
        try:
            await old.send(protocol.encode(frames_header(7, 2), encoded(second, 7)))
            await poll(hanging.begun.is_set)
            await new.send(hello())
            assert isinstance(await answer(old), protocol.Refused)
        finally:
            hanging.go.set()
        assert isinstance(welcome := await answer(new), protocol.Welcome) and welcome.next == 9
        stream = running.collector.streams.all[STREAM]
        assert [(window.index, window.open) for window in stream.windows] == [(0, False)]
        assert (stream.events, stream.next, stream.missing) == (100, 9, 5)
        assert stream.bytes == running.journal().stat().st_size


@pytest.mark.usefixtures("impatient")
async def test_a_collector_that_ends_keeps_the_directory_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as one of its threads has a file: the next collector would confirm what that one cuts."""
    monkeypatch.setattr(server, "GRACE", 1)
    collector = Collector(CollectorSettings(directory=tmp_path, port=0))
    async with collector.serving() as listening:
        url = listening.replace("http", "ws", 1)
        await begun(url)
        await poll(lambda: not collector.store.connected(STREAM))
        hanging = HangingCall(monkeypatch, "_open_last", behind=True)
        async with connected(url) as one:
            await one.send(hello())
            await poll(hanging.begun.is_set)
    other = DirectoryLock(tmp_path)
    try:
        with pytest.raises(DirectoryInUseError):
            other.acquire()
    finally:
        hanging.go.set()

    def free() -> bool:
        try:
            other.acquire()
        except DirectoryInUseError:
            return False
        return True

    await poll(free)
    other.release()
