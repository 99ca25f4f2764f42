"""A stream belongs to nobody else while a thread has its file, however long the disk hangs and whoever has gone meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from stepscope.collector.app import Collector
from stepscope.collector.errors import DirectoryInUseError
from stepscope.collector.files import blocking_pool
from stepscope.collector.files.disk import DirectoryLock
from stepscope.collector.files.stream_file import StreamFile
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web import server
from stepscope.exporters.stream import protocol
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import WindowOpened, encode_record
from tests.support.basics import poll
from tests.support.collectors import answer, collecting, connected, send_frames
from tests.support.streams import STREAM, SYNC, frames, frames_header, hello
from tests.support.windowed import START, closed, encoded, events, run_of


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


@pytest.fixture(autouse=True)
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
async def test_an_exporter_comes_again_while_its_stream_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """What is confirmed to it afterwards stays: no thread cuts, or writes, the file of another connection."""
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


async def test_what_was_written_counts_though_its_connection_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events, the end of its window, and what is missing before it: nobody tells of them again."""
    opened = int(fmt.FrameType.WINDOW_OPENED), 0, encode_record(WindowOpened(index=0, at_ns=START))
    first = [run_of(), opened]
    second = [events(0, 6400, 0), closed(0, 0, 0)]
    async with collecting(tmp_path) as running, connected(running.url) as old, connected(running.url) as new:
        await old.send(hello(oldest=7))
        assert isinstance(await answer(old), protocol.Welcome)
        await old.send(protocol.encode(frames_header(0, 2), encoded(first)))
        assert await answer(old) == protocol.Ack(2)
        hanging = HangingCall(monkeypatch, "write")
        try:
            await old.send(protocol.encode(frames_header(7, 2), encoded(second, 7)))
            await poll(hanging.begun.is_set)
            await new.send(hello(oldest=7))
            assert isinstance(await answer(old), protocol.Refused)
        finally:
            hanging.go.set()
        assert isinstance(welcome := await answer(new), protocol.Welcome) and welcome.next == 9
        stream = running.collector.streams.all[STREAM]
        assert [(window.index, window.open) for window in stream.windows] == [(0, False)]
        assert (stream.events, stream.next, stream.missing) == (100, 9, 5)
        assert stream.bytes == running.journal().stat().st_size


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
