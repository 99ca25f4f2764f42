"""How a collector ingests a stream from JetStream: each frame once and in order; frames count as lost only if they are nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError

from stepscope.collector import memory_budget
from stepscope.collector.files import lasting
from stepscope.collector.files.store import Store
from stepscope.collector.live.stream import DIED_AFTER, State
from stepscope.collector.live.streams import Streams
from stepscope.collector.nats import fetching
from stepscope.collector.nats.consumer import Consumer
from stepscope.collector.nats.coordination import Session
from stepscope.collector.nats.ingest import Ingest
from stepscope.collector.runs.recording import Recording
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.nats import layout
from stepscope.exporters.stream import protocol
from tests.integration.collector.test_collector_lasting import HangingCall
from tests.support.basics import poll
from tests.support.beside import running
from tests.support.jetstreams import LIMITS, Publisher, connected
from tests.support.journals import frame_numbers
from tests.support.nats import NatsServer
from tests.support.streams import frames, frames_header

NEVER = 1e9
"""Seconds."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats") / "jetstream") as started:
        yield started


class Publishing(Publisher):
    """An exporter, and the session of a collector."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.jetstream)
        self.session = session


class Collecting:
    """The directory of a collector."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(CollectorSettings(directory=directory))
        self.streams = Streams(100)
        self.refused: list[str] = []

    def ingest(self, publisher: Publishing, hello: protocol.Hello, **seconds: float) -> Ingest:
        times = {"gap_seconds": NEVER, **seconds}
        return Ingest(publisher.session, self.store, self.streams, hello, self.refused.append, **times)

    def consumer(self, publisher: Publishing) -> str:
        return Consumer(publisher.session.client, publisher.jetstream, self.store.identity(), publisher.stream).name

    def numbers(self, publisher: Publisher) -> list[int]:
        """Numbers of the frames in the files."""
        return frame_numbers(self.store.path(publisher.stream))

    def next(self, publisher: Publisher) -> int:
        """Number of the first frame that is not written yet."""
        stream = self.streams.all.get(publisher.stream)
        return 0 if stream is None else stream.next

    def missing(self, publisher: Publisher) -> int:
        return self.streams.all[publisher.stream].missing


@contextlib.asynccontextmanager
async def publishing(server: NatsServer, bound: int = 256 << 20) -> AsyncGenerator[Publishing]:
    async def fail(error: Exception) -> None:
        raise error

    async with connected(server.url) as client:
        yield Publishing(await Session.open(client, memory_budget.MemoryBudget(bound), LIMITS, 15.0, fail))


async def test_it_ends_with_the_stream(server: NatsServer, tmp_path: Path) -> None:
    """However messages overlap and in whatever order they come. The consumer is deleted then."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        for first, count in ((0, 10), (5, 10), (20, 5), (15, 5), (20, 5)):
            await publisher.publish(first, count)
        await publisher.end(25)
        await collecting.ingest(publisher, hello).run()
        assert collecting.numbers(publisher) == list(range(26))
        assert collecting.missing(publisher) == 0
        with pytest.raises(NotFoundError):
            await publisher.jetstream.consumer_info(layout.STREAM, collecting.consumer(publisher))
        await collecting.ingest(publisher, hello).run()
        assert collecting.numbers(publisher) == list(range(26))


async def test_the_file_of_a_silent_stream_is_closed(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process counts as dead, and its file can be deleted; later messages are written all the same."""
    monkeypatch.setattr(fetching, "IDLE_SECONDS", 0.2)
    collecting = Collecting(tmp_path)

    def is_closed() -> bool:
        stream = collecting.streams.all[publisher.stream]
        return stream.connection is None and not collecting.store.connected(stream.id)

    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(0, 5)
        async with running(collecting.ingest(publisher, hello, silent_seconds=0.1).run()) as task:
            await poll(lambda: collecting.next(publisher) == 5 and is_closed())
            stream = collecting.streams.all[publisher.stream]
            assert stream.state(stream.seen + DIED_AFTER) is State.DIED
            await publisher.publish(5, 5)
            await poll(lambda: collecting.next(publisher) == 10 and is_closed())
            assert collecting.numbers(publisher) == list(range(10))
            assert collecting.store.remove(publisher.stream)
            collecting.streams.deleted(publisher.stream)
            await publisher.publish(10, 5)
            await poll(lambda: publisher.stream in collecting.streams.all and collecting.next(publisher) == 15)
            await publisher.end(15)
            await task
    assert collecting.numbers(publisher) == list(range(16)) and collecting.missing(publisher) == 0


async def test_unacknowledged_messages_of_a_killed_collector_come_at_once(server: NatsServer, tmp_path: Path) -> None:
    """JetStream would deliver them again after an hour."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        for number in range(20):
            await publisher.publish(number, 1)
        await publisher.end(20)
        name = collecting.consumer(publisher)
        config = ConsumerConfig(
            name=name, durable_name=name, ack_policy=AckPolicy.EXPLICIT, ack_wait=3600, filter_subject=publisher.subject
        )
        await layout.consumer(publisher.jetstream, config)
        killed = await publisher.jetstream.pull_subscribe_bind(name, layout.STREAM)
        assert len(await killed.fetch(7, timeout=10)) == 7
        await collecting.ingest(publisher, hello).run()
    assert collecting.numbers(publisher) == list(range(21))
    assert collecting.missing(publisher) == 0


async def test_frames_that_jetstream_has_deleted_count_as_lost(server: NatsServer, tmp_path: Path) -> None:
    """A later message says that they were stored once, so the collector does not wait for them."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(0, 5)
        lost = await publisher.publish(5, 5)
        await publisher.publish(10, 5, oldest=5)
        await publisher.end(15, oldest=10)
        await publisher.jetstream.delete_msg(layout.STREAM, lost)
        await collecting.ingest(publisher, hello).run()
    assert collecting.numbers(publisher) == [*range(5), *range(10, 16)]
    assert collecting.missing(publisher) == 5


async def test_a_stream_whose_beginning_was_deleted_has_its_run(server: NatsServer, tmp_path: Path) -> None:
    """From its Hello: else it could not be merged."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        lost = await publisher.publish(0, 5)
        await publisher.publish(5, 5, oldest=5)
        await publisher.end(10, oldest=5)
        await publisher.jetstream.delete_msg(layout.STREAM, lost)
        await collecting.ingest(publisher, hello).run()
    assert collecting.numbers(publisher) == list(range(4, 11))
    assert collecting.missing(publisher) == 4
    recording = Recording.of(collecting.store.path(publisher.stream), publisher.stream)
    assert recording.run == hello.run and recording.ended and recording.damage.lost_frames == 4


async def test_missing_frames_are_awaited(server: NatsServer, tmp_path: Path) -> None:
    """JetStream does not have them, but the exporter has: it publishes them long after those behind them."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(0, 5)
        await publisher.publish(10, 5)
        await publisher.end(15)
        ingest = collecting.ingest(publisher, hello)
        async with running(ingest.run()) as task:
            await poll(lambda: ingest.has_fetched)
            await asyncio.wait([task], timeout=2.0)  # it checks each second whether they are lost
            assert not task.done()
            await publisher.publish(5, 5)
            await asyncio.wait([task])
            task.result()
    assert collecting.numbers(publisher) == list(range(16))
    assert collecting.missing(publisher) == 0


async def test_missing_frames_of_a_killed_exporter_count_as_lost(server: NatsServer, tmp_path: Path) -> None:
    """They were never stored, and the exporter publishes nothing more; what JetStream delivers again is no sign of it."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(0, 5)
        await publisher.publish(10, 5)
        await publisher.end(15)
        await collecting.ingest(publisher, hello, gap_seconds=2.5, ack_seconds=0.3).run()
    assert collecting.numbers(publisher) == [*range(5), *range(10, 16)]
    assert collecting.missing(publisher) == 5


async def test_a_file_that_lost_acknowledged_frames_is_completed(server: NatsServer, tmp_path: Path) -> None:
    """As after a loss of power: the consumer is ahead of the file, and JetStream has the messages between."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(0, 5)
        async with running(collecting.ingest(publisher, hello).run()):
            await poll(lambda: collecting.next(publisher) == 5)
        place = collecting.store.path(publisher.stream).parent
        before = {path: path.read_bytes() for path in place.iterdir()}
        await publisher.publish(5, 5, oldest=5)
        async with running(collecting.ingest(publisher, hello).run()):
            await poll(lambda: collecting.next(publisher) == 10)
        for path, content in before.items():
            path.write_bytes(content)
        await publisher.publish(10, 5, oldest=10)
        await publisher.end(15, oldest=15)
        await collecting.ingest(publisher, hello).run()
    assert collecting.numbers(publisher) == list(range(16))
    assert collecting.missing(publisher) == 0


async def test_unacknowledged_messages_are_returned_at_the_end(server: NatsServer, tmp_path: Path) -> None:
    """Other collectors get them at once, long before JetStream would deliver them again."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(5, 5)
        ingest = collecting.ingest(publisher, hello)
        async with running(ingest.run()):
            await poll(lambda: ingest.has_fetched)
        subscription = await publisher.jetstream.pull_subscribe_bind(collecting.consumer(publisher), layout.STREAM)
        (message,) = await subscription.fetch(1, timeout=5)
        assert message.metadata.sequence.consumer == 2, "it was delivered once before"


async def test_frames_written_after_a_cancellation_count(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next ingest finds them in the file, and does not count them again."""
    monkeypatch.setattr(lasting, "PATIENCE", 0.05)
    collecting = Collecting(tmp_path)
    hanging = HangingCall(monkeypatch, "write")
    try:
        async with publishing(server) as publisher:
            hello = await publisher.begin()
            await publisher.publish(0, 5)
            async with running(collecting.ingest(publisher, hello).run()):
                await poll(hanging.begun.is_set)
            assert collecting.next(publisher) == 0
            hanging.go.set()
            await poll(lambda: collecting.next(publisher) == 5)
            stream = collecting.streams.all[publisher.stream]
            assert stream.bytes == collecting.store.path(stream.id).stat().st_size
    finally:
        hanging.go.set()


async def test_malformed_messages_are_terminated(server: NatsServer, tmp_path: Path) -> None:
    """They are reported, JetStream does not deliver them again, and the rest of the stream is written."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(0, 5)
        await publisher.send(b"")
        await publisher.send(b"\xff" * 100)
        await publisher.send(protocol.encode(protocol.Ack(3)))
        await publisher.send(protocol.encode(frames_header(5, 1), frames(5, 1)[:-1] + b"\xff"))
        await publisher.send(protocol.encode(frames_header(3, 99), frames(3, 4)))
        ingest = collecting.ingest(publisher, hello)
        async with running(ingest.run()):
            await poll(lambda: len(collecting.refused) == 5 and ingest.is_idle)
            info = await publisher.jetstream.consumer_info(layout.STREAM, collecting.consumer(publisher))
            assert (info.num_ack_pending, info.num_pending, info.num_redelivered) == (0, 0, 0)
            await publisher.publish(5, 5)
            await publisher.end(10)
            await poll(lambda: collecting.streams.all[publisher.stream].ended)
    assert collecting.numbers(publisher) == list(range(11))
    assert len(collecting.refused) == 5


async def test_memory_is_bounded(server: NatsServer, tmp_path: Path) -> None:
    """For all streams together, however many messages there are: here 38 MB in four streams."""
    collecting, limit = Collecting(tmp_path), 8 << 20
    async with publishing(server, limit) as first:
        publishers = [first, *(Publishing(first.session) for _ in range(3))]
        hellos = [await publisher.begin() for publisher in publishers]
        for publisher in publishers:
            for number in range(12):
                await publisher.publish(number, 1, size=800_000)
            await publisher.end(12)
        bound = first.session.budget
        pairs = zip(publishers, hellos, strict=True)
        tracemalloc.start()
        try:
            await asyncio.gather(*(collecting.ingest(publisher, hello).run() for publisher, hello in pairs))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert memory_budget.FREE < bound.peak <= limit and bound.used == bound.waiting == 0
        assert peak < 2 * limit, "what is read from the connection, and what is being written, comes on top"
    assert all(collecting.numbers(publisher) == list(range(13)) for publisher in publishers)


async def test_streams_out_of_order_do_not_wait_for_each_other(server: NatsServer, tmp_path: Path) -> None:
    """Two streams whose first message comes last, after more messages than there is memory for."""
    collecting = Collecting(tmp_path)
    async with publishing(server, 1 << 20) as first:
        publishers = [first, Publishing(first.session)]
        hellos = [await publisher.begin() for publisher in publishers]
        for publisher in publishers:
            for number in (*range(1, 8), 0):
                await publisher.publish(number, 1, size=400_000)
            await publisher.end(8)
        bound = first.session.budget
        pairs = zip(publishers, hellos, strict=True)
        await asyncio.gather(*(collecting.ingest(publisher, hello).run() for publisher, hello in pairs))
        assert bound.used == bound.waiting == 0
    assert all(collecting.numbers(publisher) == list(range(9)) for publisher in publishers)
    assert all(collecting.missing(publisher) == 0 for publisher in publishers)
