"""How a collector takes a partition from JetStream: each frame once and in order; frames count as lost only if they are nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
import uuid
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo
from nats.js.errors import NotFoundError

from stepscope.collector.files import blocking_pool
from stepscope.collector.files.store import Store
from stepscope.collector.live.stream import DIED_AFTER, State
from stepscope.collector.live.streams import Streams
from stepscope.collector.memory_budget import FREE, MemoryBudget
from stepscope.collector.nats import partition
from stepscope.collector.nats.consumer import Retries
from stepscope.collector.nats.partition import Partition, Session
from stepscope.collector.nats.roster import Roster
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.names import Names
from stepscope.exporters.nats.servers import NatsLimits
from stepscope.exporters.stream import protocol
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import encode_record
from tests.integration.collector.test_blocking_pool import HangingCall
from tests.support.background_task import running
from tests.support.basics import poll
from tests.support.jetstreams import Publisher, connected
from tests.support.journals import frame_numbers
from tests.support.nats import NatsServer
from tests.support.streams import RUN, SYNC, frames, frames_header, hello

"""Seconds."""
PARTITION = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats") / "jetstream") as started:
        yield started


class Publishing(Publisher):
    """An exporter whose stream is in the partition, in a team of its own; and what a collector needs to take it."""

    def __init__(self, client: Client, names: Names, roster: Roster, budget: MemoryBudget) -> None:
        super().__init__(layout.jetstream(client), names, f"{PARTITION:08x}{uuid.uuid4().hex[8:]}")
        self.client, self.roster, self.budget = client, roster, budget

    def another(self) -> Publishing:
        """Another one of the team."""
        return Publishing(self.client, self.team, self.roster, self.budget)


class Collecting:
    """The directory of a collector."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(CollectorSettings(directory=directory))
        self.streams = Streams(100)
        self.retries = Retries("NATS")
        self.refused: list[str] = []

    def refuse(self, subject: str, reason: str) -> None:
        self.refused.append(reason)

    def taking(self, publisher: Publishing, **seconds: Any) -> contextlib.AbstractAsyncContextManager[object]:
        """Takes the partition meanwhile."""
        return running(self.partition(publisher, **seconds).run())

    def partition(self, publisher: Publishing, **seconds: Any) -> Partition:
        """The partition, to be stored in the directory."""
        session = Session(
            publisher.client, publisher.jetstream, publisher.team, publisher.roster, self.store, self.streams,
            publisher.budget, self.retries, self.refuse,
        )._replace(**seconds)  # fmt: skip
        return Partition(session, PARTITION)

    async def take(self, *publishers: Publishing, **seconds: float) -> None:
        """Takes the partition until these streams have ended."""
        async with self.taking(publishers[0], **seconds):
            await poll(lambda: all(map(self.ended, publishers)))

    @property
    def consumer(self) -> str:
        """Name of the consumer."""
        return f"collect-{self.store.identity()}-{PARTITION}"

    async def info(self, publisher: Publishing) -> ConsumerInfo:
        """State of the consumer."""
        found: ConsumerInfo = await publisher.jetstream.consumer_info(publisher.team.stream, self.consumer)
        return found

    def numbers(self, publisher: Publisher) -> list[int]:
        """Numbers of the frames in the files."""
        return frame_numbers(self.store.path(publisher.stream))

    def ended(self, publisher: Publisher) -> bool:
        """Whether a stream is written up to its end, and closed."""
        stream = self.streams.all.get(publisher.stream)
        return stream is not None and stream.ended and stream.connection is None

    def next(self, publisher: Publisher) -> int:
        """Number of the first frame that is not written yet."""
        stream = self.streams.all.get(publisher.stream)
        return 0 if stream is None else stream.next

    def missing(self, publisher: Publisher) -> int:
        return self.streams.all[publisher.stream].missing


@contextlib.asynccontextmanager
async def publishing(server: NatsServer, bound: int = 256 << 20) -> AsyncGenerator[Publishing]:
    async with connected(server.url) as client:
        names, jetstream = Names(uuid.uuid4().hex), layout.jetstream(client)
        await layout.create(jetstream, names, NatsLimits(max_bytes=0))
        hellos, ended = await layout.bucket(jetstream, names.hellos), await layout.bucket(jetstream, names.ended)
        roster = Roster(client, names, hellos, ended)
        yield Publishing(client, names, roster, MemoryBudget(bound))


async def test_ingesting_ends_with_the_stream(server: NatsServer, tmp_path: Path) -> None:
    """However messages overlap. Others hear that this directory has it."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        await publisher.begin()
        for first, count in ((0, 10), (5, 10), (15, 5), (5, 10), (20, 5)):
            await publisher.publish(first, count)
        await publisher.end(25)
        await collecting.take(publisher)
        assert collecting.numbers(publisher) == list(range(26))
        assert collecting.missing(publisher) == 0
        ended = await publisher.jetstream.key_value(publisher.team.ended)
        assert (await ended.get(publisher.names.key)).value == collecting.store.identity().encode()
        # Repeated frames are acknowledged by this collector and by others.
        await publisher.publish(5, 10)
        other = Collecting(tmp_path / "other")
        for one in (collecting, other):
            async with one.taking(publisher):
                await wait_until_written(one, publisher)
    assert collecting.numbers(publisher) == list(range(26))
    assert not other.streams.all and not list(other.store.journals())


async def wait_until_written(collecting: Collecting, publisher: Publishing) -> ConsumerInfo:
    """Waits until nothing is left to take."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(NotFoundError):
                info = await collecting.info(publisher)
                if not info.num_pending and not info.num_ack_pending:
                    return info
            await asyncio.sleep(0.01)


async def test_a_stream_that_cannot_be_written_keeps_no_other_from_it(server: NatsServer, tmp_path: Path) -> None:
    """It has no Hello, or that of another job. When it has one, all of it is written."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        unknown, foreign = publisher.another(), publisher.another()
        await layout.put(publisher.jetstream, publisher.team.hellos, foreign.names.key, hello(unknown.stream))
        for one in (unknown, foreign):
            await one.publish(0, 5)
        await publisher.begin()
        await publisher.publish(0, 5)
        await publisher.end(5)
        async with collecting.taking(publisher):
            await poll(lambda: collecting.ended(publisher))
            assert "stream" in collecting.retries.problem and "Hello" in collecting.retries.problem
            for one in (unknown, foreign):
                await one.begin()
                await one.end(5)
            await poll(lambda: collecting.ended(unknown) and collecting.ended(foreign))
            assert not collecting.retries.problem
    assert collecting.numbers(unknown) == collecting.numbers(foreign) == list(range(6))


async def test_a_stream_without_a_hello_is_refused_in_the_end(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JetStream does not deliver it for ever, and nothing of it stays in memory. If its Hello comes after all, all is written."""
    monkeypatch.setattr(partition, "IDLE_SECONDS", 0.2)
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        await publisher.publish(0, 5)
        ingest: Any = collecting.partition(publisher, refuse_seconds=1.5, silent_seconds=0.5)
        async with running(ingest.run()):
            await poll(lambda: collecting.refused)
            await wait_until_written(collecting, publisher)
            await poll(lambda: not ingest._intakes)
            await publisher.begin()
            await publisher.publish(5, 5)
            await publisher.end(10)
            await poll(lambda: collecting.ended(publisher))
    assert all("has no Hello" in reason for reason in collecting.refused)
    assert collecting.numbers(publisher) == list(range(11))


async def test_a_known_stream_is_not_refused_for_its_file(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long ago it began: an operator can put the file right, and JetStream must have the messages then."""
    monkeypatch.setattr(partition, "IDLE_SECONDS", 0.2)
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        await publisher.begin()
        await publisher.publish(0, 5)
        async with collecting.taking(publisher, refuse_seconds=0.5, silent_seconds=0.2):
            await wait_until_written(collecting, publisher)
            await poll(lambda: not collecting.store.connected(publisher.stream))
            await asyncio.sleep(0.5)
            directory = collecting.store.streams / publisher.stream
            aside = directory.rename(tmp_path / "aside")
            directory.symlink_to(aside)
            await publisher.publish(5, 5)
            await poll(lambda: "is a link" in collecting.retries.problem)
            await asyncio.sleep(2)
            assert not collecting.refused
            directory.unlink()
            aside.rename(directory)
            await publisher.end(10)
            await poll(lambda: collecting.ended(publisher))
    assert collecting.numbers(publisher) == list(range(11))


async def test_a_run_of_another_job_is_refused(server: NatsServer, tmp_path: Path) -> None:
    """In a frame, whatever the Hello says: whoever may send the streams of one job only sends none of another."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        await publisher.begin()
        await publisher.publish(0, 5)
        record = encode_record(msgspec.structs.replace(RUN, job="other"))
        frame = b"".join(map(bytes, fmt.encode_frame(SYNC, fmt.FrameType.RUN, 5, [record])))
        await publisher.send(protocol.encode(frames_header(5, 1), frame))
        async with collecting.taking(publisher):
            await poll(lambda: collecting.refused)
    assert collecting.refused == ["its run is of the job 'other'"]
    assert collecting.numbers(publisher) == list(range(5))


async def test_the_file_of_a_silent_stream_is_closed(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process counts as dead, and its file can be deleted; later messages are written all the same."""
    monkeypatch.setattr(partition, "IDLE_SECONDS", 0.2)
    collecting = Collecting(tmp_path)

    def is_closed() -> bool:
        stream = collecting.streams.all[publisher.stream]
        return stream.connection is None and not collecting.store.connected(stream.id)

    async with publishing(server) as publisher:
        await publisher.begin()
        await publisher.publish(0, 5)
        async with collecting.taking(publisher, silent_seconds=0.1):
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
            await poll(lambda: collecting.ended(publisher))
    assert collecting.numbers(publisher) == list(range(16)) and collecting.missing(publisher) == 0


async def test_a_connection_gets_the_stream(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is silent, as one whose journal is delivered by WebSocket; the rest of the partition goes on."""
    monkeypatch.setattr(partition, "IDLE_SECONDS", 0.2)
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        other = publisher.another()
        answers = [await one.begin() for one in (publisher, other)]
        await publisher.publish(0, 5)
        async with collecting.taking(publisher, silent_seconds=0.2):
            await poll(lambda: collecting.next(publisher) == 5)
            async with collecting.store.stream(answers[0], lambda: None) as file:
                assert file.next == 5
                await other.publish(0, 5)
                await other.end(5)
                await poll(lambda: collecting.ended(other))


async def test_unacknowledged_messages_of_a_killed_collector_come_at_once(server: NatsServer, tmp_path: Path) -> None:
    """JetStream would deliver them again after an hour."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        await publisher.begin()
        for number in range(20):
            await publisher.publish(number, 1)
        await publisher.end(20)
        untyped: Any = publisher.jetstream
        name, subjects = collecting.consumer, publisher.team.partition(PARTITION)
        config = ConsumerConfig(
            durable_name=name, ack_policy=AckPolicy.EXPLICIT, ack_wait=3600, filter_subject=subjects
        )
        await untyped.add_consumer(publisher.team.stream, config)
        killed = await untyped.pull_subscribe_bind(name, publisher.team.stream)
        assert len(await killed.fetch(7, timeout=10)) == 7
        await collecting.take(publisher)
    assert collecting.numbers(publisher) == list(range(21))
    assert collecting.missing(publisher) == 0


async def test_frames_that_jetstream_has_deleted_count_as_lost(server: NatsServer, tmp_path: Path) -> None:
    """The messages of a stream are in order, so the collector does not wait for them."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        await publisher.begin()
        await publisher.publish(0, 5)
        lost = await publisher.publish(5, 5)
        await publisher.publish(10, 5)
        await publisher.end(15)
        await publisher.jetstream.delete_msg(publisher.team.stream, lost)
        await collecting.take(publisher)
    assert collecting.numbers(publisher) == [*range(5), *range(10, 16)]
    assert collecting.missing(publisher) == 5


async def test_a_file_that_lost_acknowledged_frames_is_completed(server: NatsServer, tmp_path: Path) -> None:
    """As after a loss of power: the consumer is ahead of the file, and JetStream has the messages between."""
    collecting = Collecting(tmp_path)
    async with publishing(server) as publisher:
        await publisher.begin()
        await publisher.publish(0, 5)
        async with collecting.taking(publisher):
            await poll(lambda: collecting.next(publisher) == 5)
        place = collecting.store.path(publisher.stream).parent
        before = {path: path.read_bytes() for path in place.iterdir()}
        await publisher.publish(5, 5)
        async with collecting.taking(publisher):
            await poll(lambda: collecting.next(publisher) == 10)
        for path, content in before.items():
            path.write_bytes(content)
        await publisher.publish(10, 5)
        await publisher.end(15)
        await collecting.take(publisher)
    assert collecting.numbers(publisher) == list(range(16))
    assert collecting.missing(publisher) == 0


async def test_frames_written_after_a_cancellation_count(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next ingest finds them in the file, and does not count them again."""
    monkeypatch.setattr(blocking_pool, "PATIENCE", 0.05)
    collecting = Collecting(tmp_path)
    hanging = HangingCall(monkeypatch, "write")
    try:
        async with publishing(server) as publisher:
            await publisher.begin()
            await publisher.publish(0, 5)
            async with collecting.taking(publisher):
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
        await publisher.begin()
        await publisher.publish(0, 5)
        await publisher.send(b"")
        await publisher.send(b"\xff" * 100)
        await publisher.send(protocol.encode(protocol.Ack(3)))
        await publisher.send(protocol.encode(frames_header(5, 1), frames(5, 1)[:-1] + b"\xff"))
        await publisher.send(protocol.encode(frames_header(3, 99), frames(3, 4)))
        async with collecting.taking(publisher):
            await poll(lambda: len(collecting.refused) == 5)
            info = await wait_until_written(collecting, publisher)
            assert info.num_redelivered == 0
            await publisher.publish(5, 5)
            await publisher.end(10)
            await poll(lambda: collecting.ended(publisher))
    assert collecting.numbers(publisher) == list(range(11))
    assert len(collecting.refused) == 5


async def test_memory_is_bounded(server: NatsServer, tmp_path: Path) -> None:
    """For all streams together, however many messages there are: here 38 MB in four streams."""
    collecting, limit = Collecting(tmp_path), 8 << 20
    async with publishing(server, limit) as first:
        publishers = [first, *(first.another() for _ in range(3))]
        for publisher in publishers:
            await publisher.begin()
            for number in range(12):
                await publisher.publish(number, 1, size=800_000)
            await publisher.end(12)
        bound = first.budget
        tracemalloc.start()
        try:
            await collecting.take(*publishers)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert FREE < bound.peak <= limit and bound.used == bound.waiting == 0
        assert peak < 2 * limit, "bytes that are read from the connection, and those being written, come on top"
    assert all(collecting.numbers(publisher) == list(range(13)) for publisher in publishers)
