"""How a collector takes a stream from JetStream: each frame once and in order, and what is missing only when it is nowhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError

from stepscope.collector.nats_intake import Intake
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.store import Store
from stepscope.collector.streams import Streams
from stepscope.exporters.collector import protocol
from stepscope.exporters.nats import layout
from stepscope.runtime.ending_tasks import end_tasks
from stepscope.runtime.journal.frames import FrameReader
from tests.jetstreams import Publisher, jetstream
from tests.nats import NatsServer
from tests.streams import frames
from tests.support import poll

NEVER = 1e9
"""Seconds."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsServer]:
    started = NatsServer(tmp_path_factory.mktemp("nats") / "jetstream")
    yield started
    started.kill()


class Collecting:
    """A directory into which streams are taken."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = Store(CollectorSettings(directory=directory))
        self.streams = Streams(100)
        self.refused: list[str] = []

    def intake(self, publisher: Publisher, hello: protocol.Hello, **seconds: float) -> Intake:
        times = {"gap_seconds": NEVER, **seconds}
        return Intake(publisher.jetstream, self.store, self.streams, hello, self.refused.append, **times)

    def consumer(self, publisher: Publisher) -> str:
        return f"collect-{self.store.identity()}-{publisher.stream}"

    def numbers(self, publisher: Publisher) -> list[int]:
        """Of the frames in the file."""
        reader = FrameReader(self.store.path(publisher.stream), follow=False)
        found: list[int] = []
        while reader.next() is not None:
            found.append(reader.position[0] - 1)
        reader.close()
        return found

    def next(self, publisher: Publisher) -> int:
        """Number of the first frame that is not taken yet."""
        stream = self.streams.all.get(publisher.stream)
        return 0 if stream is None else stream.next

    def missing(self, publisher: Publisher) -> int:
        return self.streams.all[publisher.stream].missing


@contextlib.asynccontextmanager
async def publishing(server: NatsServer) -> AsyncGenerator[Publisher]:
    async with jetstream(server.url) as context:
        yield Publisher(context)


@contextlib.asynccontextmanager
async def running(intake: Intake) -> AsyncGenerator[asyncio.Task[None]]:
    task = asyncio.create_task(intake.run())
    try:
        yield task
    finally:
        await end_tasks(task)


async def test_it_ends_with_the_stream(server: NatsServer, tmp_path: Path) -> None:
    """However messages overlap and in whatever order they come; JetStream need not know any more how far this was."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        for first, count in ((0, 10), (5, 10), (20, 5), (15, 5), (20, 5)):
            await publisher.publish(first, count)
        await publisher.end(25)
        await collecting.intake(publisher, hello).run()
        assert collecting.numbers(publisher) == list(range(26))
        assert collecting.missing(publisher) == 0
        with pytest.raises(NotFoundError):
            await publisher.jetstream.consumer_info(layout.STREAM, collecting.consumer(publisher))
        await collecting.intake(publisher, hello).run()
        assert collecting.numbers(publisher) == list(range(26))


async def test_what_a_killed_collector_had_in_hand_comes_at_once(server: NatsServer, tmp_path: Path) -> None:
    """JetStream would keep it back for an hour here."""
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
        await collecting.intake(publisher, hello).run()
    assert collecting.numbers(publisher) == list(range(21))
    assert collecting.missing(publisher) == 0


async def test_frames_that_jetstream_has_thrown_away_are_given_up(server: NatsServer, tmp_path: Path) -> None:
    """A later message tells that they were stored once, so nobody waits for them."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(0, 5)
        lost = await publisher.publish(5, 5)
        await publisher.publish(10, 5, oldest=5)
        await publisher.end(15, oldest=10)
        await publisher.jetstream.delete_msg(layout.STREAM, lost)
        await collecting.intake(publisher, hello).run()
    assert collecting.numbers(publisher) == [*range(5), *range(10, 16)]
    assert collecting.missing(publisher) == 5


async def test_frames_that_are_still_to_come_are_waited_for(server: NatsServer, tmp_path: Path) -> None:
    """JetStream has none of them, but the exporter has: it publishes them later, when those after them are long there."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(0, 5)
        await publisher.publish(10, 5)
        await publisher.end(15)
        intake = collecting.intake(publisher, hello)
        async with running(intake) as task:
            await poll(lambda: intake.works)
            await asyncio.wait([task], timeout=2.0)  # it asks each second what has become of them
            assert not task.done()
            await publisher.publish(5, 5)
            await asyncio.wait([task])
            task.result()
    assert collecting.numbers(publisher) == list(range(16))
    assert collecting.missing(publisher) == 0


async def test_frames_of_an_exporter_that_has_gone_are_given_up(server: NatsServer, tmp_path: Path) -> None:
    """They were never stored, and nothing comes from it any more; what JetStream sends again does not come from it."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(0, 5)
        await publisher.publish(10, 5)
        await publisher.end(15)
        await collecting.intake(publisher, hello, gap_seconds=2.5, ack_seconds=0.3).run()
    assert collecting.numbers(publisher) == [*range(5), *range(10, 16)]
    assert collecting.missing(publisher) == 5


async def test_a_file_that_lost_what_was_confirmed_is_completed(server: NatsServer, tmp_path: Path) -> None:
    """As after a loss of power: the consumer is further than the file, and JetStream still has what is between."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(0, 5)
        async with running(collecting.intake(publisher, hello)):
            await poll(lambda: collecting.next(publisher) == 5)
        place = collecting.store.path(publisher.stream).parent
        kept = {path: path.read_bytes() for path in place.iterdir()}
        await publisher.publish(5, 5, oldest=5)
        async with running(collecting.intake(publisher, hello)):
            await poll(lambda: collecting.next(publisher) == 10)
        for path, content in kept.items():
            path.write_bytes(content)
        await publisher.publish(10, 5, oldest=10)
        await publisher.end(15, oldest=15)
        await collecting.intake(publisher, hello).run()
    assert collecting.numbers(publisher) == list(range(16))
    assert collecting.missing(publisher) == 0


async def test_who_leaves_gives_back_what_is_in_hand(server: NatsServer, tmp_path: Path) -> None:
    """Others get it at once, long before JetStream would send it again by itself."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(5, 5)
        intake = collecting.intake(publisher, hello)
        async with running(intake):
            await poll(lambda: intake.works)
        subscription = await publisher.jetstream.pull_subscribe_bind(collecting.consumer(publisher), layout.STREAM)
        (message,) = await subscription.fetch(1, timeout=5)
        assert message.metadata.sequence.consumer == 2, "it was sent once before"


async def test_what_is_no_message_is_terminated(server: NatsServer, tmp_path: Path) -> None:
    """It is told of, JetStream does not send it again, and the stream goes on."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        hello = await publisher.begin()
        await publisher.publish(0, 5)
        await publisher.send(b"")
        await publisher.send(b"\xff" * 100)
        await publisher.send(protocol.encode(protocol.Ack(3)))
        await publisher.send(protocol.encode(protocol.Frames(5, 1), frames(5, 1)[:-1] + b"\xff"))
        await publisher.send(protocol.encode(protocol.Frames(3, 99), frames(3, 4)))
        intake = collecting.intake(publisher, hello)
        async with running(intake):
            await poll(lambda: len(collecting.refused) == 5 and intake.idle)
            info = await publisher.jetstream.consumer_info(layout.STREAM, collecting.consumer(publisher))
            assert (info.num_ack_pending, info.num_pending, info.num_redelivered) == (0, 0, 0)
            await publisher.publish(5, 5)
            await publisher.end(10)
            await poll(lambda: collecting.streams.all[publisher.stream].ended)
    assert collecting.numbers(publisher) == list(range(11))
    assert len(collecting.refused) == 5
