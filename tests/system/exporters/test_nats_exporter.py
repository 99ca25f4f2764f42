"""The exporter to NATS: the contract of exporters by what JetStream has stored, and messages other than frames."""

from __future__ import annotations

import asyncio
import os
import random
import tracemalloc
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg

from stepscope.collector.nats.roster import NatsProcess
from stepscope.exporters.base import Exporter
from stepscope.exporters.conformance import check_exporter
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.exporter import NatsExporter
from stepscope.exporters.nats.servers import NatsLimits, Servers
from stepscope.exporters.nats.transport import NatsTransport
from stepscope.exporters.specimens import batch_of, run_in
from stepscope.exporters.specimens import spans as named
from stepscope.exporters.stream import delivery, protocol
from stepscope.exporters.stream.exporter import BUFFER
from stepscope.exporters.stream.shipper import Head, Shipper
from stepscope.exporters.stream.transport import Feed, LinkSettings
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.loop_threads.ending_tasks import end_tasks
from stepscope.runtime.requests.command import Answer, Command
from tests.support.basics import poll
from tests.support.collectors import spans
from tests.support.jetstreams import NAMES, Publisher, connected, jetstream
from tests.support.journals import write_journal
from tests.support.nats import NatsServer
from tests.support.nats_sources import ingesting
from tests.support.streams import RUN, SYNC

QUICK = LinkSettings(timeout=5.0, first_delay=0.01, longest_delay=0.05)


@pytest.fixture(scope="module")
def large_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats") / "jetstream", "max_payload: 8388608") as started:
        yield started


async def stored(url: str, stream: str) -> tuple[bytes, dict[int, bytes]]:
    """The sync word of a stream in JetStream, and its frames by number."""
    async with jetstream(url) as context:
        hellos = await context.key_value(NAMES.hellos)
        (key,) = {key for key in await layout.keys(context, NAMES.hellos) if key.endswith(stream)}
        hello, _ = protocol.decode((await hellos.get(key)).value or b"")
        assert isinstance(hello, protocol.Hello)
        frames: dict[int, bytes] = {}
        subject = NAMES.of(hello.run, stream).frames
        consumer = await context.subscribe(subject, ordered_consumer=True)
        info: Any = await context.stream_info(NAMES.stream, subjects_filter=subject)
        for _ in range(info.state.subjects[subject]):
            message = await consumer.next_msg(timeout=30)
            header, payload = protocol.decode(message.data)
            assert isinstance(header, protocol.Frames)
            for number, frame in enumerate(encoded(hello.sync, payload), header.first):
                assert frames.setdefault(number, frame) == frame
        return hello.sync, frames


def encoded(sync: bytes, data: memoryview) -> Iterable[bytes]:
    """Frames, one by one."""
    for kind, flags, number, payload in fmt.frames_in(data, sync):
        yield b"".join(map(bytes, fmt.encode_frame(sync, kind, number, [payload], flags)))


async def deliver(journal: Path, url: str, settings: LinkSettings = QUICK) -> None:
    """Completes and delivers a journal."""
    servers = Servers(url)
    await asyncio.to_thread(delivery.complete, journal)
    await delivery.deliver(journal, lambda feed: NatsTransport(servers, NAMES, NatsLimits(), settings, feed), 30.0)


async def test_the_exporter_keeps_the_contract(large_server: NatsServer, tmp_path: Path) -> None:
    """JetStream has the whole journal once the files on disk were delivered."""

    def read_back(exporter: Exporter, directory: Path) -> Iterable[str]:
        assert isinstance(exporter, NatsExporter)
        with ThreadPoolExecutor() as pool:
            if exporter.unsent_files is not None:
                journal = Path(exporter.unsent_files.place)
                pool.submit(lambda: asyncio.run(deliver(journal, large_server.url))).result()
            sync, frames = pool.submit(lambda: asyncio.run(stored(large_server.url, exporter.stream))).result()
        assert sorted(frames) == list(range(len(frames)))
        copy = directory / "read back"
        copy.write_bytes(fmt.encode_file_header(sync) + b"".join(frames[number] for number in sorted(frames)))
        return spans(copy).elements()

    def exporter(directory: Path) -> NatsExporter:
        return NatsExporter(large_server.url, settings=QUICK)

    await check_exporter(exporter, tmp_path, read_back, writes_files=False)


async def test_delivery_continues_where_jetstream_ends(large_server: NatsServer, tmp_path: Path) -> None:
    """Also with messages of another size, which JetStream does not know by their ids: none comes again."""
    exporter = NatsExporter("nats://127.0.0.1:9", settings=QUICK)
    await exporter.open(run_in(tmp_path))
    for number in range(20):
        await exporter.export(noisy(number))
    await closed_in_vain(exporter)
    assert exporter.unsent_files is not None
    # In `unsent` it would be deleted after a delivery.
    unsent = Path(exporter.unsent_files.place).parent.rename(tmp_path / "kept")
    journal = unsent / BUFFER
    subject = NAMES.of(Head.of(journal).run, exporter.stream).frames
    counts: list[int] = []
    async with jetstream(large_server.url) as context:
        for message_bytes in (1 << 12, 1 << 20):
            await deliver(journal, large_server.url, LinkSettings(message_bytes=message_bytes))
            state: Any = (await context.stream_info(NAMES.stream, subjects_filter=subject)).state
            counts.append(state.subjects[subject])
    assert counts[0] > 20 and counts[1] == counts[0]


async def test_unconfirmed_bytes_are_bounded(tmp_path: Path) -> None:
    """A server that takes nothing any more is not sent all that there is, however large messages may be."""
    with NatsServer(tmp_path / "jetstream") as server:
        settings = LinkSettings(timeout=60.0, message_bytes=1 << 20)
        exporter = NatsExporter(server.url, settings=settings)
        await exporter.open(run_in(tmp_path))
        await exporter.export(noisy(0))
        await poll(lambda: (there := exporter.statistics()) is not None and there.confirmed > 0)
        server.pause()
        tracemalloc.start()
        try:
            for number in range(1500):
                await exporter.export(noisy(number))
            await asyncio.sleep(0.5)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        await closed_in_vain(exporter)
    assert peak < 12 << 20


async def test_the_end_of_a_run_is_no_time_to_wait(tmp_path: Path) -> None:
    """A server that answers again gets the rest at once, however long the next attempt is away."""
    with NatsServer(tmp_path / "jetstream") as server:
        await deliver(write_journal(tmp_path / "first", [noisy(0)]), server.url)  # JetStream is ready
        settings = LinkSettings(timeout=3.0, first_delay=60.0, longest_delay=60.0)
        exporter = NatsExporter(server.url, settings=settings)
        await exporter.open(run_in(tmp_path))
        await exporter.export(noisy(0))
        await poll(lambda: (there := exporter.statistics()) is not None and there.confirmed > 0)
        server.pause()
        await exporter.export(noisy(1))
        await poll(lambda: (there := exporter.statistics()) is not None and there.last_error)
        server.resume()
        await exporter.aclose()
        assert exporter.unsent_files is None


async def closed_in_vain(exporter: NatsExporter) -> None:
    """Closes an exporter that reaches no server."""
    task = asyncio.ensure_future(exporter.aclose())
    await asyncio.wait([task], timeout=0.1)
    await end_tasks(task)


def noisy(seed: int) -> EventBatch:
    """An event with an argument of 16 KB that cannot be compressed."""
    noise = random.Random(seed).randbytes(16_000)
    batch = batch_of(named(["x"]), noise)
    batch.events.flags.writeable = True
    batch.events["args_len"] = len(noise)
    return batch


STATUS = Command(command="status")


async def test_a_process_answers_any_collector(server: NatsServer, tmp_path: Path) -> None:
    """Not only the one that takes its stream; many commands at once; and one that never answers does not block others."""
    commands: list[Command] = []

    def control(command: Command) -> Future[Answer]:
        commands.append(command)
        answer: Future[Answer] = Future()
        if command.command == "status":
            answer.set_result(Answer(pid=1234, step=len(commands)))
        return answer

    exporter = NatsExporter(server.url, settings=QUICK)
    await exporter.open(msgspec.structs.replace(run_in(tmp_path), control=control))
    async with ingesting(tmp_path / "collected", server.url) as source:
        await poll(lambda: (found := source.streams.all.get(exporter.stream)) and found.connection)
        process = source.streams.all[exporter.stream].connection
        assert isinstance(process, NatsProcess) and process.control
        async with connected(server.url) as another:
            elsewhere = NatsProcess(another, process.names, process.hello)
            for one in (process, elsewhere):
                with pytest.raises(TimeoutError):
                    await one.order(Command(command="abort"), 0.1)
                answers = await asyncio.gather(*(one.order(STATUS, 10.0) for _ in range(8)))
                assert {answer.pid for answer in answers} == {1234}
            assert len({answer.step for answer in answers}) == 8
        await exporter.aclose()
        with pytest.raises(ConnectionError):
            await process.order(STATUS, 10.0)


async def test_a_command_right_after_the_announcement(server: NatsServer, tmp_path: Path) -> None:
    """A process listens to commands before it says whose stream it sends."""

    def control(command: Command) -> Future[Answer]:
        answer: Future[Answer] = Future()
        answer.set_result(Answer(pid=1234))
        return answer

    async with connected(server.url) as client:
        hellos = await layout.bucket(layout.jetstream(client), NAMES.hellos)
        untyped: Any = hellos
        announced: Any = await untyped.watchall(ignore_deletes=True)
        exporter = NatsExporter(server.url, settings=QUICK)
        await exporter.open(msgspec.structs.replace(run_in(tmp_path), control=control))
        entry = await announced.updates(10.0)
        while entry is None:  # None ends the initial values
            entry = await announced.updates(10.0)
        hello, _ = protocol.decode(entry.value)
        assert isinstance(hello, protocol.Hello)
        answer = await NatsProcess(client, NAMES.of(hello.run, hello.stream), hello).order(STATUS, 10.0)
        assert answer.pid == 1234
        await announced.stop()
        await exporter.aclose()


async def test_a_process_that_takes_no_commands(server: NatsServer, tmp_path: Path) -> None:
    """It does not listen to any."""
    exporter = NatsExporter(server.url, settings=QUICK)
    await exporter.open(run_in(tmp_path))
    async with ingesting(tmp_path / "collected", server.url) as source:
        await poll(lambda: (found := source.streams.all.get(exporter.stream)) and found.connection)
        process = source.streams.all[exporter.stream].connection
        assert isinstance(process, NatsProcess) and not process.control
        with pytest.raises(ConnectionError):
            await process.order(STATUS, 10.0)
        await exporter.aclose()


async def test_invalid_commands_and_answers(server: NatsServer, tmp_path: Path) -> None:
    """The one is ignored, the other is an answer that says so."""

    def control(command: Command) -> Future[Answer]:
        answer: Future[Answer] = Future()
        answer.set_result(Answer(pid=1234))
        return answer

    exporter = NatsExporter(server.url, settings=QUICK)
    await exporter.open(msgspec.structs.replace(run_in(tmp_path), control=control))
    async with connected(server.url) as client:
        publisher = Publisher(layout.jetstream(client), stream=exporter.stream)
        process = NatsProcess(client, publisher.names, protocol.Hello(exporter.stream, SYNC, RUN))
        await poll(lambda: (found := exporter.statistics()) and found.confirmed)
        for message in (b"", protocol.encode(protocol.Ack(1))):
            await client.publish(publisher.names.orders, message)
        assert (await process.order(STATUS, 10.0)).pid == 1234
        await exporter.aclose()
        for reply in (b"", protocol.encode(protocol.Ack(1)), protocol.encode(protocol.Obeyed(1, b"nonsense"))):

            async def respond(message: Msg, reply: bytes = reply) -> None:
                await message.respond(reply)

            answering = await layout.answer(client, publisher.names.orders, respond)
            assert (await process.order(STATUS, 10.0)).error
            await answering.unsubscribe()


async def test_summaries_come_while_frames_wait(server: NatsServer, tmp_path: Path) -> None:
    """JetStream is full and takes no frames; summaries are published all the same, also those from before the connection. `Hello` says
    first whose they are."""
    journal = write_journal(tmp_path / "journal", [batch_of(named([os.urandom(8).hex() for _ in range(2000)]))])
    head, shipper = Head.of(journal), Shipper(journal)
    heard: list[int] = []

    async def hear(message: Msg) -> None:
        header, _ = protocol.decode(message.data)
        heard.append(header.events if isinstance(header, protocol.StepSummary) else 0)

    def summary(number: int) -> protocol.StepSummary:
        return protocol.StepSummary(number, 0, 0, [], b"")

    async with connected(server.url) as client:
        await layout.create(layout.jetstream(client), NAMES, NatsLimits(max_bytes=1 << 12, discard="new"))
        await layout.answer(client, NAMES.live, hear)
        await client.flush()
        transport = NatsTransport(
            Servers(server.url), NAMES, NatsLimits(), QUICK,
            Feed(shipper, protocol.Hello(head.stream, head.sync, head.run)),
        )  # fmt: skip
        transport.summarize(summary(1))
        transport.start()
        await poll(lambda: "maximum bytes" in transport.statistics().last_error)
        for number in range(2, 5):
            transport.summarize(summary(number))
            await poll(lambda: heard == list(range(number + 1)))  # noqa: B023
        assert not shipper.is_confirmed
        await transport.close()
        shipper.close()
