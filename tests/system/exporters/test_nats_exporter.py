"""The exporter to NATS fulfils the contract of exporters, by what JetStream has stored."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

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
from stepscope.exporters.stream.shipper import Head
from stepscope.exporters.stream.transport import LinkSettings
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.loop_threads.ending_tasks import end_tasks
from tests.support.basics import poll
from tests.support.collectors import spans
from tests.support.jetstreams import NAMES, jetstream
from tests.support.nats import NatsServer

QUICK = LinkSettings(timeout=5.0, first_delay=0.01, longest_delay=0.05)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsServer]:
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


async def test_it_fulfils_the_contract_of_exporters(server: NatsServer, tmp_path: Path) -> None:
    """What is in JetStream, after what was left on disk was delivered, is the whole journal."""

    def read_back(exporter: Exporter, directory: Path) -> Iterable[str]:
        assert isinstance(exporter, NatsExporter)
        with ThreadPoolExecutor() as pool:
            if exporter.unsent_files is not None:
                journal = Path(exporter.unsent_files.place)
                pool.submit(lambda: asyncio.run(deliver(journal, server.url))).result()
            sync, frames = pool.submit(lambda: asyncio.run(stored(server.url, exporter.stream))).result()
        assert sorted(frames) == list(range(len(frames)))
        copy = directory / "read back"
        copy.write_bytes(fmt.encode_file_header(sync) + b"".join(frames[number] for number in sorted(frames)))
        return spans(copy).elements()

    def exporter(directory: Path) -> NatsExporter:
        return NatsExporter(server.url, settings=QUICK)

    await check_exporter(exporter, tmp_path, read_back, writes_files=False)


async def test_delivery_continues_where_jetstream_ends(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with messages of another size, which JetStream does not know by their ids: only the last one may come again."""
    monkeypatch.setattr(layout, "IN_FLIGHT", 1)
    exporter = NatsExporter("nats://127.0.0.1:9", settings=QUICK)
    await exporter.open(run_in(tmp_path))
    for number in range(20):
        await exporter.export(noisy(number))
    await closed_in_vain(exporter)
    assert exporter.unsent_files is not None
    # In `unsent` it would be deleted after a delivery.
    kept = Path(exporter.unsent_files.place).parent.rename(tmp_path / "kept")
    journal = kept / BUFFER
    subject = NAMES.of(Head.of(journal).run, exporter.stream).frames
    counts: list[int] = []
    async with jetstream(server.url) as context:
        for message_bytes in (1 << 12, 1 << 20):
            await deliver(journal, server.url, LinkSettings(message_bytes=message_bytes))
            state: Any = (await context.stream_info(NAMES.stream, subjects_filter=subject)).state
            counts.append(state.subjects[subject])
    assert counts[0] > 20 and counts[1] <= counts[0] + 1


async def test_what_is_on_its_way_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes nothing any more is not sent all that there is, however large messages may be."""
    monkeypatch.setattr(layout, "IN_FLIGHT_BYTES", 2 << 20)
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
