"""Clients that are silent, send too much at once, or speak for others are bounded before it costs anybody else."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame

from stepscope.collector.app import Collector
from stepscope.collector.files.stream_file import StreamFile
from stepscope.collector.files.writer import Writer
from stepscope.collector.live import stream as live_stream
from stepscope.collector.live.stream import Allowance, Stream
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web import server, web_protocols
from stepscope.exporters.nats.names import Names
from stepscope.exporters.specimens import run_in as a_run
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.protocol import MAX_SUMMARY_STEPS, Hello, StepRun, StepSummary
from stepscope.runtime.events.record import Block, EventBatch, Kind, empty_block
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import run_record
from tests.support.basics import poll, require
from tests.support.collecting import collecting as collecting_apart
from tests.support.collecting import send_request, trained, wait_until
from tests.support.collectors import answer, collecting, connected, send_frames, welcomed
from tests.support.journals import events_payloads
from tests.support.messages import refused
from tests.support.streams import RUN, STREAM, SYNC, frames, frames_header, hello


async def test_a_connection_that_says_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that never ends its request; one that asks is not disturbed."""
    monkeypatch.setattr(web_protocols, "REQUEST_SECONDS", 0.3)
    async with collecting(tmp_path) as running:
        host, port = running.url.removeprefix("ws://").split("/")[0].split(":")
        silent, slow = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        slow[1].write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        async with welcomed(running) as one:
            for reader, stream in (silent, slow):
                assert await asyncio.wait_for(reader.read(), 30) == b""
                stream.close()
            await one.send(protocol.encode(protocol.Ping(1)))
            assert isinstance(await answer(one), protocol.Pong)


def test_a_library_that_cannot_bound_messages_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything listens: without the bound of a message anybody could fill the memory."""
    monkeypatch.setattr(web_protocols, "ServerProtocol", object)
    with refused(ImportError, "max_message_size", "websockets", "pip install 'stepscope[collector]'"):
        Collector(CollectorSettings(directory=tmp_path, port=0))


async def test_no_request_may_be_left_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after one that was answered, and with a body that does not come; who is refused is not listened to."""
    monkeypatch.setattr(web_protocols, "REQUEST_SECONDS", 0.3)
    async with collecting(tmp_path, token="t") as running:
        for first, more, answered in (
            (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"G", b"200 "),
            (b"POST /v1/tickets HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n", b"a", b"401 "),
            (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n", b"a", b"200 "),
            (
                b"POST /v1/tickets HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer t\r\nContent-Length: 9\r\n\r\n",
                b"a",
                b"",
            ),
        ):
            reader, stream = await asyncio.open_connection("127.0.0.1", running.port)
            stream.write(first)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30) if answered else b""
            assert head.startswith(b"HTTP/1.1 " + answered) or not answered
            assert (b"connection: close" in head.lower()) is (answered == b"401 ")
            stream.write(more)
            with contextlib.suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 30)
            stream.close()
        await poll(lambda: not running.server.server_state.connections)


async def test_waiting_connections_make_room_for_requests(tmp_path: Path) -> None:
    """Connections are no more than may be; those of exporters stay."""
    async with collecting(tmp_path, max_streams=1, max_readers=4) as running, welcomed(running) as one:
        idle = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(20)]
        for reader, _ in idle[:16]:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 30) == b""
        assert len(running.server.server_state.connections) == 5
        reader, stream = idle[-1]
        stream.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        await one.send(protocol.encode(protocol.Ping(1)))
        assert isinstance(await answer(one), protocol.Pong)
        for _, stream in idle:
            stream.close()


def test_connections_leave_files_for_streams(tmp_path: Path) -> None:
    """However many strangers connect, and however few files may be open, ranks are accepted and readers answered."""
    with collecting_apart(tmp_path, files=200) as collector:
        address = urlsplit(collector.url)
        idle = [socket.create_connection((address.hostname or "", address.port or 0), 30) for _ in range(300)]
        for made in idle:
            with contextlib.suppress(ConnectionError):
                made.sendall(b"GET /")
        assert send_request(f"{collector.url}/healthz").status == 200
        trained(collector.url, 0)
        wait_until(lambda: collector.get("/v1/job")["ended"])
        for made in idle:
            made.close()
        assert "there can be 34 streams and 17 other connections" in collector.stop()[1]
    with refused(ValueError, "70", "ulimit -n"):
        CollectorSettings(directory=tmp_path).within(70)
    assert CollectorSettings(directory=tmp_path).within(20_000) == CollectorSettings(directory=tmp_path)


async def test_the_first_message_is_a_header_and_no_more(tmp_path: Path) -> None:
    """A stranger may not have the collector hold megabytes; who was welcomed may send large messages."""
    async with collecting(tmp_path) as running:
        async with connected(running.url) as one:
            with pytest.raises(ConnectionClosed):
                await one.send(b"\0" * (1 << 20))
                await one.recv()
        async with welcomed(running) as one:
            await one.send(protocol.encode(frames_header(0, 1), frames(0, 1, size=1 << 20)))
            assert await answer(one) == protocol.Ack(1)


async def test_a_fault_in_the_writer_costs_one_stream(tmp_path: Path) -> None:
    """The thread that writes all of them goes on."""

    class Broken(StreamFile):
        def write(self, new_frames: object) -> None:
            raise MemoryError

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    broken, good = Broken(tmp_path / "a", SYNC, RUN), StreamFile(tmp_path / "b", SYNC, RUN)
    with Writer(fsync=False) as written:
        with refused(OSError, "MemoryError"):
            await written.write(broken, broken.check(frames_header(0, 1), memoryview(frames(0, 1))))
        await written.write(good, good.check(frames_header(0, 1), memoryview(frames(0, 1))))
    assert good.next == 1
    broken.close()
    good.close()


@pytest.mark.parametrize("name", ["stepscope-writer", "stepscope disk"])
async def test_a_collector_without_a_thread_says_so(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the writer, or to open a file: the exporter is to come again, and is served when there may be one."""
    start = threading.Thread.start
    refusing = [name]

    def starting(thread: threading.Thread) -> None:
        if thread.name in refusing:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    async with collecting(tmp_path) as running:
        for expected in (protocol.Refused, protocol.Ack):
            async with connected(running.url) as one:
                await one.send(hello())
                response = await answer(one)
                if isinstance(response, protocol.Welcome):
                    assert response.next == 0
                    response = await send_frames(one, 0, 5)
                assert isinstance(response, expected), response
                if isinstance(response, protocol.Refused):
                    assert response.retry and "can't start new thread" in response.reason
            refusing.clear()
    assert running.journal().read_bytes() == fmt.encode_file_header(SYNC) + frames(0, 5)


def test_confirmed_frames_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `fsync`, a stream that goes on gets confirmations of frames only when the disk has them, and its directory's entry."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    for name, durable in (("s", True), ("t", False)):
        (tmp_path / name).mkdir()
        file = StreamFile(tmp_path / name, SYNC, RUN, durable=durable)
        file.write(file.check(frames_header(0, 1), memoryview(frames(0, 1))))
        file.close()
    assert synced == [str(tmp_path / "s" / "journal"), str(tmp_path / "s"), str(tmp_path)]


async def test_frames_that_the_disk_has_lost_are_not_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not after a new connection: the system reports a loss once, and says afterwards that the disk has everything."""

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "lost")

    async with collecting(tmp_path, fsync=True) as running:
        async with welcomed(running) as one:
            assert await send_frames(one, 0, 3) == protocol.Ack(3)
            with monkeypatch.context() as disk:
                disk.setattr(os, "fdatasync", fails)
                refused = await send_frames(one, 3, 2)
                assert isinstance(refused, protocol.Refused) and refused.retry
        assert running.collector.store.bytes == running.journal().stat().st_size
        async with connected(running.url) as one:
            await one.send(hello())
            welcome = await answer(one)
            assert isinstance(welcome, protocol.Welcome) and welcome.next == 3
            assert await send_frames(one, 3, 2) == protocol.Ack(5)
        assert running.journal().read_bytes() == fmt.encode_file_header(SYNC) + frames(0, 5)


def test_a_message_with_too_many_steps_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that unpacks to gigabytes of steps costs the collector's loop as little as any other."""
    block = empty_block(60_000)
    block["kind"], block["ts"] = int(Kind.SPAN), range(60_000)
    payloads = [payload for _, payload in events_payloads(EventBatch("steps", 0, block, b""))]
    stream = Stream(STREAM, run_record(a_run(Path("/")), 0))
    descriptors: list[int] = []
    add = stream.steps.add_events

    def noted(events: Block, offset: int, first: int, last: int) -> None:
        descriptors.append(len(events))
        add(events, offset, first, last)

    monkeypatch.setattr(stream.steps, "add_events", noted)
    all_frames = [(int(fmt.FrameType.EVENTS), 0, memoryview(payload)) for payload in payloads] * 4
    stream.add_frames(all_frames, 1, len(all_frames))
    assert sum(descriptors) * 64 <= 8 << 20 < stream.events * 64


OTHER = "fedcba9876543210" * 2
STEP = b"\0\0\x80?\0\0\0\0"
"""A step of a nanosecond."""


def summary(number: int) -> StepSummary:
    """One as large as it may be."""
    run = StepRun(0, number * MAX_SUMMARY_STEPS, number * 10**9, STEP * MAX_SUMMARY_STEPS)
    return StepSummary(0, 0, 0, [run], b"")


@pytest.mark.parametrize(
    "frame",
    [b"\x89\x80\0\0\0\0", b"\x82\x89\0\0\0\0" + protocol.encode(protocol.Obeyed(0, b""))],
    ids=["pings", "messages"],
)
async def test_a_flood_of_small_frames_waits(frame: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands are in each read: others are answered before all of them are parsed."""
    parsed = 0

    class Counted(web_protocols.WebSocketProtocol):
        def handle_ping(self) -> None:
            nonlocal parsed
            parsed += 1
            super().handle_ping()

        def handle_bytes(self, event: Frame) -> None:
            nonlocal parsed
            parsed += 1
            super().handle_bytes(event)

    monkeypatch.setattr(server, "WebSocketProtocol", Counted)
    async with collecting(tmp_path) as running, welcomed(running) as one, welcomed(running, "f" * 32) as other:
        one.transport.pause_reading()
        one.transport.write(frame * 200_000)
        for number in range(20):
            await other.send(protocol.encode(protocol.Ping(number)))
            assert isinstance(await answer(other), protocol.Pong)
        assert 1000 < parsed < 20_000
        one.transport.abort()


async def test_a_flood_of_summaries_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is read no faster than it may send, and nothing is lost; others are answered at once."""
    monkeypatch.setattr(live_stream, "STEPS_PER_SECOND", 10 * MAX_SUMMARY_STEPS)
    monkeypatch.setattr(live_stream, "STEPS_AT_ONCE", 2 * MAX_SUMMARY_STEPS)
    async with (
        collecting(tmp_path) as running,
        connected(running.url) as flooding,
        connected(running.url) as other,
    ):
        for made, stream in ((flooding, STREAM), (other, OTHER)):
            await made.send(protocol.encode(Hello(stream, SYNC, RUN, 0, True)))
            await answer(made)
        times = running.collector.streams.all[STREAM].steps
        began = time.monotonic()
        for number in range(14):
            await flooding.send(protocol.encode(summary(number)))
        await other.send(protocol.encode(protocol.Ping(1)))
        assert isinstance(await answer(other), protocol.Pong)
        assert times.count < 14 * MAX_SUMMARY_STEPS
        await poll(lambda: times.count == 14 * MAX_SUMMARY_STEPS)
        assert time.monotonic() - began > 1


async def test_a_flood_through_nats_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There nobody can have it wait: what is too much is counted, and after a while the process is heard again."""
    sources: Any = require("tests.support.nats_sources")
    monkeypatch.setattr(live_stream, "STEPS_PER_SECOND", 4 * MAX_SUMMARY_STEPS)
    monkeypatch.setattr(live_stream, "STEPS_AT_ONCE", 3 * MAX_SUMMARY_STEPS)
    source = sources.Source(tmp_path, "nats://127.0.0.1:4222")
    names = Names().of(run := msgspec.structs.replace(RUN, job="job"), STREAM)
    roster = SimpleNamespace(processes={names.key: SimpleNamespace(hello=Hello(STREAM, SYNC, run))})

    async def hear(number: int) -> int:
        message = SimpleNamespace(subject=names.live, data=protocol.encode(summary(number)))
        await source.nats._hear(roster, message)
        counted: int = source.nats.view().malformed_messages
        return counted

    assert [await hear(number) for number in range(5)][:3] == [0, 0, 0]
    while not (refused := await hear(5)):
        pass
    await asyncio.sleep(0.6)
    assert await hear(1000) == refused
    assert source.streams.all[STREAM].steps.last == 1001 * MAX_SUMMARY_STEPS - 1


def test_the_rate_limit_of_a_sender() -> None:
    """So much at once, and then so much a second; what it did not use earlier does not count."""
    allowance = Allowance(10, 20)
    assert [allowance.use(10, 0.0) for _ in range(3)] == [0.0, 0.0, 1.0]
    assert allowance.use(0, 1.0) == 0.0
    assert [allowance.use(10, 1000.0) for _ in range(3)] == [0.0, 0.0, 1.0]
