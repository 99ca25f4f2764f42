"""What goes through NATS beside frames, and is not stored: summaries of steps, and commands for the process."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg

from stepscope.collector.nats.roster import NatsProcess
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.exporter import NatsExporter
from stepscope.exporters.nats.servers import NatsLimits, Servers
from stepscope.exporters.nats.transport import NatsTransport
from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.shipper import Head, Shipper
from stepscope.exporters.stream.transport import Feed, LinkSettings
from stepscope.runtime.requests.command import Answer, Command
from tests.support.basics import poll
from tests.support.jetstreams import NAMES, Publisher, connected
from tests.support.journals import write_journal
from tests.support.nats import NatsServer
from tests.support.nats_sources import ingesting
from tests.support.streams import RUN, SYNC

QUICK = LinkSettings(timeout=2.0, first_delay=0.01, longest_delay=0.1)
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


async def test_what_is_no_command_or_no_answer(server: NatsServer, tmp_path: Path) -> None:
    """The one is ignored, the other is an answer that says so."""

    def control(command: Command) -> Future[Answer]:
        answer: Future[Answer] = Future()
        answer.set_result(Answer(pid=1234))
        return answer

    exporter = NatsExporter(server.url, settings=QUICK)
    await exporter.open(msgspec.structs.replace(run_in(tmp_path), control=control))
    async with connected(server.url) as client:
        publisher = Publisher(layout.jetstream(client), stream=exporter.stream)
        process = NatsProcess(client, publisher.names, protocol.Hello(exporter.stream, SYNC, 0, RUN))
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
    """JetStream is full and takes no frames; summaries are published all the same, also those from before the connection."""
    journal = write_journal(tmp_path / "journal", [batch_of(spans([os.urandom(8).hex() for _ in range(2000)]))])
    head, shipper = Head.of(journal), Shipper(journal)
    heard: list[int] = []

    async def hear(message: Msg) -> None:
        summary, _ = protocol.decode(message.data)
        assert isinstance(summary, protocol.StepSummary)
        heard.append(summary.events)

    def summary(number: int) -> protocol.StepSummary:
        return protocol.StepSummary(number, 0, 0, [], b"")

    async with connected(server.url) as client:
        await layout.create(layout.jetstream(client), NAMES, NatsLimits(max_bytes=1 << 12, discard="new"))
        await layout.answer(client, NAMES.live, hear)
        await client.flush()
        transport = NatsTransport(
            Servers(server.url), NAMES, NatsLimits(), QUICK,
            Feed(shipper, lambda: protocol.Hello(head.stream, head.sync, 0, head.run)),
        )  # fmt: skip
        transport.summarize(summary(1))
        transport.start()
        await poll(lambda: "maximum bytes" in transport.statistics().last_error)
        for number in range(2, 5):
            transport.summarize(summary(number))
            await poll(lambda: heard == list(range(1, number + 1)))  # noqa: B023
        assert not shipper.is_confirmed
        await transport.close()
        shipper.close()
